"""Clients at sites of their own, as the server sees them: requests go out as bytes, and nothing that comes back is
believed before it was checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedkeel.algorithms.state import PerClient, State, bytes_up
from fedkeel.engine.client import Equipment, Work, answer
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Answers, Call, Fault, Model, Outcome, Question, gather
from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.rounds import DataRecord, Rounds, RunState
from fedkeel.engine.samples import ClientData, Scored
from fedkeel.engine.server import Server, UnansweredError
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
from fedkeel.notices import notice

ATTEMPTS = 3
"""How often a question is put to a client that does not answer it; to answer twice does no harm."""
SLACK = 1 + 1e-4
"""By how much rounding may lengthen an update that was cut to a norm."""


@dataclass(frozen=True)
class Lost:
    """What a transport has in place of a reply that it knows will not come, or that it would not take."""

    reason: str
    refused: bool = False
    """Whether something came that was not to be believed; else nothing did."""


class Transport(Protocol):
    """Carries requests to clients, and what they say back."""

    def exchange(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes | Lost]]:
        """Bring each client its request, and give what arrives until the deadline, in any order.

        Each reply comes with the client that it is from as the transport knows it, not as the reply says. There may be
        none of a client, several, or one to an earlier request.
        """


class Sites:
    """Whoever sits at the other end of a transport.

    ``example`` is a handful of samples, two at least, with which the server rehearses a call: so it knows which values
    of which shapes an answer has. ``test`` and ``validation`` are samples that the server itself holds;
    ``have_common_test`` says whether all sites have the test set, too. ``quorum`` is the share of the called clients
    without whose answers a round is not closed: those that are silent are called again, and then the run stops. An
    algorithm that needs everybody has a quorum of 1.
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
        quorum: float = 0.0,
        have_common_test: bool = True,
    ) -> None:
        self.equipment = equipment
        self.transport = transport
        self.have_tests = have_tests
        self.have_common_test = have_common_test
        self.example = example
        self._held = {"test": test, "validation": validation}
        self._largest = largest
        self._quorum = 1.0 if equipment.algorithm.needs & {"full", "one_client"} else quorum
        self._rehearsed: dict[object, Outcome] = {}

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        seeds = part_seeds(self.equipment.seed, Purpose.EVALUATION, call.round.t)
        each = {client: call.take([row]) for row, client in enumerate(call.clients.ids)}
        heard: dict[int, Answer] = {}
        told: list[Fault] = []
        sent, least = 0, self._least(len(each))
        for attempt in range(ATTEMPTS):
            missing = {client: one for client, one in each.items() if client not in heard}
            more, silent = self._hear(missing, each, heard, told)
            sent, faults = sent + more, [*told, *silent]
            if len(heard) >= least:
                break
            if attempt + 1 < ATTEMPTS:
                notice("network", f"round {call.round.t + 1}: {self._too_few(heard, each, faults)}; called again")
        else:
            said = self._too_few(heard, each, faults)
            raise UnansweredError(
                f"round {call.round.t + 1} is not closed: {said}; go on with --resume when the sites are back."
            )
        scores = tuple(self.evaluate(w, b, "test", seeds) for w, b in exam)
        ids = tuple(client for client in each if client in heard)
        if not ids:
            return Answers((), call.steps[:0], None, sent, 0, tuple(faults), scores=scores)
        outcome = gather([heard[client].outcome for client in ids])
        steps = torch.tensor([heard[client].steps for client in ids], dtype=call.steps.dtype)
        complaints = {client: heard[client].complaint for client in ids if heard[client].complaint}
        weight = bytes_up(outcome.message) // len(ids)
        return Answers(ids, steps, outcome, sent, weight, tuple(faults), complaints, scores)

    def _hear(
        self, called: Mapping[int, Call], each: Mapping[int, Call], heard: dict[int, Answer], faults: list[Fault]
    ) -> tuple[int, list[Fault]]:
        """Call some clients: answers that can be used are heard, whatever else came is a fault.

        How many uploads travelled, and who was silent: that counts if nobody calls again.
        """
        sent, silent = 0, dict.fromkeys(called, "")

        def refused(fault: Fault) -> None:
            silent.pop(fault.client, None)
            if fault not in faults:  # called again, a site says the same again
                faults.append(fault)

        for client, data in self.transport.exchange({client: call_to_bytes(one) for client, one in called.items()}):
            if isinstance(data, Lost):
                if data.refused:
                    refused(Fault(client, "refused", data.reason))
                elif client in silent:
                    silent[client] = data.reason
                continue
            try:
                reply = reply_from_bytes(data, self._largest)
                sent += isinstance(reply, Answer)
                found = self._checked(client, reply, each.get(client))
            except WireError as error:
                found = Fault(client, "refused", str(error))
            if isinstance(found, Fault) and found.kind == "refused":
                refused(found)
            elif isinstance(found, Fault):
                faults.append(found)
            elif client in heard:
                faults.append(Fault(client, "duplicate"))
            else:
                heard[client] = found
                silent.pop(client, None)
        return sent, [Fault(client, "silent", reason) for client, reason in silent.items()]

    def _least(self, called: int) -> int:
        """How many of the called clients have to answer; 0.55 of 20 are 11, though floating point says a bit more."""
        return math.ceil(self._quorum * called - 1e-9)

    def _too_few(self, heard: Mapping[int, Answer], each: Mapping[int, Call], faults: Sequence[Fault]) -> str:
        """``2 of 5 clients answered, 3 are needed (client 0: its site is not online)``."""
        why = {fault.client: fault.detail for fault in faults if fault.client not in heard and fault.detail}
        told = "; ".join(f"client {client}: {reason}" for client, reason in list(why.items())[:3])
        least = self._least(len(each))
        return f"{len(heard)} of {len(each)} clients answered, {least} are needed" + (f" ({told})" if told else "")

    def scores(self, question: Question) -> dict[int, Score]:
        rows = {client: row for row, client in enumerate(question.ids)}
        found: dict[int, Score] = {}
        for _ in range(ATTEMPTS):
            silent = [client for client in question.ids if client not in found]
            requests = {client: question_to_bytes(_for_one(question, rows[client])) for client in silent}
            for client, data in self.transport.exchange(requests) if requests else ():
                if isinstance(data, Lost):
                    continue
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
        """Whether a score is one to this question, and there may be samples with the sums that metrics are made of."""
        score, here = reply.score, self._rehearsed_score
        asked = None if question.positions is None else len(question.positions[row])
        is_share = math.isnan(score.accuracy) if math.isnan(here.accuracy) else 0 <= score.accuracy <= 1
        return (
            (reply.client, reply.t, reply.purpose) == (client, question.t, question.purpose)
            and is_share
            and score.samples > 0
            and asked in (None, score.samples)
            and all(self._may_be(name, found) for name, found in score.sums.items())
        )

    def _may_be(self, name: str, sums: tuple[float, ...]) -> bool:
        """Whether a metric that is asked for has as many sums, and some samples have such ones."""
        here = self._rehearsed_score.sums
        return name in here and len(sums) == len(here[name]) and self.equipment.task.metrics[name].possible(sums)

    @cached_property
    def _rehearsed_score(self) -> Score:
        """Of the initial model on the example: whether there are right answers, and what metrics are made of."""
        task, example = self.equipment.task, self.example
        return task.evaluate(task.w0, task.b0, example.x, example.y)

    @property
    def hold_test(self) -> bool:
        return self._held["test"] is not None

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
            sizes = torch.full_like(call.clients.sizes, len(self.example.y))
            known = replace(call, clients=replace(call.clients, sizes=sizes), steps=steps)
            states = {name: [zero] for name, zero in first.items()}
            work = Work(self.equipment, known, _Same(self.example), states, call.b.unsqueeze(0))
            outcome = answer(work.on(self.equipment.task.device), [0]).on(CPU)
            travels = self.equipment.buffer_rule in ("average", "uniform")
            self._rehearsed[key] = replace(
                outcome, states=State(), buffers=outcome.buffers if travels else outcome.buffers[:, :0]
            )
        return self._rehearsed[key]


class Elsewhere:
    """What computes the clients of a run whose clients are at sites of their own."""

    name = "sites"
    lanes = 1

    def __init__(self, words: str) -> None:
        self._words = words

    def keep(self, lanes: int) -> None:
        pass

    def describe(self) -> str:
        return self._words

    def close(self) -> None:
        pass


class SiteRounds(Rounds):
    """Rounds whose clients are elsewhere: the state of a run holds nothing of what they remember."""

    def __init__(
        self,
        server: Server,
        sites: Sites,
        data: DataRecord | None = None,
        words: str = "sites",
        records: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(server, sites.equipment.task)
        self.sites = sites
        self.executor = Elsewhere(words)
        self._data = data or DataRecord("sites", server.problem.N, {})
        self._records = dict(records or {})

    def data(self) -> DataRecord:
        return self._data

    def few_samples(self) -> tuple[Tensor, Tensor]:
        return self.sites.example.x, self.sites.example.y

    def records(self) -> dict[str, str]:
        return self._records

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
