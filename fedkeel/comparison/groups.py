"""Runs beside each other over their seeds: rounds to a target, speed-up, accuracies, and paired differences.

Runs that differ in their seed alone are one group. Groups are compared seed by seed, so that what a seed decides for
both (partition, initial weights, cohorts) cancels out of the difference.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedkeel import sweeps
from fedkeel.data.digest import WHAT
from fedkeel.errors import DataError, InputError, named, unknown
from fedkeel.runs import same_data, same_model
from fedkeel.runs.history import WINDOW as WINDOW
from fedkeel.runs.history import History
from fedkeel.runs.reported import Reported
from fedkeel.runs.runner import ENOUGH
from fedkeel.runs.store import Store

CONFIDENCE = 0.95
FEWEST = 3
"""Seeds from which an interval is given; with fewer it would say nothing."""
_NO_SETTING = (
    "name",
    "seed",
    "measure.every",
    "measure.clients",
    "run.workers",
    "run.threads",
    "run.checkpoint_every",
    "run.memory_mb",
)
"""Fields that no result depends on, and the seed."""
_OF_THE_SEED = ("partition", "client tests", "validation")
"""What of the data a seed may decide."""


@dataclass(frozen=True)
class Read:
    """A run as a comparison needs it; its history was compared with all its digests."""

    name: str
    seed: int
    settings: dict[str, Any]
    """All that the run was started with beside its seed, by dotted field."""
    rounds: int | None
    """That were asked for."""
    data: dict[str, str] | None
    """Digests of the data; None where a version kept none."""
    layers: str | None
    history: History
    enough: bool = False
    """Whether its last round is the one after which ``until`` ended it."""


@dataclass(frozen=True)
class Duplicate:
    """A run that is left out, because another one has the same settings, seed, data and model."""

    left: Read
    shown: Read

    def __str__(self) -> str:
        left, shown = self.left, self.shown
        done = [len(run.history.rounds) for run in (left, shown)]
        differs = "; their numbers are not the same" if _numbers_differ(left.history, shown.history) else ""
        if left.name == shown.name and done[0] == done[1] and not differs:
            return f"{left.name} is given more than once, and shown once."
        why = f"has {done[1]} rounds to its {done[0]}" if done[1] > done[0] else "comes first"
        return (
            f"{left.name} is left out: it has the settings and the seed {left.seed} of {shown.name}, which {why}"
            f"{differs}."
        )


@dataclass(frozen=True)
class Difference:
    """How much higher a group's accuracy is than the base's, over the seeds that both have."""

    mean: float
    seeds: int
    low: float | None
    high: float | None
    """Ends of the 95 % t interval of the mean paired difference; None with fewer than three seeds."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone; numbers are means over them."""

    name: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    reached: int
    """How many reached the target."""
    rounds_to_target: float | None
    """None where not all reached it."""
    smoothed_rounds_to_target: float | None
    """The same for the mean accuracy of five evaluations."""
    speed_up: float | None
    """Mean rounds of the base over mean rounds of this group, on common seeds; None where one here did not arrive."""
    at_least: bool
    """A run of the base did not arrive: its rounds stand in, and the speed-up is a lower bound."""
    last: float
    late: float
    """Mean over the last 10 % of the rounds."""
    best: float
    spread: float | None
    """Standard deviation of ``last`` over seeds."""
    bytes_to_target: float | None
    virtual_seconds_to_target: float | None
    """By the virtual clock; None where not all reached it, or there is none."""
    over_base: dict[str, Difference]
    """Paired differences in ``last``, ``late`` and ``best``; empty for the base, and without common seeds."""


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and what a reader must know before believing the table."""

    target: float
    base: str
    groups: tuple[Group, ...]
    warnings: tuple[str, ...]


def read(directory: Path) -> Read:
    """A run from its directory; it may be going on."""
    with closing(Store.reading(directory)) as store:
        try:
            table = tomllib.loads(store.configuration())
        except tomllib.TOMLDecodeError:
            raise DataError(
                f"the stored configuration of the run in {directory} is damaged; restore it from a copy."
            ) from None
        settings = {field: value for field, value in by_field(table).items() if field not in _NO_SETTING}
        model = same_model.recorded(store)
        layers = None if model is None else layers_of(model)
        seed, rounds = table.get("seed", 0), settings.get("training.rounds")
        known = same_data.recorded(store)
        history = store.history()
        enough = store.meta(ENOUGH) == str(len(history.rounds))
        return Read(str(directory), int(seed), settings, rounds, known, layers, history, enough)


def layers_of(model: same_model.ModelRecord) -> str:
    """What two models must share to be the same but for their weights."""
    return f"{model.layers} {sorted(model.tensors.items())} {model.loss}"


def compare_groups(runs: Sequence[Read], target: float, base: str | None = None) -> Comparison:
    """Groups over a base (a group, an algorithm or a run by name; absent: the group of the first run)."""
    by_name = grouped(runs)
    warnings = [*check_comparable(runs), *_check_target(runs, target)]
    chosen = next(iter(by_name)) if base is None else _base(by_name, base)
    groups = tuple(
        _group(name, of_group, by_name[chosen], target, name == chosen) for name, of_group in by_name.items()
    )
    for group in groups:
        if group.name != chosen and not group.over_base:
            warnings.append(f"{group.name} has no seed in common with {chosen}, so nothing of it is paired.")
    return Comparison(target, chosen, groups, tuple(warnings))


def check_comparable(runs: Sequence[Read]) -> list[str]:
    """What a reader must know of runs side by side; those on other data are refused."""
    return [*_check_data(runs), *_check_models(runs), *_check_settings(runs), *_check_rounds(runs)]


def _group(name: str, runs: Mapping[int, Read], base: Mapping[int, Read], target: float, is_base: bool) -> Group:
    accuracies = {seed: run.history.reported() for seed, run in runs.items()}
    raw = {seed: run.history.rounds_to(target) for seed, run in runs.items()}
    smooth = [run.history.rounds_to(target, window=WINDOW) for run in runs.values()]
    speed_up, at_least = _speed_up(raw, base, target)
    lasts = [found.last for found in accuracies.values()]
    arrived = [run.history.bytes_to(r) for seed, run in runs.items() if (r := raw[seed]) is not None]
    of_base = {seed: base[seed].history.reported() for seed in runs if seed in base}
    return Group(
        name,
        tuple(run.name for run in runs.values()),
        tuple(runs),
        len(arrived),
        _mean_of_all(list(raw.values())),
        _mean_of_all(smooth),
        speed_up,
        at_least,
        fmean(lasts),
        fmean(found.late for found in accuracies.values()),
        fmean(found.best for found in accuracies.values()),
        stdev(lasts) if len(lasts) > 1 and not any(map(math.isnan, lasts)) else None,
        fmean(arrived) if len(arrived) == len(runs) else None,
        _mean_of_all([run.history.virtual_seconds_to(target) for run in runs.values()]),
        {} if is_base or not of_base else _differences(accuracies, of_base),
    )


def _speed_up(raw: Mapping[int, int | None], base: Mapping[int, Read], target: float) -> tuple[float | None, bool]:
    common = [seed for seed in raw if seed in base]
    own = [raw[seed] for seed in common]
    theirs = [base[seed].history.rounds_to(target) for seed in common]
    budgets = [len(base[seed].history.rounds) for seed in common]
    mean = _mean_of_all(own)
    if mean is None:
        return None, False
    stand_in = [budget if found is None else found for found, budget in zip(theirs, budgets, strict=True)]
    return fmean(stand_in) / mean, None in theirs


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _differences(own: Mapping[int, Reported], base: Mapping[int, Reported]) -> dict[str, Difference]:
    return {
        which: paired([getattr(own[seed], which) - getattr(base[seed], which) for seed in base])
        for which in ("last", "late", "best")
    }


def paired(differences: Sequence[float]) -> Difference:
    """Mean and t interval of differences, one for each seed; NaN where a run has no accuracy."""
    mean, count = fmean(differences), len(differences)
    if count < FEWEST or math.isnan(mean):
        return Difference(mean, count, None, None)
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * stdev(differences) / math.sqrt(count)
    return Difference(mean, count, mean - half, mean + half)


def without_duplicates(runs: Sequence[Read]) -> tuple[list[Read], list[Duplicate]]:
    """Of runs that differ in nothing but their names the one with the most rounds, the first of equals; and the others.

    For pictures, which would show the same twice. A comparison refuses such runs: pairs must be those that were meant.
    """
    alike: list[list[Read]] = []
    for run in runs:
        for same in alike:
            if all(getattr(run, what) == getattr(same[0], what) for what in ("settings", "seed", "data", "layers")):
                same.append(run)
                break
        else:
            alike.append([run])
    shown = [max(same, key=lambda run: len(run.history.rounds)) for same in alike]
    return shown, [
        Duplicate(run, one) for one, same in zip(shown, alike, strict=True) for run in same if run is not one
    ]


def _numbers_differ(one: History, other: History) -> bool:
    """Whether evaluations of the same rounds gave other numbers; NaN is like NaN."""
    known = {m.round: repr((m.accuracy, m.loss)) for m in other.series()}
    return any(repr((m.accuracy, m.loss)) != known.get(m.round, repr((m.accuracy, m.loss))) for m in one.series())


def grouped(runs: Sequence[Read]) -> dict[str, dict[int, Read]]:
    """Runs by the name of their group and their seed, in the order given."""
    groups: list[dict[int, Read]] = []
    for run in runs:
        for group in groups:
            if next(iter(group.values())).settings == run.settings:
                if run.seed in group:
                    raise InputError(
                        f"{group[run.seed].name} and {run.name} have the same settings and the same seed {run.seed}; "
                        "name one of them."
                    )
                group[run.seed] = run
                break
        else:
            groups.append({run.seed: run})
    firsts = [next(iter(group.values())).settings for group in groups]
    fields = dict.fromkeys(field for one in firsts for field in one)
    differing = [f for f in fields if f != "algorithm.name" and any(one.get(f) != firsts[0].get(f) for one in firsts)]
    algorithms = [str(one.get("algorithm.name", "run")) for one in firsts]
    short = sweeps.short_names(differing)
    names = []
    for settings, algorithm in zip(firsts, algorithms, strict=True):
        # An algorithm's own parameters tell nothing where there is only one group of it.
        told = [] if algorithms.count(algorithm) == 1 else [f for f in differing if f in settings]
        names.append(" ".join([algorithm, *(f"{short[f]}={sweeps.said(settings[f])}" for f in told)]))
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return dict(zip(names, groups, strict=True))


def _base(by_name: Mapping[str, Mapping[int, Read]], wanted: str) -> str:
    if wanted in by_name:
        return wanted
    fits = [
        name
        for name, group in by_name.items()
        if any(wanted in (run.name, Path(run.name).name, run.settings.get("algorithm.name")) for run in group.values())
    ]
    if len(fits) > 1:
        raise InputError(f"--base {named(wanted)} may be {' or '.join(fits)}; name one of them in full.")
    if not fits:
        raise unknown("group of runs", wanted, list(by_name))
    return fits[0]


def _which_kept(runs: Sequence[Read], what: str, said: str) -> tuple[list[Read], list[str]]:
    """The runs that can be compared in something, and a sentence on each of the others, of earlier versions."""
    lacking = [run.name for run in runs if getattr(run, what) is None]
    known = [run for run in runs if getattr(run, what) is not None]
    return known, [f"{name} kept no {said} the others' cannot be told." for name in lacking]


def _check_data(runs: Sequence[Read]) -> list[str]:
    """Refuse runs on other data; say where the same seed dealt them otherwise."""
    known, warnings = _which_kept(runs, "data", "digests of its data: whether they are")
    firsts: dict[int, Read] = {}
    for run in known:
        other = _differ(known[0], run, [key for key in WHAT if key not in _OF_THE_SEED])
        if other:
            raise InputError(
                f"{known[0].name} and {run.name} cannot be compared, they differ in {' and '.join(other)}; compare "
                "runs on the same data."
            )
        first = firsts.setdefault(run.seed, run)
        dealt = _differ(first, run, _OF_THE_SEED)
        if dealt:
            warnings.append(f"{first.name} and {run.name} have the same seed, but differ in {' and '.join(dealt)}.")
    return warnings


def _differ(one: Read, two: Read, keys: Iterable[str]) -> list[str]:
    before, now = one.data or {}, two.data or {}
    return [WHAT[key] for key in keys if before.get(key) != now.get(key)]


def _check_models(runs: Sequence[Read]) -> list[str]:
    known, warnings = _which_kept(runs, "layers", "record of its model: whether it is")
    others = [run.name for run in known if run.layers != known[0].layers]
    if others:
        warnings.append(f"the model or loss of {', '.join(others)} is not that of {known[0].name}.")
    return warnings


def _check_settings(runs: Sequence[Read]) -> list[str]:
    """Say in what runs differ beside algorithm and seed: the names of the groups need not tell it."""
    fields = dict.fromkeys(field for run in runs for field in run.settings if not field.startswith("algorithm."))
    other = [f for f in fields if any(run.settings.get(f) != runs[0].settings.get(f) for run in runs)]
    return [f"the runs differ in {', '.join(map(named, other))} as well as in algorithm or seed."] if other else []


def _check_target(runs: Sequence[Read], target: float) -> list[str]:
    """Say which runs were ended before they could reach the target: that they never did says nothing of them."""
    return [
        f"{run.name} was ended by `until` after round {len(run.history.rounds)}, before it reached {target:.4g}."
        for run in runs
        if run.enough and run.history.rounds_to(target) is None
    ]


def _check_rounds(runs: Sequence[Read]) -> list[str]:
    warnings = []
    for run in runs:
        done = len(run.history.rounds)
        if run.rounds is not None and done < run.rounds and not run.enough:
            warnings.append(f"{run.name} has done {done} of {run.rounds} rounds.")
        if math.isnan(run.history.reported().last):
            warnings.append(f"{run.name} has no test accuracy.")
    if len({len(run.history.rounds) for run in runs}) > 1:
        warnings.append("the runs have done different numbers of rounds, so last, mean and best are of different ones.")
    return warnings


def by_field(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables by dotted field: ``training.lr``."""
    fields: dict[str, Any] = {}
    for key, value in table.items():
        fields |= by_field(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return fields
