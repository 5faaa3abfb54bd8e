"""FedInit by hand, on F = ½(x − b)² with η = 0.1 and one step: from z a client gets to z + 0.1 (b − z)."""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.engine.simulation import Simulation
from tests.algorithms.quadratic import path, rounds, simulation

TWO = [(1.0, 1.0), (1.0, -3.0)]


def run(clients: list[tuple[float, float]], cohorts: list[list[int]] | None = None, **params: Any) -> Simulation:
    return simulation(make_algorithm("fedinit", beta=0.5, **params), clients, cohorts=cohorts, lr=0.1, steps=1)


def test_clients_start_beyond_the_global_model() -> None:
    """b = (1, −3). Round 1 from 0: y = 0.1, −0.3, w = −0.1. Round 2, β = ½: z = −0.1 + ½(−0.2) = −0.2 and

    −0.1 + ½(0.2) = 0; y = −0.08 and −0.3; the updates are 0.12 and −0.3, w = −0.1 − 0.09. z has the mean w, so that
    the mean of the models is the same.
    """
    for server in ("updates", "models"):
        states, _ = rounds(run(TWO, server=server), 2)
        assert [float(state.server.w[0]) for state in states] == pytest.approx([0, -0.1, -0.19])
        assert [float(states[2].clients["y"][i][0]) for i in (0, 1)] == pytest.approx([-0.08, -0.3])


def test_a_cohort_that_was_away_does_not_move_the_model_by_its_start() -> None:
    """Client 0, then client 1, β = ½: w = 0.1; z = 0.1 + ½(0.1 − 0) = 0.15, y = 0.15 − 0.315 = −0.165.

    The update is −0.315, w = −0.215. As printed w = y = −0.165, with the 0.05 by which the start lay off.
    """
    assert path(run(TWO, [[0], [1]]), 2) == pytest.approx([0, 0.1, -0.215])
    assert path(run(TWO, [[0], [1]], mode="literal"), 2) == pytest.approx([0, 0.1, -0.165])


def test_drift_is_the_way_of_the_steps() -> None:
    """As above: 0.315 in each of two coordinates."""
    _, records = rounds(run(TWO, [[0], [1]]), 2)
    assert records[1].drifts == (pytest.approx(0.315 * 2**0.5),)
