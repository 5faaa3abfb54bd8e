"""Clients with known optimum: F_i(y) = ½ h_i (y − b_i)². The drift methods must reach the joint optimum, FedAvg not.

A client of n_i samples all equal to its target: with the model y and inputs x = b_i the loss ½ h_i (y − b_i)² needs the
curvature as an input feature, so samples are (h_i, b_i) and every minibatch gives the exact gradient h_i (y − b_i).
Batches of one make the step counts of the clients as unequal as their sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.data import Federation, from_clients
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.losses import Loss
from fedkeel.learning.task import Task

SIZES, CURVATURE, TARGET = (1, 4, 2), (1.0, 3.0, 0.5), (2.0, -1.0, 4.0)
UNIFORM = sum(h * b for h, b in zip(CURVATURE, TARGET, strict=True)) / sum(CURVATURE)
"""(2 − 3 + 2)/4.5 = 0.2222…: the optimum of the mean of the F_i."""
WEIGHTED = sum(n * h * b for n, h, b in zip(SIZES, CURVATURE, TARGET, strict=True)) / sum(
    n * h for n, h in zip(SIZES, CURVATURE, strict=True)
)
"""(2 − 12 + 4)/(1 + 12 + 1) = −0.4286…: the optimum of the data-weighted mean."""


class Point(nn.Module):
    """One parameter y. For a sample (h, b) the output is (h, y − b)."""

    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], self.y - x[:, 1]], dim=1)


QUADRATIC = Loss("quadratic", lambda out, _: 0.5 * out[:, 0] * out[:, 1].square(), lambda out, _: out[:, 1] == 0)


def federation() -> Federation:
    clients = [
        (np.tile(np.array([[h, b]], dtype=np.float32), (n, 1)), np.zeros(n, dtype=np.int64))
        for n, h, b in zip(SIZES, CURVATURE, TARGET, strict=True)
    ]
    return from_clients(clients, test=clients[0], classes=1)


def limit(name: str, rounds: int = 250, participation: float = 1.0, **params: object) -> float:
    """Where the global model ends."""
    task = Task(Point(), QUADRATIC, torch.float64)
    training = Training(rounds=rounds, epochs=3, batch_size=1, lr=0.05, participation=participation)
    simulation = Simulation(make_algorithm(name, **params), task, federation(), training, seed=1)
    state = simulation.start()
    for _ in range(rounds):
        state, _ = simulation.step(state)
    return float(state.server.w)


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_scaffold_reaches_the_uniform_optimum(participation: float) -> None:
    assert limit("scaffold", participation=participation) == pytest.approx(UNIFORM, abs=1e-9)


@pytest.mark.parametrize("name", ["feddyn", "feddc"])
@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_feddyn_and_feddc_reach_the_data_weighted_optimum(name: str, participation: float) -> None:
    assert limit(name, participation=participation, alpha=0.5) == pytest.approx(WEIGHTED, abs=1e-9)


def test_fedavg_stops_elsewhere() -> None:
    """With K_i = 3 n_i steps client i contracts by ρ_i = (1 − 0.05 h_i)^(3 n_i): the fixed point is the mean of the b_i
    with weights p_i (1 − ρ_i), which is neither optimum."""
    rho = [(1 - 0.05 * h) ** (3 * n) for n, h in zip(SIZES, CURVATURE, strict=True)]
    pull = [n * (1 - r) for n, r in zip(SIZES, rho, strict=True)]
    fixed = sum(p * b for p, b in zip(pull, TARGET, strict=True)) / sum(pull)
    assert limit("fedavg", rounds=200) == pytest.approx(fixed, abs=1e-9)
    assert abs(fixed - WEIGHTED) > 0.05
    assert abs(fixed - UNIFORM) > 0.05


def test_fedprox_pulls_towards_the_start() -> None:
    """With the spring a client contracts to (h b + μ w)/(h + μ) instead of b, so a round moves less than FedAvg's."""
    plain, held = limit("fedavg", rounds=1), limit("fedprox", rounds=1, mu=5.0)
    assert 0 < abs(held) < abs(plain)
