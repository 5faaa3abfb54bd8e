"""Parts that were tried in the search for Keel, each by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.own_method.candidates import Candidate, agreement, grouped, softly_projected
from fedkeel.algorithms.registry import make_algorithm
from tests.algorithms.quadratic import path, simulation

PARAMS = {"beta1": 0.7, "beta2": 0.6, "eta_g": 1.3}
CLIENTS = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0)]
COHORTS = [[0, 1], [2], [1, 2], [0, 2], [0, 1, 2]]


def walked(**parts: object) -> list[float]:
    algorithm = Candidate(projection=True, full=True, **PARAMS, **parts)
    return path(simulation(algorithm, CLIENTS, cohorts=COHORTS, lr=0.1, steps=3), len(COHORTS))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("c", [0.0, 0.5, 3.0])
def test_a_soft_cone_gives_way(c: float) -> None:
    """m = (−1, 2) against the row (4, 0), unit (1, 0): z (1 + c) = 1, so u = (−1 + 1/(1 + c), 2). Rows that agree, and
    rows of zeros, change nothing."""
    rows = [vector(4, 0), vector(0, 1), vector(0, 0)]
    u = softly_projected(vector(-1, 2), rows, np.array([c, c, c]))
    assert u.tolist() == pytest.approx([-1 + 1 / (1 + c), 2.0], abs=1e-9)
    assert torch.equal(softly_projected(vector(-1, 2), rows[2:], np.array([c])), vector(-1, 2))


def test_a_cone_that_hardly_gives_way_is_the_hard_one() -> None:
    assert walked(soft=1e-9) == pytest.approx(walked(), abs=1e-6)
    assert walked(soft=0.5) != pytest.approx(walked(), abs=1e-3)
    assert walked(soft=0.5, fade=0.5) != pytest.approx(walked(soft=0.5), abs=1e-4)


def test_groups_share_their_memory() -> None:
    """Clients 0 and 2 are even; with a group for everybody nothing changes."""
    ids, means = grouped((0, 1, 2), [vector(1, 0), vector(5, 5), vector(3, 2)], 2)
    assert ids == (0, 1)
    assert [mean.tolist() for mean in means] == [[2, 1], [5, 5]]
    assert walked(groups=3) == walked()
    assert walked(groups=1) != pytest.approx(walked(), abs=1e-3)


def test_trust_is_the_angle_between_momentum_and_cohort() -> None:
    assert agreement(vector(1, 0), vector(2, 0)) == pytest.approx(1)
    assert agreement(vector(1, 0), vector(0, 3)) == pytest.approx(0.5)
    assert agreement(vector(1, 0), vector(-1, 0)) == pytest.approx(0)
    assert agreement(vector(0, 0), vector(-1, 0)) == 1


def test_falling_steps_are_those_of_fedswa() -> None:
    """Without momentum and projection it is FedSWA with equal weights and α = η_g; at 1 steps do not fall."""
    algorithms = (
        Candidate(beta1=0.0, fall=0.3, eta_g=1.2),
        make_algorithm("fedswa", rho=0.3, alpha=1.2, weights="uniform"),
    )
    one, other = (
        path(simulation(algorithm, CLIENTS, cohorts=COHORTS, lr=0.1, steps=3), len(COHORTS)) for algorithm in algorithms
    )
    assert one == pytest.approx(other)
    assert walked(fall=1.0) == walked()
