"""Clients at sites of their own, as the server sees them: requests go out as bytes, and nothing that comes back is
believed before it was checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.algorithms.state import PerClient, State, bytes_up
from fedkeel.engine.client import Equipment, Work, answer
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Answers, Call, Fault, Model, Outcome, Question, gather
from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.rounds import Rounds, RunState
from fedkeel.engine.samples import ClientData, Scored
from fedkeel.engine.server import Server
from fedkeel.engine.wire import (
    LARGEST,
    Answer,
    Refusal,
    WireError,
    call_to_bytes,
    question_to_bytes,
    reply_from_bytes,
)
from fedkeel.engine.wire import Scored as ScoredReply
from fedkeel.errors import InputError
from fedkeel.learning.task import Score, Seeds

ATTEMPTS = 3
"""How often a question is put to a client that does not answer it; to answer twice does no harm."""
SLACK = 1 + 1e-4
"""By how much rounding may lengthen an update that was cut to a norm."""


class Transport(Protocol):
    """Carries requests to clients, and what they say back."""

    def exchange(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Bring each client its request, and give what arrives until the deadline, in any order.

        Each reply comes with the client that it is from as the transport knows it, not as the reply says. There may be
        none of a client, several, or one to an earlier request.
        """


class Sites:
    """Whoever sits at the other end of a transport.

    ``example`` is a handful of samples, two at least, with which the server rehearses a call: so it knows which values
    of which shapes an answer has. ``test`` and ``validation`` are samples that the server itself holds.
    """

    shares = False

    def __init__(
        self,
        equipment: Equipment,
        transport: Transport,
        example: ClientData,
        test: tuple[Tensor, Tensor] | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        have_tests: bool = False,
        largest: int = LARGEST,
    ) -> None:
        self.equipment = equipment
        self.transport = transport
        self.have_tests = have_tests
        self._example = example
        self._held = {"test": test, "validation": validation}
        self._largest = largest
        self._rehearsed: dict[object, Outcome] = {}

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        seeds = part_seeds(self.equipment.seed, Purpose.EVALUATION, call.round.t)
        each = {client: call.take([row]) for row, client in enumerate(call.clients.ids)}
        heard: dict[int, Answer] = {}
        faults: list[Fault] = []
        sent = 0
        for client, data in self.transport.exchange({client: call_to_bytes(one) for client, one in each.items()}):
            try:
                reply = reply_from_bytes(data, self._largest)
                sent += isinstance(reply, Answer)
                found = self._checked(client, reply, each.get(client))
            except WireError as error:
                faults.append(Fault(client, "refused", str(error)))
                continue
            if isinstance(found, Fault):
                faults.append(found)
            elif client in heard:
                faults.append(Fault(client, "duplicate"))
            else:
                heard[client] = found
        explained = {fault.client for fault in faults if fault.kind == "refused"} | heard.keys()
        faults += [Fault(client, "silent") for client in each if client not in explained]
        scores = tuple(self.evaluate(w, b, "test", seeds) for w, b in exam)
        ids = tuple(client for client in each if client in heard)
        if not ids:
            return Answers((), call.steps[:0], None, sent, 0, tuple(faults), scores=scores)
        outcome = gather([heard[client].outcome for client in ids])
        steps = torch.tensor([heard[client].steps for client in ids], dtype=call.steps.dtype)
        complaints = {client: heard[client].complaint for client in ids if heard[client].complaint}
        weight = bytes_up(outcome.message) // len(ids)
        return Answers(ids, steps, outcome, sent, weight, tuple(faults), complaints, scores)

    def scores(self, question: Question) -> dict[int, Score]:
        rows = {client: row for row, client in enumerate(question.ids)}
        found: dict[int, Score] = {}
        for _ in range(ATTEMPTS):
            silent = [client for client in question.ids if client not in found]
            requests = {client: question_to_bytes(_for_one(question, rows[client])) for client in silent}
            for client, data in self.transport.exchange(requests) if requests else ():
                try:
                    reply = reply_from_bytes(data, self._largest)
                except WireError:
                    continue
                if (
                    isinstance(reply, ScoredReply)
                    and client in rows
                    and self._fits(question, rows[client], client, reply)
                ):
                    metrics, sums = self.equipment.task.metrics_of([reply.score.sums])
                    found[client] = replace(reply.score, metrics=metrics, sums=sums)
        return {client: found[client] for client in question.ids if client in found}

    def evaluate(self, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None) -> Score:
        held = self._held[on]
        if held is None:
            raise InputError(f"the server holds no {on} samples; give it some.")
        return self.equipment.task.evaluate(w, b, *held, seeds)

    def _fits(self, question: Question, row: int, client: int, reply: ScoredReply) -> bool:
        """Whether a score is one to this question; what metrics are made of has as many numbers as here."""
        score, here = reply.score, self._rehearsed_score
        asked = None if question.positions is None else len(question.positions[row])
        is_share = math.isnan(score.accuracy) if math.isnan(here.accuracy) else 0 <= score.accuracy <= 1
        return (
            (reply.client, reply.t, reply.purpose) == (client, question.t, question.purpose)
            and is_share
            and score.samples > 0
            and asked in (None, score.samples)
            and all(len(found) == len(here.sums.get(name, ())) for name, found in score.sums.items())
        )

    @cached_property
    def _rehearsed_score(self) -> Score:
        """Of the initial model on the example: whether there are right answers, and what metrics are made of."""
        task, example = self.equipment.task, self._example
        return task.evaluate(task.w0, task.b0, example.x, example.y)

    @property
    def hold_validation(self) -> bool:
        return self._held["validation"] is not None

    def _checked(self, client: int, reply: Answer | ScoredReply | Refusal, asked: Call | None) -> Answer | Fault:
        """The answer, if it is one to this call and looks as it must; else what is wrong."""
        if reply.client != client:
            return Fault(client, "refused", f"it speaks for client {reply.client}")
        if asked is None:
            return Fault(client, "refused", "it was not called")
        if reply.t != asked.round.t:
            late = reply.t < asked.round.t
            return Fault(client, "late" if late else "refused", f"its answer is to round {reply.t + 1}")
        if isinstance(reply, Refusal):
            return Fault(client, "refused", reply.reason)
        if not isinstance(reply, Answer):
            return Fault(client, "refused", "it answered a question that was not asked")
        wrong = self._misfit(reply, asked)
        return Fault(client, "refused", wrong) if wrong else reply

    def _misfit(self, reply: Answer, asked: Call) -> str:
        """Why an answer cannot be one to a call; empty if it can."""
        steps, outcome = int(asked.steps[0]), reply.outcome
        fewest = steps if "equal_steps" in self.equipment.algorithm.needs else min(steps, 1)
        if not fewest <= reply.steps <= steps:
            return f"it says that it took {reply.steps} of {steps} steps"
        like = self._rehearsal(asked)
        expected, got = _values(like), _values(outcome)
        if list(expected) != list(got) or outcome.states:
            return f"it sends {', '.join(got)} in place of {', '.join(expected)}"
        for name, value in got.items():
            wanted = expected[name]
            if (value.dtype, value.shape) != (wanted.dtype, wanted.shape):
                return f"its {name} is {_kind(value)} in place of {_kind(wanted)}"
        norms = outcome.norms
        if len(norms) != 1 or norms[0].dim() != 1 or len(norms[0]) > steps or norms[0].dtype != like.loss.dtype:
            return "its norms are not one number a step"
        limit = self.equipment.max_update_norm
        if limit is not None and "y" in got:
            length = float(torch.linalg.vector_norm(got["y"][0] - asked.message.w)) if "w" in asked.message else 0.0
            if length > limit * SLACK:
                return f"its update has the norm {length:.3g}, above the {limit:g} that it was told to keep"
        return ""

    def _rehearsal(self, call: Call) -> Outcome:
        """What the answer of a client with the example's samples looks like; made once for each kind of call."""
        steps = call.steps.clamp(max=1)
        values = {name: v.rows if isinstance(v, PerClient) else v for name, v in call.message.items()}
        key = (int(steps[0]), *((name, *_shape(value)) for name, value in values.items()))
        if key not in self._rehearsed:
            first = self.equipment.first_state(call.clients.N, call.common_steps)
            sizes = torch.full_like(call.clients.sizes, len(self._example.y))
            known = replace(call, clients=replace(call.clients, sizes=sizes), steps=steps)
            states = {name: [zero] for name, zero in first.items()}
            work = Work(self.equipment, known, _Same(self._example), states, call.b.unsqueeze(0))
            outcome = answer(work.on(self.equipment.task.device), [0]).on(CPU)
            travels = self.equipment.buffer_rule in ("average", "uniform")
            self._rehearsed[key] = replace(
                outcome, states=State(), buffers=outcome.buffers if travels else outcome.buffers[:, :0]
            )
        return self._rehearsed[key]


class SiteRounds(Rounds):
    """Rounds whose clients are elsewhere: the state of a run holds nothing of what they remember."""

    def __init__(self, server: Server, sites: Sites) -> None:
        super().__init__(server, sites.equipment.task)
        self.sites = sites

    def who(self, state: RunState) -> Sites:
        return self.sites


class _Same:
    """The same samples, whoever asks."""

    def __init__(self, data: ClientData) -> None:
        self._data = data

    def data_of(self, client: int) -> ClientData:
        return self._data


def _for_one(question: Question, row: int) -> Question:
    positions = None if question.positions is None else question.positions[row : row + 1]
    return replace(
        question, ids=question.ids[row : row + 1], counted=question.counted[row : row + 1], positions=positions
    )


def _values(outcome: Outcome) -> dict[str, Tensor]:
    """All that one client sends, but for its norms."""
    noted = {f"noted/{name}": value for name, value in outcome.noted.items()}
    return dict(outcome.message) | noted | {"buffers": outcome.buffers, "loss": outcome.loss, "moved": outcome.moved}


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _shape(value: object) -> tuple[object, ...]:
    return (value.dtype, *value.shape) if isinstance(value, Tensor) else ()
