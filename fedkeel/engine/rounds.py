"""A run's rounds, as a function from one state to the next: the server's half, and whoever answers it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Problem
from fedkeel.algorithms.state import State
from fedkeel.engine.averaging import Averaged
from fedkeel.engine.exchange import About, Answers, Call, Model, Outcome, Question, Respondents
from fedkeel.engine.executors import Computing
from fedkeel.engine.names import TIMED, Noted
from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.samples import asked_of
from fedkeel.engine.server import RoundRecord, Server, ServerState, UnansweredError
from fedkeel.engine.settings import Training
from fedkeel.engine.soundness import representable
from fedkeel.errors import InputError
from fedkeel.learning.task import Score, Task
from fedkeel.notices import notice
from fedkeel.state.rows import Rows


@dataclass(frozen=True)
class DataRecord:
    """The data of a run, in a few words and digests."""

    name: str
    clients: int
    digests: dict[str, str]
    """One for each thing that a result depends on (``data/digest.py``)."""


@dataclass(frozen=True)
class RunState:
    """Everything that the next round depends on, and the average of models that goes on beside it."""

    t: int
    """Rounds done."""
    server: State
    b: Tensor
    """Global buffers [m]."""
    clients: dict[str, Rows]
    """What clients remember, by name; clients not seen yet have no row, nor have those that remember it elsewhere."""
    client_buffers: Rows
    """Buffers that stay with the clients (``buffers = "local"``)."""
    counted: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """The last round, from 1, in which each client's upload counted [N]; 0 if none did yet."""
    averaged: Averaged | None = None
    """The average of models over rounds, which no round depends on; None where there is none."""
    clock: State = field(default_factory=State)
    """The virtual clock, and who is at work by it; empty where there is none."""

    @property
    def at_server(self) -> ServerState:
        """What of it the server knows."""
        return ServerState(self.t, self.server, self.b, self.counted, self.averaged)

    def after(self, server: ServerState, cohort: tuple[int, ...], answers: Answers, keeps_buffers: bool) -> RunState:
        """The state after a round in which a cohort's answers counted: only these clients remember the round."""
        clients, buffers, outcome = self.clients, self.client_buffers, answers.of(cohort)
        if outcome is not None:
            clients = {name: self.clients[name].put(cohort, rows) for name, rows in outcome.states.items()}
            if keeps_buffers and outcome.buffers.numel():
                buffers = buffers.put(cohort, outcome.buffers)
        clock = self.clock if answers.clock is None else answers.clock
        averaged = server.averaged
        return RunState(server.t, server.server, server.b, clients, buffers, server.counted, averaged, clock)


@dataclass(frozen=True)
class Seen:
    """A round as it went, for whoever looks at it. Look at once: the next round may overwrite what it holds."""

    before: RunState
    """What the round started from."""
    call: Call
    record: RoundRecord
    outcome: Outcome | None
    """What the clients of ``record.cohort`` returned; None if nobody's answer counted."""


Look = Callable[[Seen], Mapping[str, Noted]]
"""Looks at a round without changing anything, and says what is to be kept of it, by name."""


class Rounds:
    """``start`` gives the first state, ``step`` the one after a round. Who answers may differ; the rounds do not."""

    executor: Computing
    """What computes the clients."""

    def __init__(self, server: Server, task: Task) -> None:
        self.server = server
        self.task = task
        self._told_of_lacking = False

    def who(self, state: RunState) -> Respondents:
        """Whoever answers for the clients as they are in a state."""
        raise NotImplementedError

    def opened(self, state: RunState) -> tuple[Call, Respondents]:
        """The call of the next round, and whoever answers it."""
        return self.server.open(state.at_server), self.who(state)

    def data(self) -> DataRecord:
        """What is kept of the clients' data, so that a run goes on with no others."""
        raise NotImplementedError

    def few_samples(self) -> tuple[Tensor, Tensor]:
        """Some samples such as clients have, prepared for the model: inputs [n, ...] and targets [n, ...]."""
        raise NotImplementedError

    def records(self) -> dict[str, str]:
        """Texts that are kept with a run beside those about data and model."""
        return {}

    @property
    def seed(self) -> int:
        """Decides every random draw."""
        return self.server.seed

    def start(self) -> RunState:
        """The state before the first round."""
        first = self.server.start()
        return RunState(first.t, first.server, first.b, {}, Rows(), first.counted)

    def step(
        self, state: RunState, exam: Mapping[str, Model] | None = None, look: Look | None = None
    ) -> tuple[RunState, RoundRecord]:
        """One round: call, answers, aggregation.

        The models of ``exam`` are evaluated on the test set by whoever has nothing to train; the record has the scores.
        ``look`` is shown the round when it is closed; its time is none of the round's.
        """
        began, exam = time.perf_counter(), exam or {}
        before = state.at_server
        call, who = self.opened(state)
        called = time.perf_counter()
        with representable(self.server.diverged(before)):
            answers = who.answers(call, tuple(exam.values()))
        training = time.perf_counter() - called
        closed, record = self.server.close(before, call, answers, who.scores)
        keeps_buffers = self.server.buffer_rule == "local"
        after = state.after(closed, record.cohort, answers, keeps_buffers)
        scores = dict(zip(exam, answers.scores, strict=True))
        seconds = time.perf_counter() - began
        times = {f"{TIMED}training": training, f"{TIMED}aggregation": seconds - training}
        record = replace(record, seconds=seconds, scores=scores, times=times)
        return after, record if look is None else _looked_at(look, state, call, record, answers)

    @property
    def algorithm(self) -> Algorithm:
        return self.server.algorithm

    @property
    def problem(self) -> Problem:
        return self.server.problem

    @property
    def training(self) -> Training:
        return self.server.training

    @property
    def N(self) -> int:
        """All registered clients."""
        return self.server.problem.N

    def evaluate(self, state: RunState, on: str = "test") -> dict[str, Score]:
        """Accuracy and loss of every candidate model on the test set (or on all ``train`` samples)."""
        scores = {name: self._score(state, w, b, on) for name, (w, b) in self.candidates(state).items()}
        personal = self._personal_score(self.reported(state)) if on == "test" else None
        return scores if personal is None else {"client_mean": personal} | scores

    def candidates(self, state: RunState) -> dict[str, Model]:
        """The models that a run offers as its result, by name; the first is the one that it reports."""
        return self.server.candidates(state.at_server)

    def reported(self, state: RunState) -> RunState:
        """The state as those see it who use the result: an average over rounds stands in the place of the model."""
        averaged = state.averaged
        if averaged is None:
            return state
        return replace(state, server=state.server.replace(w=averaged.w), b=averaged.b)

    @property
    def has_personal_models(self) -> bool:
        """Whether the algorithm lets what clients use differ from the global model."""
        return type(self.algorithm).personal is not Algorithm.personal

    def can_evaluate_beside(self, state: RunState) -> bool:
        """Whether the test set can be evaluated while the next round is trained, in time that would be idle."""
        return self.who(state).shares and not self.has_personal_models

    def feedback(self, state: RunState) -> Score:
        """The global model on the server's validation samples, for the algorithms that use it.

        Where the server has none, clients are asked for the score on a fixed draw of all their training samples. Right
        answers are whole numbers, so that the accuracy is that of one who has all these samples.
        """
        who = self.who(state)
        if self.server.robust.rule is not None and not who.hold_validation:
            raise InputError(
                f"{self.algorithm.title} follows the accuracy of the global model, for which clients would be asked; "
                "with robust.rule let the server hold samples out (data.validation)."
            )
        if who.hold_validation:
            seeds = part_seeds(self.server.seed, Purpose.FEEDBACK, state.t)
            return who.evaluate(state.server.w, state.b, "validation", seeds)
        question = replace(
            self.server.question(state.at_server, tuple(self._asked), "train"),
            purpose=Purpose.FEEDBACK,
            positions=tuple(self._asked.values()),
            own_buffers=False,
        )
        scores = who.scores(question)
        silent = [client for client in question.ids if client not in scores]
        if silent:
            raise UnansweredError(
                f"{self.algorithm.title} needs a score from every client before round {state.t + 1}, but client "
                f"{silent[0]} did not answer; let the server hold samples out (data.validation)."
            )
        n = sum(score.samples for score in scores.values())
        known = not any(math.isnan(score.accuracy) for score in scores.values())
        hits = sum(round(score.accuracy * score.samples) for score in scores.values()) if known else math.nan
        return Score(hits / n, sum(scores[client].loss * scores[client].samples for client in question.ids) / n, n)

    @cached_property
    def _asked(self) -> dict[int, Tensor]:
        """Of each client that has some, the positions of its samples that stand in for a validation set."""
        ends = np.cumsum(self.problem.sizes.numpy())
        drawn = np.sort(asked_of(int(ends[-1])))
        owners = np.searchsorted(ends, drawn, side="right")
        starts = ends - self.problem.sizes.numpy()
        own = torch.from_numpy(drawn - starts[owners])
        return {client: own[torch.from_numpy(owners == client)] for client in np.unique(owners).tolist()}

    def observe(self, state: RunState, score: Score) -> RunState:
        """Feed the global model's score back, for the algorithms that use it."""
        return replace(state, server=self.server.observe(state.at_server, score).server)

    def evaluate_clients(self, state: RunState) -> dict[int, Score]:
        """What each client would use, on its own test samples (its training samples where it has no test set)."""
        on: About = "own" if self.client_split(state) == "test" else "train"
        state = self.reported(state)
        return self._scores(state, self.question_to_all(state, on))

    def client_split(self, state: RunState) -> str:
        """What ``evaluate_clients`` is about: ``test`` where clients have test samples of their own, else ``train``."""
        return "test" if self.who(state).have_tests else "train"

    def _score(self, state: RunState, w: Tensor, b: Tensor, on: str) -> Score:
        who = self.who(state)
        if on == "test" and who.hold_test:
            return who.evaluate(w, b, "test", part_seeds(self.server.seed, Purpose.EVALUATION, state.t))
        about: About = "own" if on == "test" and who.have_tests else "train"
        question = replace(self.server.question(state.at_server, range(self.N), about, w), b=b, own_buffers=False)
        return self._together(self._scores(state, question).values())

    def _together(self, parts: Collection[Score]) -> Score:
        """The score on the samples of all clients."""
        n = sum(part.samples for part in parts)
        return Score(
            sum(part.accuracy * part.samples for part in parts) / n,
            sum(part.loss * part.samples for part in parts) / n,
            n,
            *self.task.metrics_of([part.sums for part in parts]),
        )

    def _personal_score(self, state: RunState) -> Score | None:
        """The mean over all clients of what their own models score on the whole test set.

        Where clients have it not, each scores its model on samples of its own, and all these samples count alike.
        """
        if not self.server.tells_clients_apart(state.at_server):
            return None
        if not self.who(state).have_common_test:
            return self._together(self.evaluate_clients(state).values())
        scores = list(self._scores(state, self.question_to_all(state, "test")).values())
        accuracy = sum(score.accuracy for score in scores) / len(scores)
        loss = sum(score.loss for score in scores) / len(scores)
        names = [name for name in self.task.metrics if all(name in score.metrics for score in scores)]
        metrics = {name: sum(score.metrics[name] for score in scores) / len(scores) for name in names}
        return Score(accuracy, loss, scores[0].samples, metrics)

    def _scores(self, state: RunState, question: Question) -> dict[int, Score]:
        """What clients answer to a question that some may leave open, but not all; who does is told."""
        found = dict(self.who(state).scores(question))
        silent = [client for client in question.ids if client not in found]
        if len(silent) == len(question.ids):
            raise UnansweredError(f"the model after round {state.t} cannot be evaluated: no client gave a score.")
        if silent:
            notice(
                "evaluation",
                f"the evaluation by clients after round {state.t} is without {len(silent)} of {len(question.ids)}: "
                f"client {', '.join(map(str, silent[:5]))}{' …' if len(silent) > 5 else ''} gave no score.",
            )
        lacking = [name for name in self.task.metrics if any(name not in score.sums for score in found.values())]
        if lacking and not self._told_of_lacking:
            self._told_of_lacking = True
            notice(
                "evaluation",
                f"what clients score is without {', '.join(lacking)}: a metric of one's own is not known elsewhere.",
            )
        return found

    def question_to_all(self, state: RunState, on: About) -> Question:
        """To every client, about the model that it would use."""
        server = state.server if self.server.tells_clients_apart(state.at_server) else None
        return replace(self.server.question(state.at_server, range(self.N), on), server=server)


def _looked_at(look: Look, before: RunState, call: Call, record: RoundRecord, answers: Answers) -> RoundRecord:
    """The record with what a look at the round found, and how long that took."""
    began, outcome = time.perf_counter(), answers.of(record.cohort) if record.cohort else None
    found = look(Seen(before, call, record, outcome))
    if not found:
        return record
    times = record.times | {f"{TIMED}measure": time.perf_counter() - began}
    return replace(record, noted={**record.noted, **found}, times=times)
