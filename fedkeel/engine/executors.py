"""How the clients of this process are computed: one after the other, or by worker processes.

An executor takes a ``Job`` (a call, with the data and memory of the called clients) and gives the ``Outcome`` with
everything stacked in client order. ``serial`` is the slow, obviously correct reference that every other executor is
tested against. An executor also evaluates models, since whoever has idle processes can share that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from fedkeel.engine.client import Work, answer_each
from fedkeel.engine.exchange import Model, Outcome, gather
from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.samples import Samples, Scored
from fedkeel.learning.task import Score, Seeds, Task


@dataclass(frozen=True)
class Job(Work):
    """The work of all called clients; and models to evaluate on the side."""

    data: Samples
    exam: tuple[Model, ...] = ()
    """Models to evaluate on the test set, by whoever has nothing to train."""

    @property
    def samples(self) -> Samples:
        """Of all clients, and the test set."""
        return self.data

    @property
    def exam_seeds(self) -> Seeds:
        """Of what models draw in the exam; they are of the state that this round starts from, and so is the number."""
        return part_seeds(self.seed, Purpose.EVALUATION, self.round.t)


class Computing(Protocol):
    """Whatever computes the clients of a run, here or elsewhere, as far as a run keeps a record of it."""

    name: str

    @property
    def lanes(self) -> int:
        """Workers for whom clients are grouped. Bits can depend on it; on the number of processes they do not."""

    def keep(self, lanes: int) -> None:
        """Group clients for so many workers, as a resumed run did before, unless their number was asked for."""

    def describe(self) -> str:
        """What it does on this machine, for people and for the record."""

    def close(self) -> None:
        """Let go of whatever is held between rounds."""


class Executor(Computing, Protocol):
    """Computes the clients of a round in this process and its workers."""

    @property
    def shares(self) -> bool:
        """Whether several processes share the work, so that an exam beside a round uses time that one would idle."""

    def run(self, job: Job) -> Outcome:
        """Train every client of the job; the outcome may lie in memory that the next call overwrites."""

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        """A model (w [d], b [m]) on the test set or the validation samples; ``seeds`` as in ``Task.evaluate``."""


class Serial:
    """One client after the other, in this process."""

    name = "serial"
    shares = False
    lanes = 1

    def keep(self, lanes: int) -> None:
        pass

    def run(self, job: Job) -> Outcome:
        return examined(job, gather(answer_each(job, [[i] for i in range(len(job.clients.ids))])))

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        return task.evaluate(w, b, *samples.to_score(on), seeds)

    def describe(self) -> str:
        return "serial"

    def close(self) -> None:
        pass


def examined(job: Job, outcome: Outcome) -> Outcome:
    """The outcome with the scores of the job's exam, evaluated here and now."""
    if not job.exam:
        return outcome
    test = job.samples.test
    return replace(outcome, scores=tuple(job.task.evaluate(w, b, *test, job.exam_seeds) for w, b in job.exam))
