"""FedVARP on two clients with h = 1, b = (1, −3) and K = 1, so that Δ_i = b_i − w; η = 0.1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from tests.algorithms.quadratic import path, rounds, simulation

TWO = [(1.0, 1.0), (1.0, -3.0)]


def run(cohorts: list[list[int]], name: str = "fedvarp", **training: Any) -> Any:
    params = {"weights": "uniform"} if name == "fedavg" else {}
    return simulation(make_algorithm(name, **params), TWO, cohorts=cohorts, **({"lr": 0.1, "steps": 1} | training))


def test_three_rounds() -> None:
    """Client 0: v = 1, w = 0.1, u = (1, 0). Client 1: v = −3.1 + ½ = −2.6, w = −0.16, u = (1, −3.1).

    Client 0: v = (1.16 − 1) + (1 − 3.1)/2 = −0.89, w = −0.249.
    """
    assert path(run([[0], [1], [0]]), 3) == pytest.approx([0, 0.1, -0.16, -0.249])


def test_learning_rate_decay_applies_to_old_updates() -> None:
    """η = 0.05 in round 2: v = −2.6 all the same, with the 1 stored under η = 0.1; w = 0.1 − 0.13."""
    assert path(run([[0], [1]], lr_decay=0.5), 2)[-1] == pytest.approx(-0.03)


def test_the_cohort_no_longer_shows_in_the_model() -> None:
    """One client a round, in turn: FedAvg swings about −1 for ever, FedVARP comes to rest there."""
    cohorts = [[t % 2] for t in range(400)]
    assert path(run(cohorts), 400)[-2:] == pytest.approx([-1, -1], abs=1e-8)
    swinging = path(run(cohorts, "fedavg"), 400)[-2:]
    assert abs(swinging[0] - swinging[1]) > 0.1


def test_it_is_its_box() -> None:
    """Plain loops over four clients with different steps, in changing cohorts."""
    clients, sizes = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0), (1.5, 0.5)], [1, 3, 2, 4]
    cohorts, eta, eta_g = [[0, 1], [1, 2, 3], [3], [0, 2, 3]], 0.07, 0.8
    x, table, found = 0.0, [0.0] * 4, [0.0]
    for cohort in cohorts:
        everybody, news = sum(table) / 4, 0.0
        for i in cohort:
            y = x
            for _ in range(sizes[i]):
                y -= eta * clients[i][0] * (y - clients[i][1])
            news += ((x - y) / eta - table[i]) / len(cohort)
            table[i] = (x - y) / eta
        x -= eta_g * eta * (news + everybody)
        found.append(x)
    algorithm = make_algorithm("fedvarp", eta_g=eta_g)
    ours = simulation(algorithm, clients, sizes, cohorts, lr=eta, epochs=1)
    assert path(ours, len(cohorts)) == pytest.approx(found, abs=1e-14)


def test_the_table_has_rows_for_those_heard_only() -> None:
    state = rounds(run([[1], [1]]), 2)[0][-1]
    assert list(state.server.u) == [1]
    # w = −0.3 after the first round, so that the last update is −3 + 0.3.
    assert torch.allclose(state.server.u[1], torch.full((2,), -2.7, dtype=torch.float64))
