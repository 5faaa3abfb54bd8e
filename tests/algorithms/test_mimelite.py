"""MimeLite on quadratics by hand."""

from __future__ import annotations

import pytest

from fedkeel.algorithms.registry import make_algorithm
from tests.algorithms.quadratic import path, rounds, simulation


def test_two_rounds_of_the_paper() -> None:
    """One client, h = 1, b = 1, η = 0.1, K = 2, β = 0.5, from w = 0, m = 0.

    Round 1: y = 0.05, then 0.05 + 0.05·0.95 = 0.0975 = w; m = 0.5·(−1) = −0.5 (the gradient at the old w).
    Round 2: steps −0.1 (0.5 (y − 1) − 0.25): y = 0.0975 + 0.045125 + 0.025 = 0.167625, then + 0.04161875 + 0.025
    = 0.23424375; m = 0.5·(0.0975 − 1) − 0.25 = −0.70125.
    """
    run = simulation(make_algorithm("mimelite", beta=0.5, eta_g=1.0), [(1, 1)], lr=0.1, steps=2)
    states, _ = rounds(run, 2)
    assert [float(s.server.w[0]) for s in states] == pytest.approx([0, 0.0975, 0.23424375], abs=1e-15)
    assert [float(s.server.m[0]) for s in states] == pytest.approx([0, -0.5, -0.70125], abs=1e-15)


def test_fedjax_form_gives_new_gradients_full_weight() -> None:
    """As above with K = 1: w = 0.1, m = −1; then y = 0.1 + 0.1 (0.9 + 0.5) = 0.24, m = −0.9 − 0.5 = −1.4."""
    run = simulation(make_algorithm("mimelite", beta=0.5, mode="code"), [(1, 1)], lr=0.1, steps=1)
    states, _ = rounds(run, 2)
    assert [float(s.server.w[0]) for s in states] == pytest.approx([0, 0.1, 0.24])
    assert [float(s.server.m[0]) for s in states] == pytest.approx([0, -1, -1.4])


def test_momentum_is_the_weighted_mean_gradient() -> None:
    """Sizes (1, 3), b = (1, −1), β = 0.5: m = 0.5 (1/4·(−1) + 3/4·1) = 0.25 whatever the local steps did."""
    run = simulation(make_algorithm("mimelite", beta=0.5, eta_g=1.0), [(1, 1), (1, -1)], sizes=[1, 3], lr=0.1, steps=4)
    assert float(rounds(run, 1)[0][1].server.m[0]) == pytest.approx(0.25)


def test_server_rate_scales_the_mean_step() -> None:
    """η_g = 0.5 halves the 0.05 of β = 0.5, K = 1."""
    run = simulation(make_algorithm("mimelite", beta=0.5, eta_g=0.5), [(1, 1)], lr=0.1, steps=1)
    assert path(run, 1)[1] == pytest.approx(0.025)


def test_two_vectors_travel_each_way() -> None:
    """d = 2 doubles: w and m down, y and r up, 32 bytes a client."""
    _, records = rounds(simulation(make_algorithm("mimelite"), [(1, 1), (1, -1)], steps=1), 1)
    assert (records[0].bytes_down, records[0].bytes_up) == (64, 64)
