"""Numbers over paired seeds: intervals, tests with Holm's correction, ranks and their critical difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.05
FEWEST_FOR_WILCOXON = 6
"""With n pairs no p of the signed-rank test is below 2^(1 − n): five seeds cannot show anything at 5 %."""


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % interval (Student's t); NaN where there is one value only."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        from scipy.stats import t

        if len(values) < 2:
            return cls(fmean(values) if values else math.nan, math.nan)
        n = len(values)
        return cls(fmean(values), float(t.ppf(1 - LEVEL / 2, n - 1)) * stdev(values) / math.sqrt(n))


@dataclass(frozen=True)
class Paired:
    """Whether two methods differ, by the differences of their values on the same seeds."""

    t: float
    """p of the paired t-test, two-sided; 1 where all differences are 0, NaN with fewer than two pairs."""
    wilcoxon: float
    """p of the signed-rank test; NaN with fewer than ``FEWEST_FOR_WILCOXON`` pairs."""


def paired(one: Sequence[float], two: Sequence[float]) -> Paired:
    """The tests of two methods; values stand in the order of the seeds."""
    from scipy import stats

    differences = [a - b for a, b in zip(one, two, strict=True)]
    if len(differences) < 2:
        return Paired(math.nan, math.nan)
    if not any(differences):
        return Paired(1.0, 1.0 if len(differences) >= FEWEST_FOR_WILCOXON else math.nan)
    # Differences that are all the same have no spread: no test is sure, but none could be surer.
    spread = stdev(differences)
    t = 0.0 if spread == 0 else float(stats.ttest_1samp(differences, 0).pvalue)
    enough = len(differences) >= FEWEST_FOR_WILCOXON
    return Paired(t, float(stats.wilcoxon(differences).pvalue) if enough else math.nan)


@dataclass(frozen=True)
class Stratified:
    """Whether two methods differ over several settings that count alike, by paired differences inside each of them."""

    lead: Interval
    """Mean over the settings of their mean differences."""
    p: float
    """That it is 0, two-sided; NaN if a setting has fewer than two pairs."""

    @classmethod
    def of(cls, settings: Sequence[Sequence[float]]) -> Stratified:
        """From the differences of every setting.

        The mean of k means has the variance Σ s_i²/n_i / k², each setting with a spread of its own, so its degrees of
        freedom are Welch's and Satterthwaite's. It speaks of other seeds in these settings, not of other settings.
        """
        from scipy.stats import t

        mean = fmean(fmean(differences) for differences in settings)
        if any(len(differences) < 2 for differences in settings):
            return cls(Interval(mean, math.nan), math.nan)
        parts = [stdev(differences) ** 2 / len(differences) for differences in settings]
        if not any(parts):  # as in ``paired``
            return cls(Interval(mean, 0.0), 0.0 if mean else 1.0)
        error = math.sqrt(sum(parts)) / len(settings)
        spread = sum(part**2 / (len(own) - 1) for part, own in zip(parts, settings, strict=True))
        freedom = sum(parts) ** 2 / spread
        half = float(t.ppf(1 - LEVEL / 2, freedom)) * error
        return cls(Interval(mean, half), float(2 * t.sf(abs(mean) / error, freedom)))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p corrected for their number (Holm 1979): the k-th smallest of m is multiplied by m − k + 1, and none sinks."""
    known = sorted((value, name) for name, value in p.items() if not math.isnan(value))
    corrected, highest = dict.fromkeys(p, math.nan), 0.0
    for place, (value, name) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - place)))
        corrected[name] = highest
    return corrected


def ranks(blocks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean rank of every method over blocks (a seed of a setting) that all have; 1 is best, equals share theirs."""
    from scipy.stats import rankdata

    names = list(blocks[0]) if blocks else []
    rows = [rankdata([-block[name] for name in names]) for block in blocks]
    return {name: fmean(float(row[at]) for row in rows) for at, name in enumerate(names)}


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's, at 5 %: methods whose mean ranks differ by more are not alike (Demšar, JMLR 2006)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))
