"""SlowMo, FedAdam, FedYogi, FedAdagrad, FedProxM and centralised SGD by hand.

One client, h = 1, b = 1, K = 1, η = 0.1, from w = 0: the client's step is Δ = 0.1 (1 − w).
"""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.errors import InputError
from tests.algorithms.quadratic import path, rounds, simulation


def two_rounds(name: str, params: dict[str, Any], **training: Any) -> list[float]:
    return path(simulation(make_algorithm(name, **params), [(1, 1)], lr=0.1, steps=1, **training), 2)[1:]


def test_slowmo_rescales_what_it_remembers() -> None:
    """β = 0.5, α_s = 2, η = 0.1 then 0.05. u = −1, w = 0.2; then u = −0.5 − 0.8 = −1.3, w = 0.2 + 2·0.05·1.3 = 0.33.

    FedAvgM, whose velocity is in units of parameters, has v = −0.1 and then −0.05 − 0.04: w = 0.2 + 2·0.09 = 0.38.
    """
    assert two_rounds("slowmo", {"beta": 0.5, "alpha_s": 2.0}, lr_decay=0.5) == pytest.approx([0.2, 0.33])
    assert two_rounds("fedavgm", {"beta": 0.5, "eta_g": 2.0}, lr_decay=0.5) == pytest.approx([0.2, 0.38])


RULE = {"beta1": 0.5, "tau": 0.1, "eta_g": 0.2}


def test_fedadam_two_steps() -> None:
    """Δ = 0.1: m = 0.05, v = 0.99·0.01 + 0.01·0.01 = 0.01, w = 0.2·0.05/(0.1 + 0.1) = 0.05.

    Δ = 0.095: m = 0.025 + 0.0475 = 0.0725, v = 0.0099 + 0.01·0.009025 = 0.00999025, w = 0.05 + 0.2·0.0725/(√v + 0.1).
    """
    second = 0.05 + 0.0145 / (0.00999025**0.5 + 0.1)
    assert two_rounds("fedadam", RULE) == pytest.approx([0.05, second], abs=1e-14)


def test_fedyogi_grows_and_shrinks_by_the_same_amount() -> None:
    """Δ² = 0.01, m = 0.05, and v moves by 0.01·0.01 towards it: from τ² = 0.0025 to 0.0026, from 0.04 to 0.0399.

    FedAdam would move in proportion to the distance, from 0.04 to 0.0397.
    """
    assert two_rounds("fedyogi", RULE | {"tau": 0.05})[0] == pytest.approx(0.01 / (0.0026**0.5 + 0.05), abs=1e-14)
    assert two_rounds("fedyogi", RULE | {"tau": 0.2})[0] == pytest.approx(0.01 / (0.0399**0.5 + 0.2), abs=1e-14)
    assert two_rounds("fedadam", RULE | {"tau": 0.2})[0] == pytest.approx(0.01 / (0.0397**0.5 + 0.2), abs=1e-14)


def test_fedadagrad_adds_up() -> None:
    """v = 0.01 + 0.01 = 0.02, m = 0.05: w = 0.01/(√0.02 + 0.1); and 0.01/(0.1 + 0.1) = 0.05 with v starting at 0."""
    assert two_rounds("fedadagrad", RULE)[0] == pytest.approx(0.01 / (0.02**0.5 + 0.1), abs=1e-14)
    assert two_rounds("fedadagrad", RULE | {"v0": "zero"})[0] == pytest.approx(0.05, abs=1e-14)


def test_fedproxm_is_momentum_over_the_spring() -> None:
    """μ = 1, K = 2: the second step has gradient −0.9 + 0.1 = −0.8, so y = 0.18; v = −0.18, w = 0.18.

    Round 2: y − w = 0.18 (1 − w) = 0.1476, v = −0.09 − 0.1476 = −0.2376, w = 0.4176.
    """
    run = simulation(make_algorithm("fedproxm", mu=1.0, beta=0.5), [(1, 1)], lr=0.1, steps=2)
    assert path(run, 2) == pytest.approx([0, 0.18, 0.4176])


def test_centralised_is_plain_sgd_over_its_rounds() -> None:
    """h = 1, b = 1, η = 0.1, 3 rounds of 4 steps are 12 steps: w = 1 − 0.9^12."""
    run = simulation(make_algorithm("centralised"), [(1, 1)], sizes=[5], lr=0.1, steps=4)
    assert path(run, 3)[-1] == pytest.approx(1 - 0.9**12)


def test_centralised_wants_one_client() -> None:
    with pytest.raises(InputError, match="needs all data at one client, got 2 clients"):
        rounds(simulation(make_algorithm("centralised"), [(1, 1), (1, -1)], steps=1), 1)
