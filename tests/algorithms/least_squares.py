"""Clients with least-squares losses, small enough to follow with pencil and paper.

A client holds samples (x, t) and the model is y·x (+ bias): its loss is the mean of ½(y·x − t)², with curvature x² and
optimum t/x for equal samples.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Algorithm
from fedkeel.data import Dataset, Federation, Split, Transform
from fedkeel.engine.client import train_together
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.rounds import RunState
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.server import RoundRecord
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.losses import Loss
from fedkeel.learning.task import Score, Task

Samples = list[tuple[float, int]]


def _half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs.reshape(targets.shape) - targets.to(outputs.dtype)).square()


HALF_SQUARE = Loss("half_square", _half_square, lambda outputs, targets: outputs.reshape(targets.shape) == targets)


class Together(Serial):
    """All clients of a round as one stack."""

    def run(self, job: Job) -> Outcome:
        return train_together(job)


class Cohorts(RandomSchedule):
    """Chosen cohorts instead of drawn ones."""

    def __init__(self, training: Training, cohorts: list[list[int]]) -> None:
        super().__init__(training, seed=0)
        self._cohorts = cohorts

    def cohort(self, round: int, clients: int) -> list[int]:
        return self._cohorts[round]


def simulation(
    algorithm: Algorithm,
    clients: list[Samples],
    w0: list[float],
    *,
    lr: float = 0.1,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 50,
    momentum: float = 0.0,
    cohorts: list[list[int]] | None = None,
    stacked: bool = False,
) -> Simulation:
    """A federation of least-squares clients in float64, from a weight (and a bias, if ``w0`` has two numbers)."""
    pairs = [pair for samples in clients for pair in samples]
    data = Split(np.array([[x] for x, _ in pairs], dtype=np.float32), np.array([t for _, t in pairs], dtype=np.int64))
    dataset = Dataset("least squares", data, data, 3, ("0", "1", "2"), Transform(scale=1.0), citation="", licence="")
    ends = np.cumsum([len(samples) for samples in clients])
    parts = tuple(np.arange(end - len(samples), end) for samples, end in zip(clients, ends, strict=True))
    task = Task(nn.Linear(1, 1, bias=len(w0) == 2), HALF_SQUARE, torch.float64)
    task.w0 = torch.tensor(w0, dtype=torch.float64)
    training = Training(
        rounds=100, lr=lr, steps=steps, epochs=epochs, batch_size=batch_size, momentum=momentum, dtype="float64"
    )
    return Simulation(
        algorithm,
        task,
        Federation(dataset, parts, rule={"rule": "by hand"}),
        training,
        executor=Together() if stacked else Serial(),
        schedule=None if cohorts is None else Cohorts(training, cohorts),
    )


def states(simulation: Simulation, rounds: int, accuracies: list[float] | None = None) -> list[RunState]:
    """The states before and after ``rounds`` rounds; accuracies in [0, 1] are fed back before each round."""
    found = [simulation.start()]
    for t in range(rounds):
        if accuracies is not None:
            found[-1] = simulation.observe(found[-1], Score(accuracies[t], 0.0, 1))
        found.append(simulation.step(found[-1])[0])
    return found


def record_of_round(simulation: Simulation, state: RunState) -> RoundRecord:
    """What one more round reports."""
    return simulation.step(state)[1]
