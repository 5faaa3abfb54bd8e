"""A federated simulation: rounds over a federation, as a function from one run state to the next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Clients, Problem, Round, Uploads, travel
from fedkeel.algorithms.registry import is_registered
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import Rows, State, bytes_down, bytes_up
from fedkeel.data.dataset import Federation
from fedkeel.engine.devices import CPU
from fedkeel.engine.executors import Executor, Job, Model, Outcome, Serial
from fedkeel.engine.faults import Fault, Plan, check_needs, counted, plan_round
from fedkeel.engine.fitting import check_model
from fedkeel.engine.randomness import Purpose, part_seeds, torch_seed
from fedkeel.engine.samples import Samples
from fedkeel.engine.schedule import RandomSchedule, Schedule
from fedkeel.engine.settings import Faults, Training
from fedkeel.engine.soundness import check_server, examine, representable
from fedkeel.errors import check_seed
from fedkeel.learning.admission import check_counts
from fedkeel.learning.drawing import held_by, keyed_if
from fedkeel.learning.loop import Sgd
from fedkeel.learning.task import Score, Seeds, Task


@dataclass(frozen=True)
class RunState:
    """Everything that the next round depends on."""

    t: int
    """Rounds done."""
    server: State
    b: Tensor
    """Global buffers [m]."""
    clients: dict[str, Rows]
    """What clients remember, by name; clients not seen yet have no row."""
    client_buffers: Rows
    """Buffers that stay with the clients (``buffers = "local"``)."""


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
    """‖y_i − w‖ of each client of the cohort, where it uploads its model."""
    bytes_down: int
    bytes_up: int
    seconds: float
    norms: tuple[Tensor, ...] = field(default=(), repr=False)
    faults: tuple[Fault, ...] = ()
    """What went wrong, client by client."""
    scores: dict[str, Score] = field(default_factory=dict, repr=False)
    """Of the models that were to be evaluated beside the round."""


class _Moment(IntEnum):
    """Where in a round an algorithm works for the server. The values are part of the format: never renumber."""

    INIT = 0
    CLIENT_INIT = 1
    OPENING = 2
    AGGREGATE = 3
    CANDIDATES = 4
    OBSERVE = 5
    PERSONAL = 6


class Simulation:
    """An algorithm, a task and a federation; ``start`` gives the first state, ``step`` the one after a round."""

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        federation: Federation,
        training: Training,
        seed: int = 0,
        executor: Executor | None = None,
        schedule: Schedule | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.task = task
        self.federation = federation
        self.training = training
        self.seed = check_seed("seed", seed)
        self.executor = executor or Serial()
        self.schedule = schedule or RandomSchedule(training, seed)
        self.faults = faults or Faults()
        check_needs(type(algorithm), self.faults)
        check_model(task, federation)
        self.samples = Samples(federation, task.dtype, task.channels_last, task.device)
        self.sizes = torch.from_numpy(np.asarray(federation.sizes))
        average_size = -(-int(self.sizes.sum()) // len(self.sizes))
        self.problem = Problem(task.w0, task.layout, self.sizes, training.local_steps(average_size), task.b0)
        self._buffer_rule = algorithm.buffers or training.buffers
        with self._keyed(_Moment.CLIENT_INIT):
            self._client_template = algorithm.client_init(self.problem)

    def start(self) -> RunState:
        """The state before the first round."""
        rows = {name: Rows() for name in self._client_template}
        with self._keyed(_Moment.INIT):
            return RunState(0, self.algorithm.server_init(self.problem), self.task.b0, rows, Rows())

    def step(self, state: RunState, exam: Mapping[str, Model] | None = None) -> tuple[RunState, RoundRecord]:
        """One round: broadcast, local training, aggregation.

        The models of ``exam`` are evaluated on the test set by whoever has nothing to train; the record has the scores.
        """
        exam = exam or {}
        began = time.perf_counter()
        where = f"{self.algorithm.title} diverged in round {state.t + 1}"
        called = job = self.job(state)
        plan = plan_round(self.faults, self.seed, state.t, called.clients.ids, called.steps)
        if plan.faults:
            job = replace(called, steps=plan.steps).take(counted(plan.arrivals))
        if not job.clients.ids:
            return self._unanswered(state, called, plan, began, exam)
        with representable(where):
            outcome = self._trained(replace(job, exam=tuple(exam.values())))
        samples, upload_bytes = self._samples_seen(job), bytes_up(outcome.message) // len(job.clients.ids)
        sound, wrong = examine(self.faults, job.clients.ids, outcome, where)
        if len(sound) < len(job.clients.ids):
            job, outcome = job.take(sound), outcome.take(sound)
        clients = job.clients if job is called else job.clients.as_cohort()
        ids = clients.ids
        reach = travel(job.round.lr, job.steps, job.sgd.momentum, self.task.dtype)
        uploads = Uploads(outcome.message, clients, job.steps, reach, lambda w: self._losses_at(w, state, ids))
        with self._keyed(_Moment.AGGREGATE, state.t), representable(where):
            server = outcome.lend_nothing_to(self.algorithm.aggregate(state.server, uploads, job.round))
        b = self._merge_buffers(state.b, outcome.buffers, clients)
        check_server(state.server, server, b, self.algorithm.unknown, where)
        after = RunState(
            state.t + 1,
            server,
            b,
            {name: state.clients[name].put(ids, rows) for name, rows in outcome.states.items()},
            self._keep_buffers(state.client_buffers, outcome.buffers, ids),
        )
        models = outcome.message.y if "y" in outcome.message else ()
        record = RoundRecord(
            t=state.t + 1,
            lr=job.round.lr,
            cohort=ids,
            steps=tuple(job.steps.tolist()),
            samples=samples,
            losses=tuple(outcome.loss.tolist()),
            drifts=tuple(float(torch.linalg.vector_norm(y - state.server.w)) for y in models),
            bytes_down=self._broadcast_bytes(called),
            bytes_up=plan.sent * upload_bytes + self._buffer_bytes(plan.sent),
            seconds=time.perf_counter() - began,
            norms=tuple(norms.clone() for norms in outcome.norms),
            faults=(*plan.faults, *wrong),
            scores=dict(zip(exam, outcome.scores, strict=True)),
        )
        return after, record

    def _trained(self, job: Job) -> Outcome:
        """What the clients of a job return, in main memory."""
        return self.executor.run(job.on(self.task.device)).on(CPU)

    def _unanswered(
        self, state: RunState, called: Job, plan: Plan, began: float, exam: Mapping[str, Model]
    ) -> tuple[RunState, RoundRecord]:
        """A round of which the server hears nothing: everything stays as it is."""
        upload_bytes = 0
        if plan.strays:  # what a lost upload weighs shows only when one is made
            upload_bytes = bytes_up(self._trained(called.take(plan.strays[:1])).message)
        scores = {name: self._score_on_test(w, b, state.t) for name, (w, b) in exam.items()}
        record = RoundRecord(
            t=state.t + 1,
            lr=called.round.lr,
            cohort=(),
            steps=(),
            samples=0,
            losses=(),
            drifts=(),
            bytes_down=self._broadcast_bytes(called),
            bytes_up=plan.sent * upload_bytes + self._buffer_bytes(plan.sent),
            seconds=time.perf_counter() - began,
            faults=plan.faults,
            scores=scores,
        )
        return replace(state, t=state.t + 1), record

    def evaluate(self, state: RunState, on: str = "test") -> dict[str, Score]:
        """Accuracy and loss of every candidate model on the test set (or on all ``train`` samples)."""
        scores = {name: self._score(w, b, state.t, on) for name, (w, b) in self.candidates(state).items()}
        personal = self._personal_score(state) if on == "test" else None
        return scores if personal is None else {"client_mean": personal} | scores

    def candidates(self, state: RunState) -> dict[str, Model]:
        """The models that the algorithm offers as its result, by name."""
        with self._keyed(_Moment.CANDIDATES, state.t):
            return {name: (w, state.b) for name, w in self.algorithm.candidates(state.server).items()}

    @property
    def has_personal_models(self) -> bool:
        """Whether the algorithm lets what clients use differ from the global model."""
        return type(self.algorithm).personal is not Algorithm.personal

    def feedback(self, state: RunState) -> Score:
        """The global model on the server's validation samples, for the algorithms that use it."""
        seeds = part_seeds(self.seed, Purpose.FEEDBACK, state.t)
        return self.executor.evaluate(self.task, self.samples, state.server.w, state.b, "validation", seeds)

    def observe(self, state: RunState, score: Score) -> RunState:
        """Feed the global model's score back, for the algorithms that use it."""
        with self._keyed(_Moment.OBSERVE, state.t):
            server = self.algorithm.observe(state.server, {"accuracy": score.accuracy, "loss": score.loss})
        return RunState(state.t, server, state.b, state.clients, state.client_buffers)

    def evaluate_clients(self, state: RunState) -> dict[int, Score]:
        """What each client would use, on its own test samples (its training samples where it has no test set)."""
        own = self.federation.client_tests is not None
        models = self._personal_models(state)
        scores = {}
        for client in range(self.federation.N):
            x, y = self.samples.client_test(client) if own else self.samples.of_client(client)
            w = state.server.w if models is None else models[client]
            scores[client] = self.task.evaluate(w, self._buffers_of(state, client), x, y, self._seeds(state.t, client))
        return scores

    def job(self, state: RunState) -> Job:
        """The next round, before anything is computed."""
        with self._keyed(_Moment.OPENING, state.t):
            return self._opened(state)

    def _opened(self, state: RunState) -> Job:
        present = tuple(self.schedule.cohort(state.t, self.federation.N))
        ids = self.algorithm.cohort(state.server, present, self.federation.N)
        sizes = self.sizes[list(ids)]
        clients = Clients(ids, sizes, self.federation.N, self.federation.n, len(ids), int(sizes.sum()), self.task.dtype)
        round = Round(state.t, self.schedule.lr(state.t), self.schedule.lr(0))
        message = self.algorithm.broadcast(state.server, round, clients)
        steps = self.algorithm.local_steps(message, clients, self.problem)
        if steps is None:
            steps = torch.tensor([self.training.local_steps(int(n)) for n in sizes])
        training = self.training
        return Job(
            algorithm=self.algorithm,
            task=self.task,
            problem=self.problem,
            samples=self.samples,
            schedule=self.schedule,
            seed=self.seed,
            round=round,
            clients=clients,
            message=message,
            states={
                name: [state.clients[name].get(client, zero) for client in ids]
                for name, zero in self._client_template.items()
            },
            buffers=torch.stack([self._buffers_of(state, client) for client in ids]),
            steps=steps,
            steps_per_epoch=torch.tensor([training.steps_per_epoch(int(n)) for n in sizes]),
            sgd=Sgd(round.lr, training.clip, training.weight_decay, training.momentum, self.faults.max_update_norm),
        )

    def _keyed(self, moment: _Moment, t: int = 0) -> AbstractContextManager[object]:
        """What an algorithm of somebody's own draws for the server follows from seed, round and moment."""
        known = is_registered(self.algorithm)
        seed = None if known else torch_seed(self.seed, Purpose.SERVER, t, moment)
        return keyed_if(seed, own=held_by([self.algorithm]))

    def _seeds(self, t: int, client: int, purpose: Purpose = Purpose.CLIENT_SCORES) -> Seeds:
        """Of what a model draws while it is evaluated for a client."""
        return part_seeds(self.seed, purpose, t, client)

    def _score_on_test(self, w: Tensor, b: Tensor, t: int) -> Score:
        seeds = part_seeds(self.seed, Purpose.EVALUATION, t)
        return self.executor.evaluate(self.task, self.samples, w, b, "test", seeds)

    def _score(self, w: Tensor, b: Tensor, t: int, on: str) -> Score:
        if on == "test":
            return self._score_on_test(w, b, t)
        everybody = range(self.federation.N)
        parts = [self.task.evaluate(w, b, *self.samples.of_client(i), self._seeds(t, i)) for i in everybody]
        n = sum(part.samples for part in parts)
        return Score(
            sum(part.accuracy * part.samples for part in parts) / n,
            sum(part.loss * part.samples for part in parts) / n,
            n,
        )

    def _personal_score(self, state: RunState) -> Score | None:
        """The mean over all clients of what their own models score on the whole test set."""
        models = self._personal_models(state)
        if models is None:
            return None
        everybody = range(self.federation.N)
        scores = [
            self.task.evaluate(models[i], self._buffers_of(state, i), *self.samples.test, self._seeds(state.t, i))
            for i in everybody
        ]
        accuracy = sum(score.accuracy for score in scores) / len(scores)
        return Score(accuracy, sum(score.loss for score in scores) / len(scores), scores[0].samples)

    def _personal_models(self, state: RunState) -> Tensor | None:
        """The models [N, d] that clients use themselves, where the algorithm lets these differ from the global one."""
        if not self.has_personal_models:
            return None  # nothing to gather for the many algorithms without personal models
        everybody = range(self.federation.N)
        rows = {name: rows.take(everybody, self._client_template[name]) for name, rows in state.clients.items()}
        with self._keyed(_Moment.PERSONAL, state.t):
            return self.algorithm.personal(state.server, State(**rows))

    def _losses_at(self, w: Tensor, state: RunState, ids: tuple[int, ...]) -> Tensor:
        scores = [
            self.task.evaluate(
                w, self._buffers_of(state, i), *self.samples.of_client(i), self._seeds(state.t, i, Purpose.LOSSES)
            )
            for i in ids
        ]
        return torch.tensor([score.loss for score in scores], dtype=self.task.dtype)

    def _buffers_of(self, state: RunState, client: int) -> Tensor:
        return state.client_buffers.get(client, state.b) if self._buffer_rule == "local" else state.b

    def _merge_buffers(self, b: Tensor, rows: Tensor, clients: Clients) -> Tensor:
        if not b.numel() or self._buffer_rule in ("local", "freeze"):
            return b
        merged = average(rows, clients.weights("n" if self._buffer_rule == "average" else "uniform"))
        for name in self.task.integer_buffers:
            entry = next(e for e in self.task.buffer_layout if e.name == name)
            merged[entry.start : entry.stop] = merged[entry.start : entry.stop].round()
            check_counts(name, merged[entry.start : entry.stop])
        return merged

    def _keep_buffers(self, kept: Rows, rows: Tensor, ids: tuple[int, ...]) -> Rows:
        return kept.put(ids, rows) if self._buffer_rule == "local" and rows.numel() else kept

    def _broadcast_bytes(self, called: Job) -> int:
        receivers = len(called.clients.ids)
        return bytes_down(called.message, receivers) + self._buffer_bytes(receivers)

    def _buffer_bytes(self, receivers: int) -> int:
        travels = self._buffer_rule in ("average", "uniform")
        return self.task.b0.numel() * self.task.b0.element_size() * receivers if travels else 0

    def _samples_seen(self, job: Job) -> int:
        seen = 0
        for n, steps, per_epoch in zip(
            job.clients.sizes.tolist(), job.steps.tolist(), job.steps_per_epoch.tolist(), strict=True
        ):
            epochs, rest = divmod(steps, per_epoch)
            whole = min(n, per_epoch * self.training.batch_size)
            seen += epochs * whole + min(rest * self.training.batch_size, n)
        return seen
