"""The server's half of a round: it opens one with a call and closes it with whatever answers came.

It knows no samples, no executor and no client's memory: only what clients send. What it remembers from round to round
is a ``ServerState``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Clients, Problem, Round, Uploads, no_travel, pace_of, travel
from fedkeel.algorithms.registry import is_registered
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State, bytes_down
from fedkeel.engine.averaging import Averaged, Averaging
from fedkeel.engine.exchange import About, Answers, Call, Fault, Model, Outcome, Question
from fedkeel.engine.names import Noted
from fedkeel.engine.noted import as_noted, both
from fedkeel.engine.randomness import Moment, Purpose, torch_seed
from fedkeel.engine.robust import check_cohort, check_robust, needs, resistant, resistant_buffers
from fedkeel.engine.schedule import Schedule
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.engine.soundness import check_server, examine, representable
from fedkeel.errors import FedkeelError, InputError
from fedkeel.learning.admission import check_counts
from fedkeel.learning.drawing import held_by, keyed_if
from fedkeel.learning.layout import Layout
from fedkeel.learning.task import Score

Ask = Callable[[Question], Mapping[int, Score]]
"""Puts a question to clients; those that do not answer are not in the result."""


class UnansweredError(FedkeelError):
    """Clients whose answer a round cannot do without did not give it."""


@dataclass(frozen=True)
class ServerState:
    """What the server remembers from round to round."""

    t: int
    """Rounds done."""
    server: State
    b: Tensor
    """Global buffers [m]."""
    counted: Tensor
    """The last round, from 1, in which each client's upload counted [N]; 0 if none did yet."""
    averaged: Averaged | None = None
    """The average of models over rounds; None where none is asked for, and before the first model counts."""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round."""

    t: int
    """Counts from 1, as people do: the model after this round is model t."""
    lr: float
    cohort: tuple[int, ...]
    """The clients whose uploads counted; those that were called in vain stand in ``faults``."""
    steps: tuple[int, ...]
    samples: int
    """Samples that went through local training."""
    losses: tuple[float, ...]
    """Mean local objective of each client of the cohort."""
    drifts: tuple[float, ...]
    """‖y_i − w‖ of each client of the cohort, w being what it was sent, where it uploads its model."""
    bytes_down: int
    bytes_up: int
    seconds: float = math.nan
    norms: tuple[Tensor, ...] = field(default=(), repr=False)
    faults: tuple[Fault, ...] = ()
    """What went wrong, client by client."""
    scores: dict[str, Score] = field(default_factory=dict, repr=False)
    """Of the models that were to be evaluated beside the round."""
    noted: dict[str, Noted] = field(default_factory=dict)
    """What the algorithm noted and what was measured of the round, by name."""
    times: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by what they went to (``time.training``, …); like ``seconds``, no two runs have the same."""


@dataclass(frozen=True)
class Server:
    """The server's half of every round of a run."""

    algorithm: Algorithm
    problem: Problem
    training: Training
    schedule: Schedule
    seed: int = 0
    policy: Faults = field(default_factory=Faults)
    """What is done about updates that are not finite or too long."""
    buffer_layout: Layout = field(default_factory=lambda: Layout(()))
    robust: Robust = field(default_factory=Robust)
    """What stands in the place of the mean of uploads."""
    averaging: Averaging | None = None
    """Which average of models over rounds is reported, if one is."""

    def __post_init__(self) -> None:
        check_robust(type(self.algorithm), self.robust, self.policy)
        check_cohort(self.robust, self.training, self.problem.N)

    def start(self) -> ServerState:
        """Before the first round."""
        nobody = torch.zeros(self.problem.N, dtype=torch.int32)
        with self._keyed(Moment.INIT):
            return ServerState(0, self.algorithm.server_init(self.problem), self.problem.b0, nobody)

    def open(self, state: ServerState, present: Sequence[int] | None = None) -> Call:
        """The call of the next round to the clients that are drawn for it (or, if given, to those present)."""
        with self._keyed(Moment.OPENING, state.t):
            return self._opened(state, present)

    def _opened(self, state: ServerState, present: Sequence[int] | None) -> Call:
        N, dtype = self.problem.N, self.problem.w0.dtype
        there = tuple(self.schedule.cohort(state.t, N) if present is None else present)
        ids = self.algorithm.cohort(state.server, there, N)
        sizes = self.problem.sizes[list(ids)]
        clients = Clients(ids, sizes, N, self.n, len(ids), int(sizes.sum()), dtype)
        round = Round(state.t, self.schedule.lr(state.t), self.schedule.lr(0))
        message = self.algorithm.broadcast(state.server, round, clients)
        steps = self.algorithm.local_steps(message, clients, self.problem)
        if steps is None:
            steps = torch.tensor([self.training.local_steps(n) for n in sizes.tolist()])
        return Call(round, clients, message, steps, state.b, self.problem.common_steps, self._counted(state)[list(ids)])

    def close(self, state: ServerState, call: Call, answers: Answers, ask: Ask) -> tuple[ServerState, RoundRecord]:
        """The state after a round, and what it was like; where nobody answered, the model stays as it is.

        The average of models over rounds counts such a round like any other.
        """
        closed, record = self._closed(state, call, answers, ask)
        if self.averaging is None:
            return closed, record
        own, b = next(iter(self._own_candidates(closed).values()))
        averaged = self.averaging.after(closed.t, state.averaged, own, b, self.buffer_layout)
        return replace(closed, averaged=averaged), record

    def _closed(self, state: ServerState, call: Call, answers: Answers, ask: Ask) -> tuple[ServerState, RoundRecord]:
        receivers = len(call.clients.ids) if answers.received is None else answers.received
        down = bytes_down(call.message, receivers) + self.buffer_bytes(receivers)
        up = answers.sent * answers.upload_bytes + self.buffer_bytes(answers.sent)
        record = RoundRecord(state.t + 1, call.round.lr, (), (), 0, (), (), down, up, faults=answers.faults)
        outcome = answers.outcome
        if outcome is None:
            return replace(state, t=state.t + 1), replace(record, noted=_noted_of(answers, ()))
        where = self.diverged(state)
        told, ids, steps = call.clients, answers.ids, answers.steps
        clients = told if ids == told.ids else told.take(_places(told.ids, ids))
        counts = zip(steps.tolist(), clients.sizes.tolist(), strict=True)
        samples = sum(self.training.samples_in(taken, n) for taken, n in counts)
        sound, wrong = examine(self.policy, ids, outcome, where, answers.complaints)
        if len(sound) < len(ids):
            clients, outcome, steps = clients.take(sound), outcome.take(sound), steps[sound]
        if clients is not told:
            clients = clients.as_cohort()
        if self.robust.rule is not None and len(sound) < self.robust.least:
            raise UnansweredError(
                f"round {state.t + 1} has {len(sound)} sound uploads of {len(told.ids)} called clients, but needs "
                f"{needs(self.robust)}; the round is not closed: go on with --resume, or start anew with a smaller f "
                "or more clients a round."
            )
        uploads = Uploads(
            outcome.message,
            clients,
            steps,
            lambda: self._travel(call.round.lr, steps),
            lambda w: self._losses_at(w, state, clients.ids, ask),
        )
        if answers.discount is not None:
            uploads = discounted(uploads, call.message.w, answers.discount[_places(ids, clients.ids)])
        if self.robust.rule is not None:
            uploads = resistant(self.robust, uploads, self.seed, state.t)
        with self._keyed(Moment.AGGREGATE, state.t), representable(where):
            aggregated = self.algorithm.aggregate(state.server, uploads, call.round)
        noted = as_noted(both(outcome.noted, aggregated.noted, self.algorithm.name), clients.ids, self.algorithm.name)
        server = outcome.lend_nothing_to(aggregated.without_notes())
        b = self._merged(state.b, outcome, clients)
        check_server(state.server, server, b, self.algorithm.unknown, where)
        counted = self._counted(state).clone()
        counted[list(clients.ids)] = state.t + 1
        return ServerState(state.t + 1, server, b, counted), replace(
            record,
            cohort=clients.ids,
            steps=tuple(steps.tolist()),
            samples=samples,
            losses=tuple(outcome.loss.tolist()),
            drifts=_drifts(call, state.server.w, clients.ids, outcome),
            norms=tuple(norms.clone() for norms in outcome.norms),
            faults=(*answers.faults, *wrong),
            noted=noted | _noted_of(answers, clients.ids),
        )

    def diverged(self, state: ServerState) -> str:
        """How a sentence begins that says that the next round went wrong."""
        return f"{self.algorithm.title} diverged in round {state.t + 1}"

    def candidates(self, state: ServerState) -> dict[str, Model]:
        """The models that a run offers as its result, by name: first the average over rounds, if there is to be one.

        As long as no model counts for it, the average is the model that the algorithm itself reports.
        """
        own = self._own_candidates(state)
        if self.averaging is None:
            return own
        if self.averaging.kind in own:
            raise InputError(
                f"{self.algorithm.title} has a candidate named {self.averaging.kind!r} itself, as the average over "
                "rounds is named; rename it, or leave evaluation.average out."
            )
        averaged = state.averaged
        first = next(iter(own.values())) if averaged is None else (averaged.w, averaged.b)
        return {self.averaging.kind: first} | own

    def _own_candidates(self, state: ServerState) -> dict[str, Model]:
        with self._keyed(Moment.CANDIDATES, state.t):
            return {name: (w, state.b) for name, w in self.algorithm.candidates(state.server).items()}

    def observe(self, state: ServerState, score: Score) -> ServerState:
        """Feed the global model's score back, for the algorithms that use it."""
        if math.isnan(score.accuracy):
            raise InputError(
                f"{self.algorithm.title} follows the accuracy of the global model, but no answer is right or wrong "
                "under this loss; choose another algorithm, or a Loss that says which answers are correct."
            )
        with self._keyed(Moment.OBSERVE, state.t):
            server = self.algorithm.observe(state.server, {"accuracy": score.accuracy, "loss": score.loss})
        return replace(state, server=server)

    def question(self, state: ServerState, ids: Sequence[int], on: About, w: Tensor | None = None) -> Question:
        """How a model (default: the global one) does at some clients."""
        counted = self._counted(state)[list(ids)]
        problem = self.problem
        asked = state.server.w if w is None else w
        return Question(state.t, tuple(ids), on, asked, state.b, counted, problem.N, problem.common_steps)

    def tells_clients_apart(self, state: ServerState) -> bool:
        """Whether what clients would use differs from the global model, with this model and these parameters."""
        if type(self.algorithm).personal is Algorithm.personal:
            return False
        with self._keyed(Moment.CLIENT_INIT):
            first = self.algorithm.client_init(self.problem)
        with self._keyed(Moment.PERSONAL, state.t):
            one = State(**{name: value.unsqueeze(0) for name, value in first.items()})
            return self.algorithm.personal(state.server, one) is not None

    @cached_property
    def n(self) -> int:
        """All samples of all clients."""
        return int(self.problem.sizes.sum())

    @property
    def buffer_rule(self) -> str:
        """What happens to BatchNorm statistics."""
        return self.algorithm.buffers or self.training.buffers

    def _keyed(self, moment: Moment, t: int = 0) -> AbstractContextManager[object]:
        """What an algorithm of somebody's own draws for the server follows from seed, round and moment."""
        known = is_registered(self.algorithm)
        seed = None if known else torch_seed(self.seed, Purpose.SERVER, t, moment)
        return keyed_if(seed, own=held_by([self.algorithm]))

    def _travel(self, lr: float, steps: Tensor) -> Tensor:
        if self.training.optimiser != "sgd":
            raise no_travel(self.training.optimiser)
        dtype = self.problem.w0.dtype
        return travel(lr, steps, self.training.momentum, dtype, pace_of(self.algorithm, steps, dtype))

    def _losses_at(self, w: Tensor, state: ServerState, ids: tuple[int, ...], ask: Ask) -> Tensor:
        scores = ask(replace(self.question(state, ids, "train", w), purpose=Purpose.LOSSES))
        silent = [client for client in ids if client not in scores]
        if silent:
            raise UnansweredError(
                f"round {state.t + 1} needs the loss of every client of its cohort, but client {silent[0]} did not "
                "answer; the round is not closed: go on with --resume."
            )
        return torch.tensor([scores[client].loss for client in ids], dtype=self.problem.w0.dtype)

    def _counted(self, state: ServerState) -> Tensor:
        """For every client; a state made by hand may say nothing of the last ones."""
        missing = self.problem.N - len(state.counted)
        return state.counted if not missing else torch.cat([state.counted, state.counted.new_zeros(missing)])

    def _merged(self, b: Tensor, outcome: Outcome, clients: Clients) -> Tensor:
        if not b.numel() or self.buffer_rule in ("local", "freeze"):
            return b
        if self.robust.rule is not None:
            merged = resistant_buffers(self.robust, outcome.buffers)
        else:
            merged = average(outcome.buffers, clients.weights("n" if self.buffer_rule == "average" else "uniform"))
        for entry in self.buffer_layout:
            if not entry.dtype.is_floating_point:
                merged[entry.start : entry.stop] = merged[entry.start : entry.stop].round()
                check_counts(entry.name, merged[entry.start : entry.stop])
        return merged

    def buffer_bytes(self, receivers: int) -> int:
        """Bytes of the BatchNorm statistics that so many clients receive, or send."""
        b = self.problem.b0
        return b.numel() * b.element_size() * receivers if self.buffer_rule in ("average", "uniform") else 0


def discounted(uploads: Uploads, w: Tensor, shares: Tensor) -> Uploads:
    """Uploads of clients that may have started from earlier models: their moves from w [d] count for shares [S]."""

    def unknown(*_: Tensor) -> Tensor:
        raise InputError(
            "an algorithm that reads travel or losses_at must not say any_staleness = True: clients of one server step "
            "did not start from the same model."
        )

    if set(uploads.message) != {"y"}:
        raise InputError(
            f"an algorithm that says any_staleness = True must upload y alone, not {', '.join(uploads.message)}."
        )
    y: Tensor = uploads.y
    share = shares.to(y.dtype).unsqueeze(1)
    counted = torch.where(share == 1, y, w + share * (y - w))  # a whole upload keeps its bits
    return replace(uploads, message=State(y=counted), reach=unknown, losses_at=unknown)


def _noted_of(answers: Answers, cohort: tuple[int, ...]) -> dict[str, Noted]:
    """What the clock noted of a round, and of those whose answers counted."""
    rows = _places(answers.ids, cohort)
    return {
        name: dict(zip(cohort, value[rows].tolist(), strict=True)) if isinstance(value, Tensor) else value
        for name, value in answers.noted.items()
    }


def _drifts(call: Call, w: Tensor, ids: tuple[int, ...], outcome: Outcome) -> tuple[float, ...]:
    """How far the uploaded models, if any, are from where these clients started; w [d] is the server's."""
    if "y" not in outcome.message:
        return ()
    starts = (call.start(w, row) for row in _places(call.clients.ids, ids))
    return tuple(float(torch.linalg.vector_norm(y - x)) for y, x in zip(outcome.message.y, starts, strict=True))


def _places(ids: tuple[int, ...], some: tuple[int, ...]) -> list[int]:
    """Where some clients stand among others."""
    places = {client: place for place, client in enumerate(ids)}
    return [places[client] for client in some]
