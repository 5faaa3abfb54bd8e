"""FedNova on quadratics that can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkeel.algorithms.contract import travel
from fedkeel.algorithms.fednova import step_weight
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.errors import InputError
from tests.algorithms.quadratic import path, rounds, simulation


def test_one_round_with_unequal_steps() -> None:
    """h = 1, b = (1, −1), sizes (1, 3), B = 1, one epoch: K = (1, 3), η = 0.1, from w = 0.

    y_1 = 0.1, y_2 = −(1 − 0.9³) = −0.271; directions −0.1 and 0.271/3; p = (1/4, 3/4), τ_eff = 1/4 + 9/4 = 2.5.
    w = −2.5 (−0.1/4 + 3/4 · 0.271/3) = 0.0625 − 0.169375 = −0.106875. FedAvg would give 0.025 − 0.20325 = −0.17825.
    """
    run = simulation(make_algorithm("fednova"), [(1, 1), (1, -1)], sizes=[1, 3], lr=0.1, epochs=1)
    assert path(run, 1)[1] == pytest.approx(-0.106875, abs=1e-15)


def test_small_steps_reach_the_optimum_that_fedavg_misses() -> None:
    """b = (1, −1), sizes (1, 3): the optimum of Σ p_i F_i is 1/4 − 3/4 = −0.5.

    FedAvg's fixed point weighs client i by p_i K_i, that is 1 to 9: (1 − 9)/10 = −0.8, up to O(η) in both.
    """
    problem: dict[str, Any] = {"clients": [(1, 1), (1, -1)], "sizes": [1, 3], "lr": 0.05, "epochs": 1}
    assert path(simulation(make_algorithm("fednova"), **problem), 50)[-1] == pytest.approx(-0.5, abs=0.04)
    assert path(simulation(make_algorithm("fedavg"), **problem), 50)[-1] == pytest.approx(-0.8, abs=0.04)


def test_step_weight_of_momentum_is_the_closed_form() -> None:
    """K = 1, 2, 5 with ρ = 0.9; K = 2 by hand: the first gradient counts 1 + 0.9 times, the second once: 2.9."""
    steps = torch.tensor([1, 2, 5])
    a = step_weight(steps, 0.9, 0.0, torch.float64)
    assert a[1] == pytest.approx(2.9)
    torch.testing.assert_close(a, travel(1.0, steps, 0.9, torch.float64)[:, 0])


def test_step_weight_of_a_spring_is_the_geometric_sum() -> None:
    """With ημ = 0.2: 1, 1 + 0.8, 1 + 0.8 + 0.64, …, that is (1 − 0.8^K)/0.2; a client that is done stays."""
    a = step_weight(torch.tensor([1, 3]), 0.0, 0.2, torch.float64)
    assert a.tolist() == pytest.approx([1.0, 2.44])


def test_spring_moves_by_its_step_weight() -> None:
    """For a constant gradient g the spring's path is exactly w − y = η ‖a‖₁ g, which is what ‖a‖₁ means.

    h → 0 with h·b fixed makes the gradient constant: h = 1e-6, b = 1e6, so g = −1 near 0; η = 0.1, μ = 2, K = 3:
    ‖a‖₁ = 1 + 0.8 + 0.64 = 2.44, so y = 0.244 (to 1e-6), and one client alone moves w there.
    """
    run = simulation(make_algorithm("fednova", mu=2.0), [(1e-6, 1e6)], lr=0.1, steps=3)
    states, _ = rounds(run, 1)
    assert float(states[1].server.w[0]) == pytest.approx(0.244, abs=1e-5)


def test_code_mode_counts_steps_under_a_spring() -> None:
    """Two equal clients, K = 3, ημ = 0.2: all that changes is τ_eff = K instead of ‖a‖₁, so steps grow by 3/2.44."""
    problem: dict[str, Any] = {"clients": [(1, 1), (1, 1)], "lr": 0.1, "steps": 3}
    default = path(simulation(make_algorithm("fednova", mu=2.0), **problem), 1)[1]
    code = path(simulation(make_algorithm("fednova", mu=2.0, mode="code"), **problem), 1)[1]
    assert code == pytest.approx(default * 3 / 2.44)


def test_server_momentum_is_in_units_of_gradients() -> None:
    """One client, h = 1, b = 1, K = 1, γ = 0.5, η = 0.1 and then 0.05.

    Round 1: u = −1, w = 0.1. Round 2: gradient −0.9, u = −0.5 − 0.9 = −1.4, w = 0.1 + 0.05 · 1.4 = 0.17.
    """
    run = simulation(make_algorithm("fednova", gmf=0.5), [(1, 1)], lr=0.1, lr_decay=0.5, steps=1)
    assert path(run, 2) == pytest.approx([0, 0.1, 0.17])


def test_uploads_a_model_and_one_number() -> None:
    """d = 2 doubles down; 2 doubles and one 4-byte number up, for each of 2 clients."""
    _, records = rounds(simulation(make_algorithm("fednova"), [(1, 1), (1, -1)], steps=1), 1)
    assert (records[0].bytes_down, records[0].bytes_up) == (2 * 16, 2 * 20)


def test_spring_and_momentum_together_are_refused_by_default() -> None:
    run = simulation(make_algorithm("fednova", mu=0.1), [(1, 1)], steps=2, momentum=0.9)
    with pytest.raises(InputError, match=r"fednova\.mu must be 0 with training\.momentum = 0\.9, got 0\.1"):
        rounds(run, 1)
    rounds(simulation(make_algorithm("fednova", mu=0.1, mode="code"), [(1, 1)], steps=2, momentum=0.9), 1)
