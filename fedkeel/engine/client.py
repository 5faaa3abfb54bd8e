"""The clients' half of a round: a call is answered from a client's own samples and its own memory.

Simulator and worker process, cluster and site all come here. Whatever a client draws at random is keyed by (seed,
purpose, round, its id), so that it does not matter where it is computed, nor what was computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Answer, Clients, Local, Problem, Round, pace_of
from fedkeel.algorithms.registry import is_registered
from fedkeel.algorithms.state import Message, State
from fedkeel.engine.exchange import Call, Outcome, gather, taken
from fedkeel.engine.noted import as_clients_noted
from fedkeel.engine.optimisers import check_optimiser, local_optimiser
from fedkeel.engine.randomness import Moment, Purpose, torch_generator, torch_seed
from fedkeel.engine.samples import ClientBatches, ClientData, DataOfClients, full_batches
from fedkeel.engine.schedule import Schedule
from fedkeel.engine.settings import Training
from fedkeel.engine.stacking import stacked
from fedkeel.errors import InputError, ModelError
from fedkeel.learning.drawing import Keyed, held_by, keyed, keyed_if, put_aside
from fedkeel.learning.layout import Layout
from fedkeel.learning.loop import Sgd, Trained
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.task import Batch, Task


@dataclass(frozen=True)
class Equipment:
    """What every client of a run is given before its first round."""

    algorithm: Algorithm
    task: Task
    training: Training
    schedule: Schedule
    seed: int
    max_update_norm: float | None = None
    """Longer local updates are cut to this norm (``faults.max_update_norm``)."""

    def __post_init__(self) -> None:
        check_optimiser(self.algorithm, self.training)

    @property
    def buffer_rule(self) -> str:
        """What happens to BatchNorm statistics: ``average``, ``uniform``, ``local`` or ``freeze``."""
        return self.algorithm.buffers or self.training.buffers

    def first_state(self, N: int, common_steps: int) -> State:
        """What a client remembers before its first round, of N clients in all."""
        task = self.task
        with self.keyed(Moment.CLIENT_INIT):
            return self.algorithm.client_init(ProblemAtClient(task.w0, task.layout, task.b0, N, common_steps))

    def keyed(self, moment: Moment, t: int = 0) -> AbstractContextManager[object]:
        """What an algorithm of somebody's own draws follows from seed, round and moment."""
        known = is_registered(self.algorithm)
        seed = None if known else torch_seed(self.seed, Purpose.SERVER, t, moment)
        return keyed_if(seed, own=held_by([self.algorithm]))


class ProblemAtClient(Problem):
    """The problem as far as a client knows it: not how many samples the others have."""

    def __init__(self, w0: Tensor, layout: Layout, b0: Tensor, N: int, common_steps: int) -> None:
        for name, value in {"w0": w0, "layout": layout, "b0": b0, "common_steps": common_steps, "_N": N}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"ProblemAtClient(d={len(self.w0)}, N={self.N}, common_steps={self.common_steps})"

    @property
    def sizes(self) -> Tensor:
        raise InputError(
            "a client does not know how many samples others have: problem.sizes is for the server; use local.clients "
            "(its own sizes, N, n, S)."
        )

    @property
    def N(self) -> int:
        return int(self.__dict__["_N"])


@dataclass(frozen=True)
class Work:
    """A call, and what the called clients bring to it."""

    equipment: Equipment
    call: Call
    data: DataOfClients
    states: dict[str, list[Tensor]]
    """What the clients remember, by name, client by client: as it lies in memory, not copied together."""
    buffers: Tensor
    """The buffers that each client starts from [K, m]."""

    @property
    def algorithm(self) -> Algorithm:
        return self.equipment.algorithm

    @property
    def task(self) -> Task:
        return self.equipment.task

    @property
    def schedule(self) -> Schedule:
        return self.equipment.schedule

    @property
    def seed(self) -> int:
        return self.equipment.seed

    @property
    def round(self) -> Round:
        return self.call.round

    @property
    def clients(self) -> Clients:
        return self.call.clients

    @property
    def message(self) -> Message:
        return self.call.message

    @property
    def steps(self) -> Tensor:
        return self.call.steps

    @cached_property
    def steps_per_epoch(self) -> Tensor:
        """Batches in one pass over each client's data [K], as ``Training.steps_per_epoch`` has it."""
        training, sizes = self.equipment.training, self.clients.sizes
        spare = 0 if training.drop_last else training.batch_size - 1
        return ((sizes + spare) // training.batch_size).clamp(min=1)

    @property
    def sgd(self) -> Sgd:
        """The local optimiser of this round."""
        return local_optimiser(self.equipment.training, self.round.lr, self.equipment.max_update_norm)

    @property
    def draws_nothing(self) -> bool:
        """Whether the clients' rounds are known to draw nothing from generators that everybody shares."""
        return self.task.draws_nothing and is_registered(self.algorithm)

    def keyed(self, client: int) -> AbstractContextManager[Keyed]:
        """Let all that a client's round draws follow from seed, round and client."""
        seed = torch_seed(self.seed, Purpose.DROPOUT, self.round.t, client)
        own = [*self.task.generators, *held_by([self.algorithm])]
        return keyed(seed, self.task.device, own)

    @cached_property
    def problem(self) -> Problem:
        """What clients know of the problem."""
        task, place = self.task, self.buffers.device
        return ProblemAtClient(
            task.w0.to(place), task.layout, task.b0.to(place), self.clients.N, self.call.common_steps
        )

    def on(self, device: torch.device) -> Self:
        """The same with everything that clients see on a device."""
        if device.type == "cpu":
            return self
        return replace(
            self,
            call=self.call.on(device),
            states={name: [row.to(device) for row in rows] for name, rows in self.states.items()},
            buffers=self.buffers.to(device),
        )

    def take(self, rows: Sequence[int]) -> Self:
        """The same for some of the clients only; what they were told stays as it is."""
        kept = list(rows)
        return replace(
            self,
            call=self.call.take(kept),
            states={name: [rows[i] for i in kept] for name, rows in self.states.items()},
            buffers=self.buffers[kept],
        )

    def local(
        self,
        rows: slice,
        batches: Sequence[Batch],
        whole: Callable[[], Sequence[Batch]],
        pseudo: Callable[[], Sequence[Batch]],
        counts: Callable[[], Tensor],
    ) -> Local:
        """The round as some of the clients see it, with their minibatches and all their data in one pass.

        ``pseudo`` makes the batches of the pass that becomes pseudo data, and ``counts`` their samples by class, for
        the algorithms that ask for it.
        """
        return Local(
            task=self.task,
            problem=self.problem,
            round=self.round,
            clients=self.clients[rows],
            # In new memory, since the bits of a product may depend on how its factors are aligned.
            client=State(**{name: torch.stack(value[rows]) for name, value in self.states.items()}),
            message=taken(self.message, rows),
            steps=self.steps[rows],
            steps_per_epoch=self.steps_per_epoch[rows],
            sgd=self.sgd,
            b=self.buffers[rows],
            make_batches=lambda: batches,
            full_batches=whole,
            make_pseudo_batches=pseudo,
            count_classes=counts,
            pace=pace_of(self.algorithm, self.steps[rows], self.task.dtype),
        )


def answer(work: Work, rows: Sequence[int]) -> Outcome:
    """What some of the called clients return: one alone as ``serial`` does it, several as one computation."""
    return train_one(work, rows[0]) if len(rows) == 1 else train_together(work.take(rows))


def answer_each(work: Work, units: Sequence[Sequence[int]]) -> list[Outcome]:
    """What units of the called clients return, one unit after the other in this process."""
    with nullcontext() if work.draws_nothing else put_aside(work.task.device):
        return [answer(work, rows) for rows in units]


def train_one(work: Work, i: int) -> Outcome:
    """The local round of the i-th of the called clients."""
    client = work.clients.ids[i]
    local = local_of(work, i)
    try:
        with nullcontext() if work.draws_nothing else work.keyed(client):
            message, state, trained = _local_round(work, local)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ModelError(
            f"client {client} has a minibatch of one sample, on which BatchNorm cannot train; "
            "choose another training.batch_size, training.drop_last = true, or a model without BatchNorm."
        ) from None
    return _outcome(work, message, state, trained, list(trained.norms))


def train_together(work: Work) -> Outcome:
    """The local rounds of all called clients as one computation [K, ...].

    An algorithm that turns out to draw random numbers is computed client by client after all: what it drew for all
    clients at once would not be what it draws for each.
    """
    if work.draws_nothing:
        return _trained_together(work)
    with work.keyed(work.clients.ids[0]) as key:
        outcome = _trained_together(work)
        if not key.was_used():
            return outcome
    return gather([train_one(work, i) for i in range(len(work.clients.ids))])


def _trained_together(work: Work) -> Outcome:
    each = [local_of(work, i) for i in range(len(work.clients.ids))]
    dtype = work.task.dtype
    local = work.local(
        slice(None),
        stacked([one.batches for one in each], dtype),
        lambda: stacked([one.full_batches() for one in each], dtype),
        lambda: stacked([one.pseudo_batches for one in each], dtype),
        lambda: torch.cat([one.class_counts for one in each]),
    )
    message, state, trained = _local_round(work, local)
    norms = [own[: int(steps)] for own, steps in zip(trained.norms, local.steps, strict=True)]
    return _outcome(work, message, state, trained, norms)


def _local_round(work: Work, local: Local) -> Answer:
    if work.task.device.type == "cpu":
        return work.algorithm.local_round(local)
    with work.task.device:  # whatever an algorithm makes is made there
        return work.algorithm.local_round(local)


def _outcome(work: Work, message: Message, state: State, trained: Trained, norms: list[Tensor]) -> Outcome:
    noted = as_clients_noted(message.noted, len(trained.y), work.algorithm.name)
    sent = message.without_notes()
    return Outcome(sent, state, trained.b, trained.loss, norms, _moved(trained), noted=noted)


def _moved(trained: Trained) -> Tensor:
    return trained.loss.new_full(trained.loss.shape, torch.nan) if trained.moved is None else trained.moved


def local_of(work: Work, i: int) -> Local:
    """The round as the i-th of the called clients sees it."""
    client, t = work.clients.ids[i], work.round.t
    data = work.data.data_of(client)
    n = len(data.y)

    def batches(plan: list[np.ndarray], purpose: Purpose) -> ClientBatches:
        augments = data.transform.augment is not None
        augmentation = torch_generator(work.seed, purpose, t, client) if augments else None
        return ClientBatches(data, plan, augmentation, client)

    return work.local(
        slice(i, i + 1),
        batches(work.schedule.batches(t, client, n, int(work.steps[i])), Purpose.AUGMENTATION),
        lambda: full_batches(data, work.task.samples_of_a_pass),
        lambda: batches(work.schedule.pseudo_batches(t, client, n), Purpose.PSEUDO_DATA),
        lambda: _class_counts(work, data),
    )


def _class_counts(work: Work, data: ClientData) -> Tensor:
    """How many of one client's samples are of each class that the model has a score for [1, classes]."""
    task = work.task
    if task.loss is not cross_entropy:  # which is another of probabilities and of sequences of labels
        raise InputError(
            f"{work.algorithm.title} counts every client's labels, one a sample, and needs their cross-entropy, got "
            f"the loss {task.loss.name}; choose another algorithm."
        )
    return torch.bincount(data.y, minlength=task.scores_of(data.x)).to(task.dtype).unsqueeze(0)
