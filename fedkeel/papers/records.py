"""What is kept of a run for good: configuration, versions and the compact history of every measurement.

Records in a working folder are made by ``fedkeel paper run``; those under ``results/`` are what is published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedkeel.algorithms.validate import Settings
from fedkeel.errors import DataError
from fedkeel.papers.format import Scale
from fedkeel.papers.sharing import Work
from fedkeel.runs.recorded import FORMAT, RECORDS, read_record, write_record

DIGITS = 6
"""Significant digits of stored measurements."""

Number = float | None
"""None: not finite, which JSON cannot say."""
Series = tuple[tuple[int, ...], tuple[Number, ...]]
"""Rounds, and the value after each."""
Values = tuple[tuple[int, ...], tuple[Number | tuple[Number, ...], ...]]
"""Rounds, and what the algorithm recorded in each: a number, or one for every client of the cohort."""
Ended = Literal["finished", "until", "diverged"]


class Record(Settings):
    """One run of one method in one setting, as far as it came."""

    format: int = FORMAT
    paper: str
    setting: str
    scale: Scale
    method: str
    seed: int = Field(ge=0)
    key: str
    """Decided by everything that decides the numbers; see ``plan.key``."""
    experiment: dict[str, Any]
    """The resolved experiment."""
    fedkeel: str
    """The version that ran it."""
    commit: str | None = None
    environment: dict[str, Any] = {}
    """Python, torch and the CPU's capability."""
    rounds: int = Field(ge=0)
    """How many were done."""
    ended: Ended
    """``finished``: all rounds asked for; ``until``: its target was met; ``diverged``: in the round after the last."""
    diverged: str | None = None
    """The sentence that a diverged run ended with."""
    series: dict[str, Series]
    """``accuracy`` and ``loss`` on the test set, ``train_accuracy`` and ``train_loss`` where measured, all of the model
    that the algorithm reports; of further candidates as ``accuracy:selected``."""
    values: dict[str, Values] = {}
    """What the algorithm recorded of itself, by name."""
    work: Work | None = None
    """What it shares with another method, if it does."""
    sets: tuple[tuple[float, float, float], ...] = ()
    """Prediction sets of the last model, where they were measured: coverage asked for and found, and mean size."""
    steps: int = Field(ge=0)
    """Local steps of all clients in all rounds."""
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    seconds: float = Field(ge=0)
    """Spent in rounds, without evaluations in between, on one core."""

    @property
    def name(self) -> str:
        """The name of its file and of its run's folder, without ending."""
        return name_of(self.setting, self.method, self.seed, self.scale)


def name_of(setting: str, method: str, seed: int, scale: Scale) -> str:
    """``mnist-d2-15--feddc--seed0``, with ``--reduced`` or ``--smoke`` behind it where it is not the full scale."""
    return f"{setting}--{method}--seed{seed}" + ("" if scale == "full" else f"--{scale}")


def rounded(value: float) -> Number:
    """A measurement as records hold it."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def series(points: Iterable[tuple[int, float]]) -> Series:
    """Pairs of a round and a measurement in compact form."""
    listed = list(points)
    return tuple(round for round, _ in listed), tuple(rounded(value) for _, value in listed)


def values(noted: Mapping[int, float | Mapping[int, float]]) -> Values:
    """What an algorithm noted under one name, by round; clients' numbers in the order of their ids."""
    return tuple(noted), tuple(
        tuple(rounded(value[client]) for client in sorted(value)) if isinstance(value, Mapping) else rounded(value)
        for value in noted.values()
    )


def read(path: Path) -> Record:
    """A record from its file."""
    record = read_record(path, Record)
    if record.name != path.stem:
        raise DataError(f"the record {path} is that of {record.name}; give it its name back, or remove it.")
    return record


@dataclass(frozen=True)
class Records:
    """All records of a folder: by paper, setting, method, scale and seed."""

    folder: Path
    found: dict[tuple[str, str, str, Scale, int], Record]

    @classmethod
    def of(cls, *folders: Path) -> Records:
        """Those in ``<folder>/<paper>/*.json``; of several folders, the first that has one counts.

        A working folder of ``fedkeel paper run`` may be named itself. A folder that is not there has none.
        """
        found: dict[tuple[str, str, str, Scale, int], Record] = {}
        for folder in folders:
            for path in _files(folder):
                one = read(path)
                if one.paper != path.parent.name:
                    raise DataError(f"the record {path} belongs to {one.paper}; move it to that folder, or remove it.")
                found.setdefault((one.paper, one.setting, one.method, one.scale, one.seed), one)
        return cls(folders[0] if folders else Path(), found)

    def get(self, paper: str, setting: str, method: str, seed: int, scale: Scale = "full") -> Record | None:
        """One record."""
        return self.found.get((paper, setting, method, scale, seed))

    def seeds(self, paper: str, setting: str, method: str, scale: Scale = "full") -> list[Record]:
        """The records of all seeds of a cell, by seed."""
        wanted = (paper, setting, method, scale)
        return [self.found[key] for key in sorted(self.found) if key[:4] == wanted]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.found[key] for key in sorted(self.found))

    def __len__(self) -> int:
        return len(self.found)


def _files(folder: Path) -> list[Path]:
    inner = folder / RECORDS
    return sorted((inner if inner.is_dir() else folder).glob("*/*.json"))


def path_of(folder: Path, record: Record) -> Path:
    """Where a record lies in a folder of records."""
    return folder / record.paper / f"{record.name}.json"


def write(folder: Path, record: Record) -> Path:
    """Put a record into a folder of records, in the place of an earlier one of the same run."""
    return write_record(path_of(folder, record), record)


@dataclass(frozen=True)
class Publication:
    """What became of one record when it was to be published."""

    record: Record
    done: Literal["new", "longer", "replaced", "same", "kept"]
    why: str = ""


def publish(source: Path, target: Path, replace: bool = False, papers: Iterable[str] = ()) -> list[Publication]:
    """Copy the records of a working folder to where they are published, but for those of smoke scale.

    A published record is replaced only by one of the same run that came further, unless ``replace`` says otherwise.
    """
    wanted, done = set(papers), []
    for record in Records.of(source):
        if record.scale != "smoke" and (not wanted or record.paper in wanted):
            done.append(_published(record, target, replace))
    return done


def _published(record: Record, target: Path, replace: bool) -> Publication:
    path = path_of(target, record)
    before = read(path) if path.exists() else None
    what: Literal["new", "longer", "replaced"] = "new"
    if before is not None:
        if before == record:
            return Publication(record, "same")
        if before.key != record.key:
            why, what = "it is of another configuration", "replaced"
        elif before.rounds >= record.rounds:
            why, what = f"it has {before.rounds} rounds already, this one has {record.rounds}", "replaced"
        else:
            why, what = "", "longer"
        if why and not replace:
            return Publication(record, "kept", why)
    write(target, record)
    return Publication(record, what)
