"""Clients that live in this process: their samples and their memory are at hand, an executor computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.algorithms.state import State, bytes_up
from fedkeel.engine.client import Equipment
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Answers, Call, Model, Question
from fedkeel.engine.executors import Executor, Job
from fedkeel.engine.randomness import Moment, Purpose, part_seeds
from fedkeel.engine.samples import Samples, Scored, aligned
from fedkeel.learning.task import Score, Seeds
from fedkeel.state.rows import Rows


@dataclass(frozen=True)
class Residents:
    """All clients of a federation as they are after some round."""

    equipment: Equipment
    samples: Samples
    executor: Executor
    first: State
    """What a client remembers before its first round."""
    states: dict[str, Rows]
    """What clients remember, by name; clients not seen yet have no row."""
    buffers: Rows
    """Buffers that stay with the clients."""

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        ids = call.clients.ids
        if not ids:
            seeds = part_seeds(self.equipment.seed, Purpose.EVALUATION, call.round.t)
            scores = tuple(self.evaluate(w, b, "test", seeds) for w, b in exam)
            return Answers((), call.steps, None, 0, 0, scores=scores)
        outcome = self.executor.run(self.job(call, exam).on(self.equipment.task.device)).on(CPU)
        weight = bytes_up(outcome.message) // len(ids)
        return Answers(ids, call.steps, outcome, len(ids), weight, scores=outcome.scores)

    def job(self, call: Call, exam: Sequence[Model] = ()) -> Job:
        """The call together with what the called clients bring."""
        ids = call.clients.ids
        return Job(
            self.equipment,
            call,
            self.samples,
            {name: [self.states[name].get(client, zero) for client in ids] for name, zero in self.first.items()},
            torch.stack([self.buffers_of(client, call.b) for client in ids]),
            tuple(exam),
        )

    def scores(self, question: Question) -> dict[int, Score]:
        task, models = self.equipment.task, self.personal(question)
        found = {}
        for row, client in enumerate(question.ids):
            x, y = self._asked(question, row, client)
            if not len(y):  # of a client without test samples of its own, where others have some
                continue
            w = question.w if models is None else models[row]
            b = self.buffers_of(client, question.b) if question.own_buffers else question.b
            seeds = part_seeds(self.equipment.seed, question.purpose, question.t, client)
            found[client] = task.evaluate(w, b, x, y, seeds)
        return found

    def evaluate(self, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None) -> Score:
        return self.executor.evaluate(self.equipment.task, self.samples, w, b, on, seeds)

    @property
    def hold_test(self) -> bool:
        return True

    @property
    def hold_validation(self) -> bool:
        return True  # where none are held out, a fixed draw of all clients' samples stands in

    @property
    def shares(self) -> bool:
        return self.executor.shares

    @property
    def have_tests(self) -> bool:
        return self.samples.federation.have_tests

    @property
    def have_common_test(self) -> bool:
        return True

    def _asked(self, question: Question, row: int, client: int) -> tuple[Tensor, Tensor]:
        """The samples that a question to a client is about."""
        if question.on == "test":
            return self.samples.test
        if question.on == "own":
            return self.samples.client_test(client)
        x, y = self.samples.of_client(client)
        if question.positions is None:
            return aligned(x), y
        asked = question.positions[row].to(y.device)
        return x[asked], y[asked]

    def personal(self, question: Question) -> Tensor | None:
        """The models [K, d] that the asked clients use themselves, where these differ from the global one."""
        if question.server is None:
            return None
        rows = {name: rows.take(question.ids, self.first[name]) for name, rows in self.states.items()}
        with self.equipment.keyed(Moment.PERSONAL, question.t):
            return self.equipment.algorithm.personal(question.server, State(**rows))

    def buffers_of(self, client: int, b: Tensor) -> Tensor:
        """The buffers [m] that a client uses, where the global ones are b: its own, if it keeps any."""
        return self.buffers.get(client, b) if self.equipment.buffer_rule == "local" else b
