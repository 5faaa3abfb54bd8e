"""How the clients of a round are computed.

An executor takes a ``Job`` (one round, its cohort) and gives the ``Outcome`` with everything stacked in client order.
``serial`` is the slow, obviously correct reference that every other executor is tested against. An executor also
evaluates models, since whoever has idle processes can share that out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Clients, Local, Problem, Round
from fedkeel.algorithms.registry import is_registered
from fedkeel.algorithms.state import Message, PerClient, State
from fedkeel.engine.randomness import Purpose, part_seeds, torch_generator, torch_seed
from fedkeel.engine.samples import ClientBatches, Samples, Scored, full_batches
from fedkeel.engine.schedule import Schedule
from fedkeel.engine.stacking import stacked
from fedkeel.errors import ModelError
from fedkeel.learning.drawing import Keyed, held_by, keyed, put_aside
from fedkeel.learning.loop import Sgd, Trained
from fedkeel.learning.task import Batch, Score, Seeds, Task

Model = tuple[Tensor, Tensor]
"""Parameters [d] and buffers [m]."""


@dataclass(frozen=True)
class Job:
    """One round of local training, for the whole cohort; and models to evaluate on the side."""

    algorithm: Algorithm
    task: Task
    problem: Problem
    samples: Samples
    schedule: Schedule
    seed: int
    round: Round
    clients: Clients
    message: Message
    states: dict[str, list[Tensor]]
    """What the clients remember, by name, client by client: as it lies in memory, not copied together."""
    buffers: Tensor
    """The buffers that each client starts from [S, m]."""
    steps: Tensor
    steps_per_epoch: Tensor
    sgd: Sgd
    exam: tuple[Model, ...] = ()
    """Models to evaluate on the test set, by whoever has nothing to train."""

    @property
    def exam_seeds(self) -> Seeds:
        """Of what models draw in the exam; they are of the state that this round starts from, and so is the number."""
        return part_seeds(self.seed, Purpose.EVALUATION, self.round.t)

    @property
    def draws_nothing(self) -> bool:
        """Whether the clients' rounds are known to draw nothing from generators that everybody shares."""
        return self.task.draws_nothing and is_registered(self.algorithm)

    def keyed(self, client: int) -> AbstractContextManager[Keyed]:
        """Let all that a client's round draws follow from seed, round and client."""
        seed = torch_seed(self.seed, Purpose.DROPOUT, self.round.t, client)
        own = [*self.task.generators, *held_by([self.algorithm])]
        return keyed(seed, self.task.device, own)

    def on(self, device: torch.device) -> Job:
        """The same round with everything that clients see on a device."""
        if device.type == "cpu":
            return self
        problem = self.problem
        return replace(
            self,
            problem=replace(
                problem, w0=problem.w0.to(device), b0=problem.b0.to(device), sizes=problem.sizes.to(device)
            ),
            clients=replace(self.clients, sizes=self.clients.sizes.to(device)),
            message=_moved_to(device, self.message),
            states={name: [row.to(device) for row in rows] for name, rows in self.states.items()},
            buffers=self.buffers.to(device),
            steps=self.steps.to(device),
            steps_per_epoch=self.steps_per_epoch.to(device),
        )

    def take(self, rows: Sequence[int]) -> Job:
        """The same round for some clients of the cohort only; what they were told stays as it is."""
        kept = list(rows)
        return replace(
            self,
            clients=self.clients.take(kept),
            message=State(
                **{k: PerClient(v.rows[kept]) if isinstance(v, PerClient) else v for k, v in self.message.items()}
            ),
            states={name: [rows[i] for i in kept] for name, rows in self.states.items()},
            buffers=self.buffers[kept],
            steps=self.steps[kept],
            steps_per_epoch=self.steps_per_epoch[kept],
        )

    def local(
        self,
        rows: slice,
        batches: Sequence[Batch],
        whole: Callable[[], Sequence[Batch]],
        pseudo: Callable[[], Sequence[Batch]],
    ) -> Local:
        """The round as some clients of the cohort see it, with their minibatches and all their data in one pass.

        ``pseudo`` makes the batches of the pass that becomes pseudo data, for the algorithms that ask for it.
        """
        return Local(
            task=self.task,
            problem=self.problem,
            round=self.round,
            clients=self.clients[rows],
            # In new memory, since the bits of a product may depend on how its factors are aligned.
            client=State(**{name: torch.stack(value[rows]) for name, value in self.states.items()}),
            message=State(
                **{k: PerClient(v.rows[rows]) if isinstance(v, PerClient) else v for k, v in self.message.items()}
            ),
            steps=self.steps[rows],
            steps_per_epoch=self.steps_per_epoch[rows],
            sgd=self.sgd,
            b=self.buffers[rows],
            make_batches=lambda: batches,
            full_batches=whole,
            make_pseudo_batches=pseudo,
        )


@dataclass(frozen=True)
class Outcome:
    """What the cohort's clients return, stacked in client order."""

    message: Message
    states: State
    buffers: Tensor
    """[S, m]."""
    loss: Tensor
    """Mean objective over each client's steps [S]."""
    norms: list[Tensor]
    """Per client the norms of its gradients before clipping [K_i]; empty without clipping."""
    moved: Tensor
    """How far local training moved each client's model before that was limited [S]; NaN without a limit."""
    scores: tuple[Score, ...] = ()
    """Of the models of the job's exam."""

    def on(self, device: torch.device) -> Outcome:
        """The same on a device."""
        return Outcome(
            _moved_to(device, self.message),
            _moved_to(device, self.states),
            self.buffers.to(device),
            self.loss.to(device),
            [norms.to(device) for norms in self.norms],
            self.moved.to(device),
            self.scores,
        )

    def lend_nothing_to(self, state: State) -> State:
        """The state with copies of whatever lies in the memory of this outcome, which may be overwritten."""
        memory = {value.untyped_storage().data_ptr() for value in [*self.message.values(), *self.states.values()]}
        lent = {
            name: value.clone()
            for name, value in state.items()
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in memory
        }
        return state.replace(**lent) if lent else state

    def take(self, rows: Sequence[int]) -> Outcome:
        """What some of the clients return."""
        kept = list(rows)
        return Outcome(
            _rows(self.message, kept),
            _rows(self.states, kept),
            self.buffers[kept],
            self.loss[kept],
            [self.norms[row] for row in kept],
            self.moved[kept],
            self.scores,
        )


class Executor(Protocol):
    """Computes the clients of a round."""

    name: str

    @property
    def shares(self) -> bool:
        """Whether several processes share the work, so that an exam beside a round uses time that one would idle."""

    @property
    def lanes(self) -> int:
        """Workers for whom clients are grouped. Bits can depend on it; on the number of processes they do not."""

    def keep(self, lanes: int) -> None:
        """Group clients for so many workers, as a resumed run did before, unless their number was asked for."""

    def run(self, job: Job) -> Outcome:
        """Train every client of the job; the outcome may lie in memory that the next call overwrites."""

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        """A model (w [d], b [m]) on the test set or the validation samples; ``seeds`` as in ``Task.evaluate``."""

    def describe(self) -> str:
        """What it does on this machine, for people and for the record."""

    def close(self) -> None:
        """Let go of whatever is held between rounds."""


class Serial:
    """One client after the other, in this process."""

    name = "serial"
    shares = False
    lanes = 1

    def keep(self, lanes: int) -> None:
        pass

    def run(self, job: Job) -> Outcome:
        return examined(job, gather(train_units(job, [[i] for i in range(len(job.clients.ids))])))

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


def train_one(job: Job, i: int) -> Outcome:
    """The local round of the cohort's i-th client."""
    client = job.clients.ids[i]
    local = local_of(job, i)
    try:
        with nullcontext() if job.draws_nothing else job.keyed(client):
            message, state = _local_round(job, local)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ModelError(
            f"client {client} has a minibatch of one sample, on which BatchNorm cannot train; "
            "choose another training.batch_size, training.drop_last = true, or a model without BatchNorm."
        ) from None
    trained = local.results[-1]
    return Outcome(message, state, trained.b, trained.loss, list(trained.norms), _moved(trained))


def train_together(job: Job) -> Outcome:
    """The local rounds of all clients of a job as one computation [K, ...].

    An algorithm that turns out to draw random numbers is computed client by client after all: what it drew for all
    clients at once would not be what it draws for each.
    """
    if job.draws_nothing:
        return _trained_together(job)
    with job.keyed(job.clients.ids[0]) as key:
        outcome = _trained_together(job)
        if not key.was_used():
            return outcome
    return gather([train_one(job, i) for i in range(len(job.clients.ids))])


def _trained_together(job: Job) -> Outcome:
    each = [local_of(job, i) for i in range(len(job.clients.ids))]
    dtype = job.task.dtype
    local = job.local(
        slice(None),
        stacked([one.batches for one in each], dtype),
        lambda: stacked([one.full_batches() for one in each], dtype),
        lambda: stacked([one.pseudo_batches for one in each], dtype),
    )
    message, state = _local_round(job, local)
    trained = local.results[-1]
    norms = [own[: int(steps)] for own, steps in zip(trained.norms, local.steps, strict=True)]
    return Outcome(message, state, trained.b, trained.loss, norms, _moved(trained))


def _local_round(job: Job, local: Local) -> tuple[Message, State]:
    if job.task.device.type == "cpu":
        return job.algorithm.local_round(local)
    with job.task.device:  # whatever an algorithm makes is made there
        return job.algorithm.local_round(local)


def train_group(job: Job, rows: Sequence[int]) -> Outcome:
    """The local rounds of some clients of the cohort: of one alone as ``serial`` does it, of several together."""
    return train_one(job, rows[0]) if len(rows) == 1 else train_together(job.take(rows))


def train_units(job: Job, units: Sequence[Sequence[int]]) -> list[Outcome]:
    """One unit after the other, in this process."""
    with nullcontext() if job.draws_nothing else put_aside(job.task.device):
        return [train_group(job, rows) for rows in units]


def _moved(trained: Trained) -> Tensor:
    return trained.loss.new_full(trained.loss.shape, torch.nan) if trained.moved is None else trained.moved


def local_of(job: Job, i: int) -> Local:
    """The round as the cohort's i-th client sees it."""
    client, t = job.clients.ids[i], job.round.t
    n = int(job.clients.sizes[i])

    def batches(plan: list[np.ndarray], purpose: Purpose) -> ClientBatches:
        augments = job.samples.transform.augment is not None
        augmentation = torch_generator(job.seed, purpose, t, client) if augments else None
        return ClientBatches(job.samples, client, plan, augmentation)

    return job.local(
        slice(i, i + 1),
        batches(job.schedule.batches(t, client, n, int(job.steps[i])), Purpose.AUGMENTATION),
        lambda: full_batches(job.samples, client),
        lambda: batches(job.schedule.pseudo_batches(t, client, n), Purpose.PSEUDO_DATA),
    )


def gather(outcomes: list[Outcome], rows: Sequence[int] | None = None) -> Outcome:
    """Several outcomes as one, in their order; or, if ``rows`` says which client each row is, in client order."""
    together = Outcome(
        _concatenated([outcome.message for outcome in outcomes]),
        _concatenated([outcome.states for outcome in outcomes]),
        torch.cat([outcome.buffers for outcome in outcomes]),
        torch.cat([outcome.loss for outcome in outcomes]),
        [norms for outcome in outcomes for norms in outcome.norms],
        torch.cat([outcome.moved for outcome in outcomes]),
    )
    if rows is None or list(rows) == list(range(len(rows))):
        return together
    return together.take(sorted(range(len(rows)), key=lambda place: rows[place]))


def _moved_to(device: torch.device, values: State) -> State:
    moved = {
        name: PerClient(value.rows.to(device))
        if isinstance(value, PerClient)
        else (value.to(device) if isinstance(value, Tensor) else value)
        for name, value in values.items()
    }
    return State(**moved)


def _rows(values: State, rows: list[int]) -> State:
    return State(**{name: value[rows] for name, value in values.items()})


def _concatenated(parts: list[State]) -> State:
    return State(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})
