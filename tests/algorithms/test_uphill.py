"""FedSAM, MoFedSAM, FedSpeed, FedLESAM-D and FedSMOO: by hand, and against their boxes in a few lines.

The quadratics of ``quadratic`` have two equal coordinates: a vector of (x, x) has the norm √2·|x|, so that ρ = 0.2·√2
moves each coordinate by 0.2, and ρ g/‖g‖ is 0.2 times the sign of g.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.fedlesam_d import FedLESAMD
from fedkeel.algorithms.fedsam import FedSAM
from fedkeel.algorithms.fedsmoo import FedSMOO
from fedkeel.algorithms.fedspeed import FedSpeed
from fedkeel.algorithms.mofedsam import MoFedSAM
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds as after
from fedkeel.check import tiny_federation, tiny_simulation
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.drawing import keyed
from fedkeel.learning.task import Task
from tests.algorithms.quadratic import path, rounds, simulation

RHO = 0.2 * math.sqrt(2)
TWO = [(1.0, 1.0), (1.0, 3.0)]
"""F_1 = ½(x − 1)², F_2 = ½(x − 3)²."""


def two_rounds(algorithm: Algorithm) -> list[float]:
    return path(simulation(algorithm, TWO, steps=1, lr=0.5), 2)[1:]


def test_fedsam_by_hand() -> None:
    """From 0 the gradients are −1 and −3, those 0.2 further uphill −1.2 and −3.2; η = ½: y = 0.6 and 1.6, w = 1.1.

    From 1.1: 0.1 and −1.9, uphill 0.3 and −2.1; y = 0.95 and 2.15, w = 1.55.
    """
    assert two_rounds(FedSAM(rho=RHO)) == pytest.approx([1.1, 1.55], abs=1e-11)


def test_mofedsam_by_hand() -> None:
    """a = ½. Round 1 has g = 0 and half of FedSAM's steps: y = 0.3 and 0.8, w = 0.55; g = mean −y/η = −1.1.

    From 0.55: −0.45 and −2.45, uphill −0.65 and −2.65; half of these and of g: −0.875 and −1.875; y = 0.9875 and
    1.4875, w = 1.2375.
    """
    assert two_rounds(MoFedSAM(rho=RHO, a=0.5)) == pytest.approx([0.55, 1.2375], abs=1e-11)


def test_fedspeed_by_hand() -> None:
    """α = ½. Round 1 as FedSAM: y = 0.6 and 1.6, which h_i become; θ̄ = h̄ = 1.1, w = 2.2.

    Round 2: uphill 1.4 and −1.0, with ½h_i = 0.3 and 0.8 these are 1.7 and −0.2; y = 1.35 and 2.3; θ̄ = 1.825,
    h̄ = 1.1 + 1.825 − 2.2 = 0.725, w = 2.55.
    """
    assert two_rounds(FedSpeed(rho=RHO, alpha=0.5)) == pytest.approx([2.2, 2.55], abs=1e-11)


def test_fedspeed_mixes_both_gradients() -> None:
    """s = ½ is half as far uphill on a quadratic."""
    half, nearer = two_rounds(FedSpeed(rho=RHO, share=0.5)), two_rounds(FedSpeed(rho=RHO / 2))
    assert half == pytest.approx(nearer, abs=1e-11)


def test_fedlesam_d_by_hand() -> None:
    """α = ½. In round 1 nothing has moved yet: y = 0.5 and 1.5, h_i the same; θ̄ = h̄ = 1, w = 2.

    It came from 0, so that uphill is −0.2: gradients at 1.8 are 0.8 and −1.2, with ½h_i = 0.25 and 0.75 they are 1.05
    and −0.45; y = 1.475 and 2.225; θ̄ = 1.85, h̄ = 1 + 1.85 − 2 = 0.85, w = 2.7.
    """
    assert two_rounds(FedLESAMD(rho=RHO, alpha=0.5)) == pytest.approx([2.0, 2.7], abs=1e-11)


def test_fedsmoo_by_hand() -> None:
    """α = ½. Round 1 as FedSpeed, w = 2.2; ε = −0.2 at both, so μ_i = −0.2, and s = −0.2 has the length ρ.

    Round 2: v = 1.2 + 0.4 = 1.6 and −0.8 + 0.4 = −0.4 have the signs of the gradients, so that w = 2.55 as there; but
    μ_1 = −0.2 + 0.2 + 0.2 = 0.2, μ_2 = −0.2 − 0.2 + 0.2 = −0.2.
    """
    states, _ = rounds(simulation(FedSMOO(rho=RHO, alpha=0.5), TWO, steps=1, lr=0.5), 2)
    assert [float(state.server.w[0]) for state in states[1:]] == pytest.approx([2.2, 2.55], abs=1e-11)
    assert states[1].server.s.tolist() == pytest.approx([-0.2, -0.2], abs=1e-11)
    assert [float(states[2].clients["mu"][i][0]) for i in (0, 1)] == pytest.approx([0.2, -0.2], abs=1e-11)


CLIENTS = [(1.0, 2.0), (3.0, -1.0), (0.5, 4.0), (2.0, 0.5)]
SIZES = [1, 4, 2, 3]
COHORTS = [[0, 1], [1, 3], [0, 2, 3], [1], [2, 3], [0, 1, 2, 3], [0, 1]]


def box(kind: str, rho: float = 0.3, alpha: float = 0.2, share: float = 1.0, lr: float = 0.05) -> list[float]:
    """The boxes, with client i of n_i samples taking 2·n_i steps; written without anything of fedkeel."""
    N, n = len(CLIENTS), sum(SIZES)
    w, mean_h, s, step = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2)
    h, mu, old = np.zeros((N, 2)), np.zeros((N, 2)), np.zeros((N, 2))
    found = []

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v) if np.linalg.norm(v) > 0 else v

    for cohort in COHORTS:
        ends = []
        for i in cohort:
            (a, b), y = CLIENTS[i], w.copy()
            for _ in range(2 * SIZES[i]):
                g = a * (y - b)
                if kind == "fedlesam_d":
                    eps = rho * unit(old[i] - w)
                elif kind == "fedsmoo":
                    eps = rho * unit(g - mu[i] - s)
                    mu[i] += eps - s
                else:
                    eps = rho * unit(g)
                q = (1 - share) * g + share * a * (y + eps - b)
                if kind == "mofedsam":
                    q = alpha * q + (1 - alpha) * step
                elif kind != "fedsam":
                    q += alpha * n / (N * SIZES[i]) * (y - w + h[i])
                y = y - lr * q
            old[i], h[i] = w, h[i] + y - w
            ends.append(y)
        s = rho * unit(np.mean(mu[cohort], axis=0))
        if kind == "mofedsam":
            step = np.mean([(w - y) / (2 * SIZES[i] * lr) for i, y in zip(cohort, ends, strict=True)], axis=0)
            w = np.mean(ends, axis=0)
        elif kind == "fedsam":
            w = np.average(ends, axis=0, weights=[SIZES[i] for i in cohort])
        else:
            mean_h = h.mean(axis=0)
            w = np.mean(ends, axis=0) + mean_h
        found.append(float(w[0]))
    return found


@pytest.mark.parametrize("kind", ["fedsam", "mofedsam", "fedspeed", "fedlesam_d", "fedsmoo"])
def test_the_boxes(kind: str) -> None:
    """Part of the clients, of unequal sizes and numbers of steps."""
    params = {"rho": 0.3} | {"fedsam": {}, "mofedsam": {"a": 0.2}}.get(kind, {"alpha": 0.2})
    run = simulation(make_algorithm(kind, **params), CLIENTS, SIZES, COHORTS, epochs=2, lr=0.05)
    assert path(run, len(COHORTS))[1:] == pytest.approx(box(kind), rel=1e-9)


def test_the_box_of_fedspeed_with_part_of_both_gradients() -> None:
    run = simulation(FedSpeed(rho=0.3, alpha=0.2, share=0.4), CLIENTS, SIZES, COHORTS, epochs=2, lr=0.05)
    assert path(run, len(COHORTS))[1:] == pytest.approx(box("fedspeed", share=0.4), rel=1e-9)


@pytest.mark.parametrize("kind", ["fedsam", "mofedsam", "fedspeed", "fedlesam_d", "fedsmoo"])
def test_uphill_makes_a_difference(kind: str) -> None:
    """On a network, where it does more than shift a quadratic: ρ has an effect, at the latest from the second round."""
    near, far = (after(tiny_simulation(make_algorithm(kind, rho=rho)), 3).server.w for rho in (0.0, 0.3))
    assert not torch.allclose(near, far, atol=1e-4)


def test_fedsam_drops_the_same_units_in_both_passes() -> None:
    """So that ρ = 0 is FedAvg with dropout too."""

    def end(algorithm: Algorithm) -> torch.Tensor:
        with keyed(1):
            module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
        training = Training(rounds=2, lr=0.1, batch_size=5, epochs=2, dtype="float64")
        run = Simulation(algorithm, Task(module, dtype=torch.float64), tiny_federation(), training)
        return after(run, 2).server.w  # type: ignore[no-any-return]

    torch.testing.assert_close(end(FedSAM(rho=0.0)), end(FedAvg()))
    assert not torch.allclose(end(FedSAM(rho=0.1)), end(FedAvg()))
