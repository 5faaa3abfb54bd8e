"""What is kept of tuning for good: of every trial and of every run after it, its configuration and its curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedkeel.algorithms.validate import Settings
from fedkeel.errors import DataError, InputError
from fedkeel.papers.records import Ended, Series
from fedkeel.runs.recorded import FORMAT, RECORDS, read_record, write_record
from fedkeel.runs.reported import Reported, reported
from fedkeel.tuning.spaces import Value

Stage = Literal["trial", "final"]


class Tried(Settings):
    """One run: a trial on held-out samples, or one after tuning on the test set."""

    format: int = FORMAT
    contest: str
    algorithm: str
    stage: Stage
    number: int = Field(ge=0)
    """Of the trial, from 0, or the seed of a run after tuning."""
    chosen: dict[str, Value]
    """The values that were tried, by field; False: left out."""
    space: dict[str, Any]
    """What they were chosen from."""
    trials: int = Field(ge=1)
    """The budget: how many trials everybody has."""
    seeds: int = Field(ge=0)
    """How many runs everybody was to have after tuning; more may follow."""
    key: str
    """Decided by everything that decides the numbers; see ``papers.plan.key``."""
    experiment: dict[str, Any]
    fedkeel: str
    commit: str | None = None
    environment: dict[str, Any] = {}
    rounds: int = Field(ge=0)
    ended: Ended
    diverged: str | None = None
    series: dict[str, Series]
    """``accuracy``, ``loss`` and, after tuning, ``bytes``: of the reported model; of others as ``accuracy:global``. A
    trial's are those on held-out samples."""
    steps: int = Field(ge=0)
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    seconds: float = Field(ge=0)

    @property
    def name(self) -> str:
        """Of its file."""
        return name_of(self.algorithm, self.stage, self.number)

    @property
    def has_diverged(self) -> bool:
        """Whether it ended without a usable model."""
        return self.ended == "diverged"

    @property
    def reported(self) -> Reported:
        """Accuracies of the last round and of the last tenth; 0 for a run that diverged, the worst that there is."""
        if self.has_diverged:
            return Reported(0.0, 0.0, 0.0)
        rounds, values = self.series["accuracy"]
        points = [(t, value) for t, value in zip(rounds, values, strict=True) if value is not None]
        if not points:
            raise InputError(
                f"{self.name} of {self.contest} has no accuracy: tuning goes by it, and no answer is right or wrong "
                "under this loss."
            )
        return reported(points, self.rounds)

    @property
    def value(self) -> float:
        """What tuning maximises: the mean accuracy of the last tenth of the rounds."""
        return self.reported.late


def name_of(algorithm: str, stage: Stage, number: int) -> str:
    """``feddc--trial03`` or ``feddc--seed1``."""
    return f"{algorithm}--trial{number:02}" if stage == "trial" else f"{algorithm}--seed{number}"


def read(path: Path) -> Tried:
    """A record from its file."""
    record = read_record(path, Tried)
    if (record.name, record.contest) != (path.stem, path.parent.name):
        raise DataError(f"the record {path} is that of {record.contest}/{record.name}; put it back, or remove it.")
    return record


def write(folder: Path, record: Tried) -> Path:
    """Put a record into a folder of records."""
    return write_record(folder / record.contest / f"{record.name}.json", record)


@dataclass(frozen=True)
class Collected:
    """The records of one contest."""

    found: Mapping[tuple[str, Stage, int], Tried]

    @classmethod
    def of(cls, contest: str, *folders: Path) -> Collected:
        """Those of working folders and published ones; the first folder that has any of an algorithm has them all."""
        found: dict[tuple[str, Stage, int], Tried] = {}
        for folder in folders:
            inner = folder / RECORDS if (folder / RECORDS).is_dir() else folder
            here = [read(path) for path in sorted((inner / contest).glob("*.json"))]
            known = {algorithm for algorithm, _, _ in found}
            found |= {(one.algorithm, one.stage, one.number): one for one in here if one.algorithm not in known}
        return cls(found)

    def trials(self, algorithm: str) -> list[Tried]:
        """By number."""
        return [self.found[key] for key in sorted(self.found) if key[:2] == (algorithm, "trial")]

    def finals(self, algorithm: str) -> list[Tried]:
        """By seed."""
        return [self.found[key] for key in sorted(self.found) if key[:2] == (algorithm, "final")]

    def algorithms(self) -> list[str]:
        """Those that have any."""
        return list(dict.fromkeys(algorithm for algorithm, _, _ in self.found))


def best(trials: list[Tried]) -> Tried:
    """The trial with the highest value; the first of equals."""
    return max(trials, key=lambda one: (one.value, -one.number))
