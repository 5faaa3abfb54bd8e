"""Which runs a picture is of: from what a person names to runs in groups, each read only as far as is asked."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkeel import arguments, build, changes, stored
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.api import Run
from fedkeel.calls import call_of
from fedkeel.comparison.groups import (
    Duplicate,
    Read,
    by_field,
    check_comparable,
    grouped,
    layers_of,
    read,
    without_duplicates,
)
from fedkeel.config import RunConfig
from fedkeel.data import Federation
from fedkeel.data.digest import differences, digests
from fedkeel.data.sources import GIVEN
from fedkeel.engine.rounds import RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError, InputError, invalid
from fedkeel.measure.settings import Measuring
from fedkeel.runs import same_data, same_model
from fedkeel.runs.connection import FILE
from fedkeel.runs.runner import Evaluation
from fedkeel.runs.store import ClientScore, Store

One = Run | str | os.PathLike[str]
Given = One | Iterable[One] | Mapping[str, One | Iterable[One]]
"""Runs, directories of runs, folders of such directories; or such by the names that they shall have."""
_ALLOWED = "a run, its directory, a folder of runs, a list of these, or a dict of these by name"


@dataclass(frozen=True)
class Source:
    """A run as pictures need it. What takes time to read is read when it is called for."""

    run: Read
    place: Path | None
    """Its directory; None where it is in memory alone."""
    scores: Callable[[], list[ClientScore]]
    federation: Callable[[], Federation]
    model: Callable[[], tuple[Simulation, RunState]]

    @property
    def directory(self) -> str:
        """Its name in sentences."""
        return self.run.name


@dataclass(frozen=True)
class Chosen:
    """Runs by the name of their group: one line, bar or panel is of one group, whose runs differ in their seed."""

    groups: dict[str, tuple[Source, ...]]
    duplicates: tuple[tuple[Source, Source], ...] = ()
    """Runs that were named but are not in the groups, each with the one that is there for it."""

    @property
    def sources(self) -> list[Source]:
        return [source for group in self.groups.values() for source in group]

    def check(self) -> list[str]:
        """What a reader must know before runs are drawn on the same axes; runs on other data are refused."""
        return [*self.left_out, *check_comparable([source.run for source in self.sources])]

    @property
    def left_out(self) -> list[str]:
        """A sentence on each run that stands for no line, since another one does."""
        return [str(Duplicate(left.run, shown.run)) for left, shown in self.duplicates]

    @property
    def setting(self) -> str:
        """What all runs have in common, in a line."""
        return setting_line([source.run for source in self.sources])


def choose(runs: Given, data_dir: Path | None = None, allow_plugins: bool = False) -> Chosen:
    """The runs that are meant, in groups of seeds; they may be going on, and nothing is written."""

    if not isinstance(runs, Mapping):
        return in_groups([source_of(one, data_dir, allow_plugins) for one in listed(runs)])
    named = {
        arguments.text("name of runs", name): [source_of(one, data_dir, allow_plugins) for one in listed(given)]
        for name, given in runs.items()
    }
    if not named or not all(named.values()):
        raise invalid("runs", _ALLOWED, runs)
    for name, group in named.items():
        seeds = [source.run.seed for source in group]
        if len(set(seeds)) < len(seeds) or any(s.run.settings != group[0].run.settings for s in group):
            raise InputError(f"runs under the name {name!r} must differ in their seed alone; give others other names.")
    return Chosen({name: tuple(group) for name, group in named.items()})


def in_groups(sources: Sequence[Source]) -> Chosen:
    """Runs that differ in their seed alone together, in the order given; of duplicates, one."""
    if not sources:
        raise invalid("runs", _ALLOWED, [])
    by_run = {id(source.run): source for source in sources}
    shown, duplicates = without_duplicates([source.run for source in sources])
    groups = grouped(shown)
    return Chosen(
        {_titled(name, group): tuple(by_run[id(run)] for run in group.values()) for name, group in groups.items()},
        tuple((by_run[id(one.left)], by_run[id(one.shown)]) for one in duplicates),
    )


def _titled(name: str, group: Mapping[int, Read]) -> str:
    """A group's name with the algorithm as it is written in print."""
    algorithm = str(next(iter(group.values())).settings.get("algorithm.name", ""))
    return ALGORITHMS[algorithm].title + name.removeprefix(algorithm) if algorithm in ALGORITHMS else name


def listed(given: object) -> list[Run | Path]:
    """Every run that is meant, in order."""
    if isinstance(given, Run):
        return [given]
    if isinstance(given, str | os.PathLike):
        return list(directories(arguments.path("run", given)))
    return [run for one in arguments.listed("runs", given, _ALLOWED) for run in listed(one)]


def directories(folder: Path) -> list[Path]:
    """The directory itself if it holds a run, else all below it that do, by name."""
    if (folder / FILE).exists() or not folder.is_dir():
        if not folder.exists():
            raise DataError(f"there is no folder {folder}; name the directory of a run, or one that holds runs.")
        return [folder]
    refused: list[OSError] = []
    found = []
    for place, below, files in os.walk(folder, onerror=refused.append):
        below.sort()
        if FILE in files:
            found.append(Path(place))
    if refused:
        raise DataError(f"{refused[0].filename} cannot be read: {refused[0].strerror}.")
    if not found:
        raise DataError(f"there is no run in {folder} or below it (no {FILE}); check the path.")
    return found


def source_of(run: Run | Path, data_dir: Path | None = None, allow_plugins: bool = False) -> Source:
    """A run, or the one in a directory; its history is read and compared with its digests now."""
    if isinstance(run, Path):
        return Source(
            read(run),
            run,
            lambda: _stored_scores(run),
            lambda: _dealt(run, data_dir),
            lambda: stored.read_run(run, data_dir, allow_plugins)[:2],
        )
    folder = run.directory
    known = _in_memory(run) if folder is None else read(folder)
    return Source(
        replace(known, history=run.history),
        folder,
        lambda: _scores_now(run) if folder is None else _stored_scores(folder),
        lambda: run.simulation.federation,
        lambda: (run.simulation, run.state),
    )


def _in_memory(run: Run) -> Read:
    simulation = run.simulation
    given = (simulation.algorithm, simulation.seed, simulation.training, simulation.faults, simulation.server.robust)
    call = call_of(*given, simulation.clock, Evaluation(), Measuring(), RunConfig())
    settings = {
        field: value for field, value in by_field(call.model_dump(exclude_none=True)).items() if field != "seed"
    }
    known, layers = digests(simulation.federation), layers_of(same_model.of(simulation))
    rounds, enough = simulation.training.rounds, run.ended == "until"
    return Read(run.label, simulation.seed, settings, rounds, known, layers, run.history, enough)


def _scores_now(run: Run) -> list[ClientScore]:
    split = run.simulation.client_split(run.state)
    return [
        ClientScore(run.state.t, client, split, score.accuracy, score.loss)
        for client, score in run.evaluate_clients().items()
    ]


def _stored_scores(directory: Path) -> list[ClientScore]:
    with closing(Store.reading(directory)) as store:
        return store.client_scores()


def _dealt(directory: Path, data_dir: Path | None) -> Federation:
    """The data of a run in its directory, as they were dealt; they must be those that it began with."""
    with closing(Store.reading(directory)) as store:
        text, before = store.configuration(), same_data.recorded(store)
    table = tomllib.loads(text)
    if "made_by" in table or table.get("data", {}).get("name") == GIVEN:
        raise InputError(
            f"the data of the run in {directory} were objects of a program, so only that program can show them: "
            "fedkeel.plot(run, …) with the run that fedkeel.train or fedkeel.run returned."
        )
    federation = build.make_federation(changes.stored(text, directory), data_dir)
    changed = [] if before is None else differences(before, digests(federation))
    if changed:
        said = same_data.said(changed, federation.dataset.name)
        raise DataError(
            f"the data of the run in {directory} cannot be shown: {said} those that it began with; put the old data "
            "back."
        )
    return federation


def setting_line(runs: Sequence[Read]) -> str:
    """Data, clients, partition, participation, model and seeds, as far as all runs have them in common."""

    def common(field: str) -> Any:
        values = [run.settings.get(field) for run in runs]
        return values[0] if all(value == values[0] for value in values) else None

    parts = []
    if common("data.name") not in (None, GIVEN):
        parts.append(str(common("data.name")))
        dealt = f"{common('partition.clients')} clients" if common("partition.clients") else ""
        if common("partition.rule"):
            alpha = common("partition.alpha")
            dealt += f", {common('partition.rule')}" + (f" {alpha:g}" if isinstance(alpha, int | float) else "")
        parts.append(dealt)
    if isinstance(common("training.participation"), int | float) and common("training.participation") < 1:
        parts.append(f"{100 * common('training.participation'):.4g} % a round")
    if common("model.name"):
        parts.append(str(common("model.name")))
    seeds = sorted({run.seed for run in runs})
    parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}")
    return " · ".join(part.strip(", ") for part in parts if part)
