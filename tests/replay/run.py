"""Runs a trace and compares every array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.task import Score, Task
from tests.replay.trace import MODELS, RecordedSchedule, Trace, Vectors


class Recorder(Serial):
    """The reference executor, keeping each round's job and outcome for comparison."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.outcomes: list[Outcome] = []

    def run(self, job: Job) -> Outcome:
        outcome = super().run(job)
        self.jobs.append(job)
        self.outcomes.append(outcome)
        return outcome


@dataclass
class Replay:
    """A finished replay: the simulation, its states (R + 1 of them), jobs and outcomes."""

    trace: Trace
    simulation: Simulation
    recorder: Recorder
    vectors: Vectors
    states: list[RunState]

    def global_vectors(self) -> np.ndarray:
        return np.stack([self.vectors.join(state.server.w, state.b) for state in self.states])

    def server(self, name: str) -> np.ndarray:
        """A value of the server, before and after every round [R+1, ...]."""
        return np.stack([np.asarray(state.server[name]) for state in self.states])

    def table(self, name: str, default: Tensor | None = None) -> np.ndarray:
        """A vector that every client remembers, before and after every round [R+1, N, ...]."""
        clients = range(self.simulation.federation.N)
        default = self.simulation.problem.zeros() if default is None else default
        return np.stack([state.clients[name].take(clients, default).numpy() for state in self.states])

    def per_client(self, value: Callable[[Job, Outcome, int], Any], shape: tuple[int, ...] = ()) -> np.ndarray:
        """Something that each present client has in each round [R, N, ...], NaN for the absent."""
        out = np.full((self.trace.rounds, self.simulation.federation.N, *shape), np.nan)
        for t, (job, outcome) in enumerate(zip(self.recorder.jobs, self.recorder.outcomes, strict=True)):
            for i, client in enumerate(job.clients.ids):
                out[t, client] = value(job, outcome, i)
        return out

    def uploads(self) -> np.ndarray:
        return self.per_client(lambda _, o, i: self.vectors.join(o.message.y[i], o.buffers[i]), (self.vectors.length,))

    def last_local(self) -> np.ndarray:
        """Each client's last uploaded model; the initial one before its first round [R+1, N, P]."""
        last = [np.repeat(self.trace.arrays["init"][None], self.simulation.federation.N, axis=0)]
        for row in self.uploads():
            last.append(np.where(np.isnan(row), last[-1], row))
        return np.stack(last)

    def mean_of_selected(self, weights: np.ndarray) -> np.ndarray:
        """The mean of each round's uploads, weighted by client [R, P]."""
        present = [~np.isnan(row[:, 0]) for row in self.uploads()]
        rounds = zip(self.uploads(), present, strict=True)
        return np.stack([np.average(row[here], axis=0, weights=weights[here]) for row, here in rounds])

    def mean_of_all(self, weights: np.ndarray) -> np.ndarray:
        """The mean of every client's last model after each round, weighted by client [R, P]."""
        return np.average(self.last_local()[1:], axis=1, weights=weights)

    def local_steps(self) -> np.ndarray:
        steps = self.per_client(lambda job, _, i: float(job.steps[i]))
        return np.where(np.isnan(steps), 0, steps)

    def grad_norms(self) -> np.ndarray:
        width = self.trace.arrays["grad_norms"].shape[2]

        def row(_: Job, outcome: Outcome, i: int) -> np.ndarray:
            norms = outcome.norms[i].numpy()
            return np.concatenate([norms, np.full(width - len(norms), np.nan)])

        return self.per_client(row, (width,))


Reader = Callable[[Replay], np.ndarray]


@dataclass(frozen=True)
class Setup:
    """How a trace is run here, and with what its arrays are compared."""

    algorithm: Algorithm
    training: dict[str, Any]
    """Fields of ``Training`` beside rounds and learning rate."""
    readers: dict[str, Reader] = field(default_factory=dict)
    """Arrays of this algorithm, beside the common ones."""
    tolerance: float = 1e-10
    tolerances: dict[str, float] = field(default_factory=dict)
    """Tolerances of single arrays, where they differ."""
    relative: frozenset[str] = frozenset()
    """Arrays compared relative to their own size (with tolerance 1e-9)."""
    prepare: Callable[[RunState, Vectors], RunState] | None = None
    """Changes the state before the first round, where a source starts from more than one initial vector."""
    accuracy: np.ndarray | None = None
    """Accuracies in percent to feed back before each round, for algorithms that observe them [R]."""


COMMON: dict[str, Reader] = {
    "global": Replay.global_vectors,
    "uploads": Replay.uploads,
    "local_steps": Replay.local_steps,
    "grad_norms": Replay.grad_norms,
}
INPUTS = {
    "init",
    "cohort_mask",
    "cohort_order",
    "batches",
    "pseudo_batches",
    "lr_round",
    "client_nets_init",
    "corrected_mask",
    "acc",
}


def run(trace: Trace, setup: Setup, dtype: torch.dtype) -> Replay:
    """Run a trace in the given precision."""
    make, loss = MODELS[trace.meta["model"]]
    task = Task(make(), loss, dtype)
    vectors = Vectors(task, trace.meta["layout"])
    w0, b0 = vectors.split(trace.arrays["init"])
    task.w0, task.b0 = torch.from_numpy(w0).to(dtype), torch.from_numpy(b0).to(dtype)
    training = Training(rounds=trace.rounds, lr=float(trace.arrays["lr_round"][0]), **setup.training)
    recorder = Recorder()
    simulation = Simulation(
        setup.algorithm, task, trace.federation(), training, executor=recorder, schedule=RecordedSchedule(trace)
    )
    start = simulation.start()
    states = [start if setup.prepare is None else setup.prepare(start, vectors)]
    for t in range(trace.rounds):
        state = states[-1]
        if setup.accuracy is not None:
            state = states[-1] = simulation.observe(state, Score(float(setup.accuracy[t]) / 100, 0.0, 1))
        states.append(simulation.step(state)[0])
    return Replay(trace, simulation, recorder, vectors, states)


@dataclass(frozen=True)
class Difference:
    """How far one array of a trace is from ours."""

    array: str
    largest: float
    tolerance: float

    @property
    def within(self) -> bool:
        return self.largest <= self.tolerance


def compare(path: Path) -> tuple[list[Difference], list[str]]:
    """All differences of a trace, in float64 and, where it was recorded, float32; and the arrays not compared."""
    from tests.replay.setups import setup_of

    trace = Trace.load(path)
    setup = setup_of(trace)
    readers = COMMON | setup.readers
    replay = run(trace, setup, torch.float64)
    differences, left = [], []
    for name, recorded in trace.arrays.items():
        if name in INPUTS or name.startswith(("x_", "y_")) or name.endswith("_f32"):
            continue
        if name not in readers:
            left.append(name)
            continue
        relative = name in setup.relative
        largest = _largest(readers[name](replay), recorded, name, replay.vectors.counters, relative)
        allowed = setup.tolerances.get(name, 1e-9 if relative else setup.tolerance)
        differences.append(Difference(name, largest, allowed))
    if any(name.endswith("_f32") for name in trace.arrays):
        single = run(trace, setup_of(trace), torch.float32)
        for name in ("global", "uploads"):
            if f"{name}_f32" in trace.arrays:
                recorded = trace.arrays[f"{name}_f32"]
                largest = _largest(readers[name](single), recorded, name, single.vectors.counters)
                differences.append(Difference(f"{name}_f32", largest, setup.tolerances.get(f"{name}_f32", 1e-5)))
    return differences, left


def _largest(ours: np.ndarray, theirs: np.ndarray, name: str, counters: list[int], relative: bool = False) -> float:
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float).copy()
    if ours.shape != theirs.shape:
        raise AssertionError(f"{name} has shape {ours.shape} here and {theirs.shape} in the trace")
    if counters:
        theirs[..., counters] = ours[..., counters]
    if name == "grad_norms":  # what stands after a client's last step means nothing
        theirs = np.where(np.isnan(ours), np.nan, theirs)
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return float("inf")
    scale = np.maximum(np.abs(theirs), 1e-300) if relative else 1.0
    ours, theirs = np.where(ours == theirs, 0.0, ours), np.where(ours == theirs, 0.0, theirs)  # equal infinities
    return float(np.nanmax(np.abs(ours - theirs) / scale, initial=0.0))
