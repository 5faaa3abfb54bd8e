"""FedSWA and FedMoSWA: steps that shrink within a round, by hand, against a few lines of their own, and in travel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.advanced import Rule
from fedkeel.algorithms.contract import Answer, Local
from fedkeel.algorithms.fedmoswa import FedMoSWA
from fedkeel.algorithms.fedswa import FedSWA, falling
from fedkeel.algorithms.scaffold import Scaffold
from fedkeel.check import rounds as after
from fedkeel.check import tiny_simulation
from fedkeel.learning.pace import Pace
from tests.algorithms.quadratic import path, rounds, simulation
from tests.algorithms.test_quadratics import UNIFORM, limit

TWO = [(1.0, 1.0), (1.0, 3.0)]
"""F_1 = ½(x − 1)², F_2 = ½(x − 3)²."""


def test_a_round_of_fedswa() -> None:
    """ρ = 0, η = ½, two steps of ½ and ¼ from 0: y_1 = ½ → ½ + ¼·½ = 0.625, y_2 = 1.875; mean 1.25, times α = 1.5."""
    assert path(simulation(FedSWA(rho=0.0), TWO, steps=2, lr=0.5), 1)[1] == pytest.approx(1.875, abs=1e-15)


def test_the_last_of_K_steps_is_not_yet_at_rho() -> None:
    """η_k = η(1 − (1 − ρ)k/K): 1, 0.7, 0.4 for ρ = 0.1 and K = 3, and 1, 0.55 for K = 2."""
    found = falling(torch.tensor([3, 2]), 0.1)
    assert found[0].tolist() == pytest.approx([1, 0.7, 0.4])
    assert found[1, :2].tolist() == pytest.approx([1, 0.55])


def test_a_round_of_fedmoswa() -> None:
    """ρ = 0, η = ½, two steps as above; Σ η_k = ¾, so c_1 = −0.625/¾ = −5/6 and c_2 = −2.5; m = 0.2·mean = −1/3.

    From w = 1.875 the second round has client 1 step along ∇F_1 + 5/6 − 1/3 = 0.875 + 0.5 = 1.375: y = 1.1875, then
    0.1875 + 0.5 = 0.6875 and y = 1.015625; client 2 steps along −1.125 + 2.5 − 1/3 = 25/24: y = 65/48 = 1.354166…, then
    −79/48 + 13/6 = 25/48 and y = 235/192 = 1.223958…. Their mean is 1.119791…, and w = 1.875 + 1.5·(that − 1.875).
    """
    states, _ = rounds(simulation(FedMoSWA(rho=0.0, weights="n"), TWO, steps=2, lr=0.5), 2)
    assert float(states[1].server.w[0]) == pytest.approx(1.875, abs=1e-15)
    assert float(states[1].server.m[0]) == pytest.approx(-1 / 3, abs=1e-15)
    assert float(states[2].server.w[0]) == pytest.approx(1.875 + 1.5 * ((1.015625 + 235 / 192) / 2 - 1.875), abs=1e-14)


CLIENTS = [(1.0, 2.0), (3.0, -1.0), (0.5, 4.0), (2.0, 0.5)]
SIZES = [1, 4, 2, 3]
COHORTS = [[0, 1], [1, 3], [0, 2, 3], [1], [2, 3], [0, 1, 2, 3]]


def fedmoswa(rho: float, alpha: float, gamma: float, momentum: float, lr: float = 0.05) -> list[float]:
    """The box, one number a model, where client i takes 2·n_i steps."""
    w, m, c, found = 0.0, 0.0, [0.0] * 4, []
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            (h, b), K = CLIENTS[i], 2 * SIZES[i]
            y, v, way, reach = w, 0.0, 0.0, 0.0
            for k in range(K):
                rate = lr * (1 - k / K + rho * k / K)
                v = momentum * v + h * (y - b) - c[i] + m
                way = momentum * way + 1  # what a gradient of one would have done
                y, reach = y - rate * v, reach + rate * way
            c[i] += -m + (w - y) / reach
            ends.append(y)
        m += gamma * (sum(c[i] for i in cohort) / len(cohort) - m)
        w += alpha * (sum(ends) / len(ends) - w)
        found.append(w)
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fedmoswa_follows_its_box(momentum: float) -> None:
    run = simulation(FedMoSWA(), CLIENTS, SIZES, COHORTS, epochs=2, lr=0.05, momentum=momentum)
    assert path(run, len(COHORTS))[1:] == pytest.approx(fedmoswa(0.1, 1.5, 0.2, momentum), rel=1e-12)


def test_fedmoswa_reaches_the_joint_optimum() -> None:
    """In equilibrium c_i is client i's mean gradient along its steps, and m their mean, which is zero there."""
    assert limit("fedmoswa") == pytest.approx(UNIFORM, abs=1e-6)
    assert abs(limit("fedswa", weights="uniform") - UNIFORM) > 0.05


def test_the_program_runs_no_decay_under_fedmoswa() -> None:
    params = FedMoSWA(mode="code").params
    assert (params.rho, params.alpha, params.gamma, params.weights) == (1.0, 1.0, 0.4, "uniform")
    assert FedSWA(mode="code").params.rho == 0


class ShrinkingScaffold(Scaffold):
    """SCAFFOLD whose steps shrink: client and server each work out c_i on their own."""

    name = "shrinking_scaffold"

    def pace(self, steps: Tensor) -> Tensor:
        return falling(steps, 0.1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_server_and_clients_have_the_same_travel(momentum: float) -> None:
    """With Δc_i uploaded or derived at the server from y_i, K_i and η_k, c is the same: sizes differ, so do K_i."""
    sent, derived = (
        after(tiny_simulation(ShrinkingScaffold(traffic=how), participation=0.6, momentum=momentum), 4)
        for how in ("paper", "min")
    )
    torch.testing.assert_close(sent.server.c, derived.server.c, rtol=1e-9, atol=1e-12)
    even = after(tiny_simulation(Scaffold(), participation=0.6, momentum=momentum), 4)
    assert not torch.allclose(even.server.c, derived.server.c)


class TwoPaces(FedSWA):
    name = "two_paces"

    def local_round(self, local: Local) -> Answer:
        trained = local.train_by(Rule(pace=Pace(self.pace(local.steps))))
        return *self.finish(local, trained.y), trained


def test_a_pace_is_said_in_one_place() -> None:
    run = tiny_simulation(TwoPaces())
    with pytest.raises(ValueError, match="in its method pace"):
        run.step(run.start())
