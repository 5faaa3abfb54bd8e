"""Keel by hand: two clients with h = 1, b = (1, −3), one step of η = 0.1, so that d_i = 0.1 (z − b_i); β1 = β2 = ½."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from benchmarks.own_method.candidates import Candidate
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from tests.algorithms import least_squares
from tests.algorithms.quadratic import path, rounds, simulation

HALF = {"beta1": 0.5, "beta2": 0.5, "eta_g": 1.0}


def run(cohorts: tuple[tuple[int, ...], ...] = ((0,), (1,)), **params: Any) -> Simulation:
    return simulation(make_algorithm("keel", **(HALF | params)), [(1, 1), (1, -3)], cohorts=cohorts, lr=0.1, steps=1)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, 0.1),
        ({"rho": -1.0}, -0.165),
        ({"m": 1}, -0.165),
        ({"beta2": 0.0}, -0.165),
        ({"rho": -1.0, "ahead": 0.0}, -0.16),
        ({"rho": -1.0, "ahead": 0.4}, -0.162),
    ],
)
def test_two_rounds(params: dict[str, Any], expected: float) -> None:
    """Round 1: d = −0.1 = m̃ = D[0], x = 0.1. Round 2 starts from z = 0.1 + ½·0.1 = 0.15: d = 0.315, m = −0.05 + 0.315.

    D = (−0.05, 0.315) leaves m̃ = 0. Where client 0 is not looked at, evicted or decayed to zero, x = 0.1 − 0.265; with
    d taken at x itself, 0.1 − 0.26; from 0.4 of the way, z = 0.12, 0.1 − 0.262.
    """
    states, _ = rounds(run(**params), 2)
    assert [float(s.server.w[0]) for s in states] == pytest.approx([0, 0.1, expected])
    assert float(states[2].server.m[0]) == pytest.approx(0.1 - expected)


def test_the_look_ahead_goes_as_far_as_the_server_steps() -> None:
    """η_g = 2, no conflicts: x = 0.2, and momentum alone would carry it by 2·½·0.1 to z = 0.3.

    There d = 0.33, m = −0.05 + 0.33 = 0.28, x = 0.2 − 0.56.
    """
    assert path(run(eta_g=2.0, rho=-1.0), 2) == pytest.approx([0, 0.2, -0.36])


def test_it_is_its_box() -> None:
    """Plain loops over a weight and a bias, four clients in changing cohorts, two steps each.

    u = m + Gᵀz with the z ≥ 0 of least ‖m + Gᵀz‖ is the projection onto {u : G u ≥ 0} (Moreau).
    """
    samples = [(1.0, 2), (-2.0, 1), (0.5, 0), (-1.0, 0)]
    cohorts, eta, beta1, beta2, eta_g = [[0, 1], [2], [1, 3], [0, 2], [3], [1, 2]], 0.2, 0.7, 0.6, 1.3
    x, m, D, found, bent = np.array([0.3, -0.2]), np.zeros(2), {}, [], 0
    for cohort in cohorts:
        z, d = x - eta_g * beta1 * m, {}
        for i in cohort:
            y, (at, target) = z, samples[i]
            for _ in range(2):
                y = y - eta * (y[0] * at + y[1] - target) * np.array([at, 1.0])
            d[i] = z - y
        D = {i: beta2 * D.get(i, np.zeros(2)) + d.get(i, 0) for i in sorted(D.keys() | d.keys())}
        m = beta1 * m + sum(d.values()) / len(cohort)
        G = np.stack([row / np.linalg.norm(row) for row in D.values()])
        multipliers, _ = nnls(G.T, -m)
        bent += bool(multipliers.any())
        m = m + G.T @ multipliers
        x = x - eta_g * m
        found.append(x)
    assert 0 < bent < len(cohorts), "both a momentum that is bent and one that is not must be there"
    algorithm = make_algorithm("keel", beta1=beta1, beta2=beta2, eta_g=eta_g)
    clients = [[one] for one in samples]
    ours = least_squares.simulation(algorithm, clients, [0.3, -0.2], lr=eta, steps=2, cohorts=cohorts)
    got = [state.server.w.numpy() for state in least_squares.states(ours, len(cohorts))[1:]]
    np.testing.assert_allclose(got, found, atol=1e-12)


def test_a_memory_smaller_than_a_cohort_is_refused() -> None:
    with pytest.raises(InputError, match=r"keel\.m must be at least the 2 clients of a round"):
        rounds(run(cohorts=((0, 1),), m=1), 1)


def test_it_comes_to_rest_on_quadratics() -> None:
    """Everybody present, equal curvatures: the mean of the minima, ½ (1 − 3), is where no client's share is undone."""
    assert path(run(cohorts=tuple([(0, 1)] * 300), rho=-1.0), 300)[-1] == pytest.approx(-1.0, abs=1e-6)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("near", "far"), [(2.0, 6.0), (2.0, 20.0), (3.0, 3.0)])
def test_with_the_projection_it_rests_where_no_client_gains_without_anothers_loss(
    near: float, far: float, beta1: float
) -> None:
    """In one dimension these are the points between the minima, of which only their ends have a direction that both
    clients agree with: it comes from 0, enters, and stays, short of the mean. One minimum for both is found."""
    clients, cohorts = [(1.0, near), (1.0, far)], [[0, 1]] * 300
    algorithm = make_algorithm("keel", beta1=beta1, beta2=0.6, eta_g=1.0)
    walked = path(simulation(algorithm, clients, cohorts=cohorts, lr=0.1, steps=1), 300)
    assert walked[-1] == pytest.approx(walked[-2], abs=1e-9)
    assert near - 1e-9 <= walked[-1] < (near + far) / 2 + 1e-9


def test_the_search_was_for_this_method() -> None:
    """The candidate with look-ahead and projection, which was searched with, is Keel to the last bit."""
    params = {"beta1": 0.7, "beta2": 0.6, "eta_g": 1.3}
    clients, cohorts = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0)], [[0, 1], [2], [1, 2], [0, 2], [0, 1, 2]]
    candidate = Candidate(projection=True, full=True, **params)
    one, other = (
        path(simulation(algorithm, clients, cohorts=cohorts, lr=0.1, steps=3), len(cohorts))
        for algorithm in (candidate, make_algorithm("keel", **params))
    )
    assert one == other
