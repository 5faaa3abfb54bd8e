"""From records to the numbers that papers print: rounds to a target, best, final and at a round, over all seeds.

A number is given in the units of print. A seed that does not reach its target, or that diverges, has no number but is
known to be worse than any: as soon as there is one, the seeds' median takes the place of their mean, which does not
need to know how much worse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fedkeel.papers.format import BestOf, Measure
from fedkeel.papers.records import Record, Series
from fedkeel.runs.history import WINDOW

SWING_OVER = 10
"""Evaluations over which a curve's swing is measured."""
ROUNDING = 1e-12
"""What a mean of equal values may be off."""


@dataclass(frozen=True)
class Number:
    """What one run gives for a measure."""

    value: float
    """As a paper would print it."""
    beyond: bool = False
    """Worse than ``value``: not reached in so many rounds, or diverged (then ``value`` is the worst there is)."""
    smoothed: float | None = None
    """Of rounds to a target: the same for the running mean over five evaluations; None where that never gets there."""
    note: str = ""
    swing: float = 0.0
    """Of a value that is read in a single round: how much the curve swings there, as a standard deviation."""
    short: bool = False
    """Whether it is ``beyond`` only because no more rounds were run yet."""


@dataclass(frozen=True)
class Unanswered:
    """Why a record gives no number for a measure."""

    why: str


@dataclass(frozen=True)
class Summary:
    """A measure over all seeds of a cell."""

    value: float
    """Their mean; their median if a seed is known only to be worse than all others."""
    beyond: bool
    """Whether even that is only known to be worse than ``value``."""
    sd: float | None
    """Over seeds, of those that have a number; None for fewer than two of them."""
    n: int
    failed: int
    """Seeds that did not reach the target, or diverged."""
    smoothed: float | None
    """Mean of the smoothed numbers of rounds; None unless every seed has one."""
    notes: tuple[str, ...] = ()
    swing: float = 0.0
    """Of the seeds' curves, where a single round is read: the root of the mean square."""
    short: bool = False
    """Whether it is ``beyond`` with a run that can still go on."""

    def __str__(self) -> str:
        if self.beyond and math.isinf(self.value):
            return "diverged"
        spread = "" if self.sd is None or self.failed else f" ± {self.sd:{'.2g' if self.sd < 10 else '.0f'}}"
        return f"{'>' if self.beyond else ''}{shown(self.value)}{spread}"


def shown(value: float) -> str:
    """A number with as many digits as papers print."""
    if value == round(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def finite(series: Series, upto: int | None = None) -> list[tuple[int, float]]:
    """The evaluations after a round of training, without those that are not finite, up to a round."""
    return [
        (round, value)
        for round, value in zip(*series, strict=True)
        if value is not None and math.isfinite(value) and round >= 1 and (upto is None or round <= upto)
    ]


def first_round(points: Iterable[tuple[int, float]], target: float, lower: bool, window: int = 1) -> int | None:
    """The first round whose value, or mean over the last ``window`` evaluations, is at the target or beyond it."""
    seen: list[float] = []
    for round, value in points:
        seen = [*seen, value][-window:]
        mean = math.fsum(seen) / window
        if len(seen) == window and (mean <= target + ROUNDING if lower else mean >= target - ROUNDING):
            return round
    return None


def number(record: Record, measure: Measure, budget: int, reference: Record | None = None) -> Number | Unanswered:
    """What a record gives for a measure, looking at no more than ``budget`` rounds: records may hold more.

    ``reference`` is the record of the same seed whose best value is the target, where a method sets it.
    """
    if measure.kind == "set_size":
        return _set_size(record, measure)
    if measure.metric not in record.series:
        return Unanswered(f"the record holds no {measure.metric}")
    points = finite(record.series[measure.metric], budget)
    ended = f"diverged after round {record.rounds}" if record.ended == "diverged" and record.rounds < budget else ""
    whole = record.rounds >= budget or bool(ended)
    if measure.kind == "rounds_to":
        return _rounds_to(record, measure, points, budget, ended, whole, reference)
    if measure.kind == "at":
        return _at(record, measure, budget, ended)
    if not whole:
        return Unanswered(f"the run has {record.rounds} of {budget} rounds")
    if measure.kind == "final":
        return _diverged(measure, ended) if ended else _after(record, measure, budget)
    if not points:
        return _diverged(measure, ended) if ended else Unanswered(f"the record holds no finite {measure.metric}")
    best = min if measure.lower_is_better else max
    return Number(measure.printed_scale * best(value for _, value in points), note=ended)


def _set_size(record: Record, measure: Measure) -> Number | Unanswered:
    if record.ended == "diverged":
        return _diverged(measure, f"diverged after round {record.rounds}")
    for asked, found, size in record.sets:
        if measure.coverage is not None and math.isclose(asked, measure.coverage, abs_tol=1e-9):
            return Number(measure.printed_scale * size, note=f"coverage {found:.1%}")
    return Unanswered(f"the record holds no prediction sets with a coverage of {measure.coverage:g}")


def _rounds_to(
    record: Record,
    measure: Measure,
    points: Sequence[tuple[int, float]],
    budget: int,
    ended: str,
    whole: bool,
    reference: Record | None,
) -> Number | Unanswered:
    lower = measure.metric.endswith("loss")
    if isinstance(measure.target, BestOf):
        target = _best_of(measure, budget, reference)
        if isinstance(target, Unanswered):
            return target
    else:
        target = measure.target if measure.target is not None else math.nan
    reached = first_round(points, target, lower)
    smooth = first_round(points, target, lower, WINDOW)
    if reached is not None:
        return Number(float(reached), smoothed=None if smooth is None else float(smooth))
    if not whole:  # for now: it is known to need more
        note = f"{record.rounds} of {budget} rounds were run"
        return Number(float(record.rounds), beyond=True, note=note, short=True)
    return Number(float(budget), beyond=True, note=ended)


def _best_of(measure: Measure, budget: int, reference: Record | None) -> float | Unanswered:
    whose = measure.target.best_of if isinstance(measure.target, BestOf) else "nobody"
    if reference is None:
        return Unanswered(f"{whose}, which sets the target, was not run with this seed")
    best = number(reference, Measure(kind="best", metric=measure.metric, scale=1.0), budget)
    if isinstance(best, Unanswered) or best.beyond:
        return Unanswered(f"{whose}, which sets the target, has no best {measure.metric}")
    return best.value


def _at(record: Record, measure: Measure, budget: int, ended: str) -> Number | Unanswered:
    wanted = measure.round or budget
    if wanted > budget:  # a smaller scale: its last round has to stand for one that it does not have
        last = number(record, measure.model_copy(update={"kind": "final", "round": None}), budget)
        note = f"in round {budget}, the last of this scale, for round {wanted}"
        return replace(last, note=note) if isinstance(last, Number) else last
    if record.rounds >= wanted:
        return _after(record, measure, wanted, exactly=True)
    return _diverged(measure, ended) if ended else Unanswered(f"the run has {record.rounds} rounds")


def _after(record: Record, measure: Measure, wanted: int, exactly: bool = False) -> Number | Unanswered:
    """The value after a round, or after the last evaluated one before it; what is not finite is the worst there is."""
    there = [(round, value) for round, value in zip(*record.series[measure.metric], strict=True) if round <= wanted]
    if not there or (exactly and there[-1][0] != wanted):
        return Unanswered(f"round {wanted} was not evaluated")
    round, value = there[-1]
    if value is None or not math.isfinite(value):
        return _diverged(measure, f"{measure.metric} not finite in round {round}")
    note = "" if round == wanted else f"in round {round}, evaluated last"
    lately = [value for _, value in finite(record.series[measure.metric], round)][-SWING_OVER:]
    return Number(measure.printed_scale * value, note=note, swing=measure.printed_scale * swing(lately))


def swing(values: Sequence[float]) -> float:
    """How far values of a curve scatter about it, from their differences: a steady rise hardly counts.

    Two draws of one deviation s differ by s√2, so s² is half the mean square of the differences.
    """
    squares = [(after - before) ** 2 for before, after in pairwise(values)]
    return math.sqrt(statistics.fmean(squares) / 2) if squares else 0.0


def _diverged(measure: Measure, note: str) -> Number:
    return Number(math.inf if measure.lower_is_better else -math.inf, beyond=True, note=note)


def summary(numbers: Mapping[int, Number], lower: bool) -> Summary:
    """The numbers of several seeds as one; ``lower`` tells whether small ones are good."""
    known = [one.value for one in numbers.values() if not one.beyond]
    failed = [one.value for one in numbers.values() if one.beyond]
    n = len(numbers)
    if failed:
        # A run that is short tells only that it needs more than it had: beside it, more than that is all anybody knows.
        horizon = min(failed) if lower else max(failed)
        later = [value for value in known if (value > horizon if lower else value < horizon)]
        sure = [(value, False) for value in known if value not in later]
        ordered = sorted([*sure, *((value, True) for value in failed), *((horizon, True) for _ in later)])
        if not lower:
            ordered.reverse()
        ordered.sort(key=lambda one: one[1])  # those that failed are worse than all others, whatever their budget
        middle = ordered[(n - 1) // 2 : n // 2 + 1]
        value, beyond = statistics.fmean(value for value, _ in middle), any(failed for _, failed in middle)
    else:
        value, beyond = statistics.fmean(known), False
    smoothed = [one.smoothed for one in numbers.values() if one.smoothed is not None]
    by_note: dict[str, list[int]] = {}
    for seed, one in numbers.items():
        if one.note:
            by_note.setdefault(one.note, []).append(seed)
    notes = tuple(note if len(seeds) == n else f"seed {_listed(seeds)}: {note}" for note, seeds in by_note.items())
    return Summary(
        value=value,
        beyond=beyond,
        sd=statistics.stdev(known) if len(known) > 1 else None,
        n=n,
        failed=len(failed),
        smoothed=statistics.fmean(smoothed) if len(smoothed) == n else None,
        notes=notes,
        swing=math.sqrt(statistics.fmean(one.swing**2 for one in numbers.values())),
        short=beyond and any(one.short for one in numbers.values()),
    )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
