"""Federations whose runs can be computed by hand: client i has the loss h_i (x − b_i)²/2 in every coordinate.

All samples of a client are the same pair (h_i, b_i), so every minibatch gives the exact gradient h_i (x − b_i), and
K steps of rate η from w give b_i + (1 − η h_i)^K (w − b_i).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Algorithm
from fedkeel.data import Dataset, Federation, Split, Transform
from fedkeel.engine.clock import Clock
from fedkeel.engine.executors import Serial
from fedkeel.engine.rounds import RunState
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.server import RoundRecord
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.losses import Loss
from fedkeel.learning.task import Task


class Point(nn.Module):
    """Two numbers, each a layer of its own, so that ``last1`` masks the second."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 1, bias=False)
        for layer in (self.body, self.head):
            nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        h, b = x[:, 0], x[:, 1]
        return h * ((self.body.weight[0] - b).square() + (self.head.weight[0] - b).square()) / 2


_VALUE = Loss("value", lambda outputs, targets: outputs, lambda outputs, targets: targets == 0)


class Attendance(RandomSchedule):
    """Cohorts as listed, round by round."""

    def __init__(self, training: Training, cohorts: Sequence[Sequence[int]]) -> None:
        super().__init__(training, seed=0)
        self._cohorts = cohorts

    def cohort(self, round: int, clients: int) -> list[int]:
        return list(self._cohorts[round])


def simulation(
    algorithm: Algorithm,
    clients: Sequence[tuple[float, float]],
    sizes: Sequence[int] | None = None,
    cohorts: Sequence[Sequence[int]] | None = None,
    clock: Clock | None = None,
    **training: Any,
) -> Simulation:
    """Clients (h_i, b_i) with one sample each (or ``sizes``), both coordinates starting at 0, in double precision."""
    sizes = sizes or [1] * len(clients)
    x = np.repeat(np.array(clients, dtype=np.float32), sizes, axis=0)
    data = Split(x, np.zeros(len(x), dtype=np.int64))
    dataset = Dataset("quadratic", data, data, 1, ("none",), Transform(scale=1.0), citation="", licence="")
    ends = np.cumsum(sizes)
    parts = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    settings = Training(**({"batch_size": 1, "dtype": "float64"} | training))
    schedule = None if cohorts is None else Attendance(settings, cohorts)
    task = Task(Point(), _VALUE, torch.float64)
    federation = Federation(dataset, parts, {})
    return Simulation(algorithm, task, federation, settings, executor=Serial(), schedule=schedule, clock=clock)


def rounds(run: Simulation, count: int) -> tuple[list[RunState], list[RoundRecord]]:
    """All states, from the first, and the records of the rounds between them."""
    states, records = [run.start()], []
    for _ in range(count):
        state, record = run.step(states[-1])
        states.append(state)
        records.append(record)
    return states, records


def path(run: Simulation, count: int) -> list[float]:
    """The first coordinate of w before and after every round."""
    return [float(state.server.w[0]) for state in rounds(run, count)[0]]
