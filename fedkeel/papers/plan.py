"""From tables and figures to the runs that they need: each once, however many exhibits show it.

A cell is a method in a column, or a curve or bar in a panel. Its runs, one for each seed, are experiments; two that
would compute the same have the same key and are computed once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedkeel import config
from fedkeel.engine.settings import Until
from fedkeel.errors import FedkeelError, InputError, unknown
from fedkeel.papers.format import Column, Exhibit, Line, Measure, Panel, Paper, Scale, Setting, papers, sections_of
from fedkeel.papers.records import Record, name_of

IN_ONE_PROCESS = {"executor": "stacked", "workers": 1, "threads": 1}
"""How runs are computed: their bits depend on no number of cores, and several go beside each other. Clients of small
models are stacked, which takes a tenth of the time for FedDC's synthetic sets."""


@dataclass(frozen=True)
class Planned:
    """One run, wholly specified but for the work it shares with another."""

    paper: str
    setting: str
    scale: Scale
    method: str
    seed: int
    experiment: config.Experiment
    key: str
    until: Until | None = None
    """Where everybody who wants it is content; None: after all rounds."""
    like: Planned | None = None
    """The run whose local steps it shares among its clients."""
    sets: tuple[tuple[str, Any], ...] = ()
    """Options of the prediction sets to measure after its last round; empty: none."""
    drawn: tuple[str, ...] = ()
    """Names of values that the paper's figures show."""
    cut_from: int | None = None
    """How many rounds it has, where it is to stop earlier for now."""

    @property
    def name(self) -> str:
        """Of its folder and record."""
        return name_of(self.setting, self.method, self.seed, self.scale)

    @property
    def rounds(self) -> int:
        """Those to compute."""
        return self.experiment.training.rounds

    @property
    def budget(self) -> int:
        """Those that the setting has."""
        return self.cut_from or self.rounds

    def served_by(self, record: Record | None) -> bool:
        """Whether a record is of this run and has all that is wanted of it."""
        return record is not None and record.key == self.key and self.is_whole(record)

    def is_whole(self, record: Record) -> bool:
        """Whether a record of this run, with whatever seed, came far enough."""
        if record.ended == "diverged":
            return True
        if self.sets and not record.sets:
            return False
        return record.rounds >= self.rounds or _met(self.until, record)


@dataclass(frozen=True)
class Cell:
    """A method in a column or panel, over all seeds; or why it has no runs."""

    exhibit: str
    part: str
    line: Line
    scale: Scale
    """Of its records: ``full`` where nothing had to be reduced."""
    measures: tuple[Measure, ...] = ()
    runs: tuple[Planned, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class Plan:
    """The cells of some exhibits and the runs that they need."""

    cells: tuple[Cell, ...]
    runs: tuple[Planned, ...]
    """Each once, and after the one whose work it shares."""


def _met(target: Until | None, record: Record) -> bool:
    """Whether a record reached a target; ours is the run's own question, so asked of the same numbers."""
    if target is None or "accuracy" not in record.series or "loss" not in record.series:
        return False
    rounds, accuracy = record.series["accuracy"]
    points = zip(rounds, accuracy, record.series["loss"][1], strict=True)
    return any(t > 0 and a is not None and x is not None and target.met(a, x) for t, a, x in points)


def plan(
    exhibits: Iterable[Exhibit],
    scale: Scale = "full",
    only: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int | None = None,
    rounds: int | None = None,
) -> Plan:
    """Cells and runs of some tables and figures.

    ``only`` keeps these columns or panels, ``methods`` these lines, by id or algorithm; ``seeds`` is how many (0, 1, …)
    in place of what each column says, ``rounds`` how many at most for now. What needs something that cannot be taken
    for granted is run only if named.
    """
    chosen = list(exhibits)
    _check_named("column or panel", only, {part.id for one in chosen for part in one.parts})
    offered = {name for one in chosen for name in _lines_named(one)}
    _check_named("method of these tables and figures", methods, offered)
    cells = tuple(
        _shortened(_cell(one, part, line, scale, part.id in only, seeds), rounds)
        for one in chosen
        for part in one.parts
        if not only or part.id in only
        for line in part.lines
        if not methods or {line.method, papers()[one.paper].methods[line.method].algorithm} & set(methods)
    )
    runs = _together(cells)
    return Plan(
        tuple(replace(cell, runs=tuple(runs[run.name, run.paper] for run in cell.runs)) for cell in cells),
        tuple(_leaders_first(runs.values())),
    )


def _check_named(kind: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, sorted(known))


def _lines_named(exhibit: Exhibit) -> Iterator[str]:
    for part in exhibit.parts:
        for line in part.lines:
            yield line.method
            yield papers()[exhibit.paper].methods[line.method].algorithm


def _cell(exhibit: Exhibit, part: Column | Panel, line: Line, scale: Scale, is_named: bool, seeds: int | None) -> Cell:
    paper = papers()[exhibit.paper]
    setting = paper.settings[line.setting]
    measures = part.measures if isinstance(part, Column) else (part.measure or _end_of(part),)
    why_not = _why_not(setting, scale, is_named)
    here = _scale(setting, scale)
    cell = Cell(exhibit.id, part.id, line, here, measures, why_not=why_not)
    if why_not:
        return cell
    count = seeds or (1 if scale == "smoke" else part.seeds or exhibit.seeds)
    until = target(part.measures) if isinstance(part, Column) else None
    runs = [replace(planned(paper, line.setting, line.method, here, seed), until=until) for seed in range(count)]
    if any(measure.metric.startswith("train_") for measure in measures):
        _check_measured_in_training(runs[0])
    return replace(cell, runs=tuple(runs))


def _shortened(cell: Cell, rounds: int | None) -> Cell:
    """The same cell with the first rounds of its runs only: what they tell already is judged, and they can go on."""
    if rounds is None:
        return cell
    return replace(cell, runs=tuple(_first_rounds(run, rounds) for run in cell.runs))


def _first_rounds(run: Planned, rounds: int) -> Planned:
    """Up to the last evaluation in so many rounds, or the first: one for the cut alone would stay in the record."""
    every = run.experiment.evaluation.every
    rounds = max(every, rounds // every * every)
    if run.rounds <= rounds:
        return run
    training = run.experiment.training.model_copy(update={"rounds": rounds})
    experiment = run.experiment.model_copy(update={"training": training})
    if key(experiment, run.like, run.sets) != run.key:
        raise InputError(
            f"the run {run.name} of {run.paper} cannot be cut after round {rounds}: its numbers depend on how long "
            f"it is ({run.rounds} rounds); leave --rounds out, or name other columns with --only."
        )
    return replace(run, experiment=experiment, cut_from=run.rounds)


def _end_of(panel: Panel) -> Measure:
    """What is said of a curve in a word: where it ends."""
    return Measure(kind="final", metric=panel.metric)


def _check_measured_in_training(run: Planned) -> None:
    if not run.experiment.evaluation.train:
        raise InputError(
            f"{run.paper}.toml: settings.{run.setting}.evaluation: a table or figure asks for results on training "
            "samples; give train = true."
        )


def _scale(setting: Setting, scale: Scale) -> Scale:
    """Where nothing has to be reduced, the full runs serve."""
    return "full" if scale == "reduced" and setting.reduced and not setting.reduced.sections() else scale


def _why_not(setting: Setting, scale: Scale, is_named: bool) -> str:
    if scale == "reduced" and setting.reduced is None:
        return "it has no reduced form: run it with --scale full"
    if scale == "full" and setting.needs and not is_named:
        needed = [need for need in setting.needs if not need.startswith("data:")]
        if needed:
            return f"it needs {' and '.join(map(said, needed))}: name it with --only to run it here all the same"
    return ""


def said(need: str) -> str:
    """What a setting needs, in words."""
    kind, _, which = need.partition(":")
    if kind == "gpu":
        return "a GPU"
    return {"data": f"the data set {which}", "weights": f"pre-trained weights ({which})"}[kind]


def target(measures: Sequence[Measure]) -> Until | None:
    """The result with which a run can end for these measures: the hardest, if all ask for rounds to a test result."""
    hardest: dict[str, float] = {}
    for measure in measures:
        if measure.kind != "rounds_to" or measure.metric not in ("accuracy", "loss"):
            return None
        if not isinstance(measure.target, float | int):
            return None
        harder = max if measure.metric == "accuracy" else min
        hardest[measure.metric] = harder(hardest.get(measure.metric, measure.target), measure.target)
    return Until(**hardest) if hardest else None


def _together(cells: Iterable[Cell]) -> dict[tuple[str, str], Planned]:
    """Every run once, with the target that contents everybody; those whose work is shared go to their end."""
    found: dict[tuple[str, str], Planned] = {}

    def add(run: Planned) -> None:
        before = found.get((run.name, run.paper))
        found[run.name, run.paper] = run if before is None else replace(run, until=_both(before.until, run.until))

    for cell in cells:
        for run in cell.runs:
            add(run)
            if run.like is not None:
                add(run.like)
    by_key: dict[str, Until | None] = {}
    for run in found.values():  # runs of one key are one run under several names
        by_key[run.key] = _both(by_key[run.key], run.until) if run.key in by_key else run.until
    return {name: replace(run, until=by_key[run.key]) for name, run in found.items()}


def _both(one: Until | None, other: Until | None) -> Until | None:
    """What is enough for both."""
    if one is None or other is None or (one.accuracy is None) != (other.accuracy is None):
        return None
    if (one.loss is None) != (other.loss is None):
        return None
    accuracy = None if one.accuracy is None else max(one.accuracy, other.accuracy or 0.0)
    return Until(accuracy=accuracy, loss=None if one.loss is None or other.loss is None else min(one.loss, other.loss))


def _leaders_first(runs: Iterable[Planned]) -> list[Planned]:
    listed = list(runs)
    leaders = {run.like.name for run in listed if run.like is not None}
    return sorted(listed, key=lambda run: run.name not in leaders)


@cache
def _planned(paper: str, setting: str, method: str, scale: Scale, seed: int) -> Planned:
    return _made(papers()[paper], setting, method, scale, seed)


def planned(paper: Paper, setting: str, method: str, scale: Scale = "full", seed: int = 0) -> Planned:
    """One run, to its last round."""
    if papers().get(paper.id) is paper:
        return _planned(paper.id, setting, method, scale, seed)
    return _made(paper, setting, method, scale, seed)


def _made(paper: Paper, setting: str, method: str, scale: Scale, seed: int) -> Planned:
    table = sections_of(paper, setting, method, scale)
    leader = paper.methods[method].work_of
    like = None if leader is None else _made(paper, setting, leader, scale, seed)
    if like is not None and like.like is not None:
        raise InputError(f"{paper.id}.toml: methods.{method}.work_of: {leader} shares the work of another itself.")
    if like is not None:
        for kind in ("epochs", "steps"):
            table["training"].pop(kind, None)
    name = name_of(setting, method, seed, scale)
    try:
        (experiment,) = config.expand(table | {"seed": seed, "name": name, "run": IN_ONE_PROCESS}, [])
    except FedkeelError as error:
        raise InputError(f"{paper.id}.toml: settings.{setting} with methods.{method} ({scale}): {error}") from None
    sets = tuple(sorted(paper.settings[setting].sets.items()))
    return Planned(
        paper.id,
        setting,
        scale,
        method,
        seed,
        experiment,
        key(experiment, like, sets),
        like=like,
        sets=sets,
        drawn=paper.drawn_values,
    )


def key(experiment: config.Experiment, like: Planned | None = None, sets: Sequence[tuple[str, Any]] = ()) -> str:
    """SHA-256 over all that decides the numbers of a run, and nothing that decides only how many of them there are.

    Names, ``run.*``, ``measure.*``, ``training.until`` and (unless the learning rate follows a cosine over them)
    ``training.rounds`` are left out, as are fields at their defaults, so that a field that is added later changes no
    key. A run that shares another's work has that run's key and length in it, and one of which prediction sets are
    measured their options: they are those of its last round, so that its rounds belong to it as well.
    """
    table = experiment.model_dump(exclude_defaults=True)
    for name in ("name", "run", "measure"):
        table.pop(name, None)
    training = dict(table.get("training", {}))
    training.pop("until", None)
    if experiment.training.lr_schedule != "cosine":
        training.pop("rounds", None)
    table |= {"training": training, "algorithm": {"name": experiment.algorithm.name, **experiment.algorithm_params()}}
    if like is not None:
        table["work_of"] = [like.key, like.rounds]
    if sets:
        table["sets"] = [[*map(list, sets)], experiment.training.rounds]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
