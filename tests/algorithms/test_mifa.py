"""MIFA and MIFAM on two clients with h = 1, b = (1, −3) and K = 1, so that U_i = b_i − w; η = 0.1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.engine.simulation import Simulation
from tests.algorithms.quadratic import path, rounds, simulation

TWO = [(1.0, 1.0), (1.0, -3.0)]


def run(cohorts: list[list[int]], name: str = "mifa", lr_decay: float = 1.0, **params: Any) -> Simulation:
    return simulation(make_algorithm(name, **params), TWO, cohorts=cohorts, lr=0.1, lr_decay=lr_decay, steps=1)


def test_absent_clients_take_part_with_their_last_update() -> None:
    """Round 1, client 0: U = (1, 0), w = 0.1·1/2 = 0.05, half of FedAvg's step as half of the clients have spoken.

    Round 2, client 1: U_1 = −3.05, w = 0.05 + 0.1 (1 − 3.05)/2 = −0.0525. Round 3, client 0: U_0 = 1.0525,
    w = −0.0525 + 0.1 (1.0525 − 3.05)/2 = −0.152375.
    """
    assert path(run([[0], [1], [0]]), 3) == pytest.approx([0, 0.05, -0.0525, -0.152375])


def test_learning_rate_decay_applies_to_old_updates() -> None:
    """η = 0.1 then 0.05: round 2 adds 0.05 (1 − 3.05)/2 = −0.05125, with the 1 stored under η = 0.1."""
    assert path(run([[0], [1]], lr_decay=0.5), 2)[-1] == pytest.approx(0.05 - 0.05125)


def test_waiting_steps_when_the_last_client_reports() -> None:
    """Nothing moves while client 1 is missing; in round 3 it reports and w = 0.1 (1 − 3)/2 = −0.1 at once."""
    assert path(run([[0], [0], [1]], wait=True), 3) == pytest.approx([0, 0, 0, -0.1])


def test_code_mode_calls_everybody_and_steps_a_round_later() -> None:
    """Round 1: client 0 shows up and trains nothing. Round 2: client 1 shows up, both train, no step.

    Round 3: client 0 again, U = (1, −3) unchanged at w = 0, first step to −0.1.
    """
    states, records = rounds(run([[0], [1], [0]], wait=True, mode="code"), 3)
    assert [float(state.server.w[0]) for state in states] == pytest.approx([0, 0, 0, -0.1])
    assert [record.cohort for record in records] == [(0,), (0, 1), (0,)]
    assert [record.steps for record in records] == [(0,), (1, 1), (1,)]


def test_weights_by_samples_reach_the_weighted_optimum() -> None:
    """Sizes 3 and 1: the optimum of Σ p_i F_i is (3·1 − 3)/4 = 0 by samples, (1 − 3)/2 = −1 with equal weights."""
    cohorts = [[t % 2] for t in range(60)]
    for weights, optimum in (("n", 0.0), ("uniform", -1.0)):
        algorithm = make_algorithm("mifa", weights=weights)
        here = simulation(algorithm, TWO, sizes=[3, 1], cohorts=cohorts, lr=0.2, steps=1)
        assert path(here, 60)[-1] == pytest.approx(optimum, abs=1e-3)


def test_mifam_accumulates_mifas_step() -> None:
    """β = 0.5, client 0 twice. v = −0.05, w = 0.05; U_0 = 0.95, v = −0.025 − 0.0475 = −0.0725, w = 0.1225."""
    assert path(run([[0], [0]], name="mifam", beta=0.5), 2) == pytest.approx([0, 0.05, 0.1225])


def test_sum_does_not_depend_on_the_order_of_reports() -> None:
    """The table is summed by client, so a run that was written, read back and sorted goes on to the same bits."""
    clients = [(1.0, b) for b in (0.1, 0.7, -0.3)]
    ways = [
        rounds(simulation(make_algorithm("mifa", wait=True), clients, cohorts=[*order], steps=1, lr=0.1), 3)[0][-1]
        for order in ([[0], [1], [2]], [[2], [1], [0]])
    ]
    assert torch.equal(ways[0].server.w, ways[1].server.w)
