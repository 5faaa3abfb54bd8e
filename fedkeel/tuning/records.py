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
from fedkeel.tuning.spaces import AVERAGE, Value

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
    """The values that were tried, by field; False: left out. After tuning, the ``choice`` of the best trial."""
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
    """``accuracy``, ``loss`` and, after tuning, ``bytes``: of the reported model; of others as ``accuracy:global``, in
    the algorithm's order. A trial's are those on held-out samples."""
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
        return self._accuracies("accuracy")

    @property
    def _measured(self) -> list[str]:
        """The series of the reported model, then of the others, of which the algorithm's own comes first."""
        return [name for name in self.series if name.partition(":")[0] == "accuracy"]

    def _accuracies(self, name: str) -> Reported:
        if self.has_diverged:
            return Reported(0.0, 0.0, 0.0)
        rounds, values = self.series[name]
        points = [(t, value) for t, value in zip(rounds, values, strict=True) if value is not None]
        if not points:
            raise InputError(
                f"{self.name} of {self.contest} has no accuracy: tuning goes by it, and no answer is right or wrong "
                "under this loss."
            )
        return reported(points, self.rounds)

    @property
    def value(self) -> float:
        """What tuning maximises: the mean accuracy of the last tenth of the rounds; of a trial, the better model's."""
        return self.reported.late if self.stage == "final" else max(self._of_trial)

    @property
    def choice(self) -> dict[str, Value]:
        """The values of a run after tuning: those of this trial, and the average over rounds where it was the better.

        Between equals the algorithm's own model.
        """
        if self.stage == "final":
            return self.chosen
        averaged, own = self._of_trial
        return self.chosen | {AVERAGE: self.experiment["evaluation"]["average"] if averaged > own else False}

    @property
    def _of_trial(self) -> tuple[float, float]:
        """Of the average over rounds, and of the model that the algorithm itself reports."""
        if self.has_diverged:
            return 0.0, 0.0
        if len(self._measured) < 2:
            raise DataError(
                f"the record {self.name} of {self.contest} has not the two models that a trial measures, the average "
                "over rounds and the algorithm's own; remove it to run it again."
            )
        averaged, own = (self._accuracies(name).late for name in self._measured[:2])
        return averaged, own


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
