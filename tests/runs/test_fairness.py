"""Clients' accuracies in a few numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.runs.fairness import fairness


def test_by_hand() -> None:
    """1, ½, ½: mean 2/3; sd² = (1/9 + 2/36)/3 = 1/18; Jain (2)²/(3·(1 + ¼ + ¼)) = 4/4.5 = 8/9; the worst is ½."""
    found = fairness([0.5, 1.0, 0.5])
    assert found.clients == 3
    assert found.mean == pytest.approx(2 / 3)
    assert found.worst == 0.5
    assert found.sd == pytest.approx(math.sqrt(1 / 18))
    assert found.jain == pytest.approx(8 / 9)


def test_one_client_alone_is_served() -> None:
    """(1)²/(4·1) = 1/4 of four; nobody at all has no index."""
    assert fairness([0, 0, 1, 0]).jain == 0.25
    assert math.isnan(fairness([0, 0]).jain)


def test_the_worst_tenth_of_twenty_clients_are_two() -> None:
    """0.00, 0.05, …, 0.95: the worst two have the mean 0.025; of nineteen clients it is the worst alone."""
    accuracies = [place / 20 for place in range(20)]
    assert fairness(accuracies[::-1]).worst == pytest.approx(0.025)
    assert fairness(accuracies[:-1]).worst == 0


def test_unknown_accuracies_do_not_count() -> None:
    assert fairness([math.nan, 0.5]) == fairness([0.5])
    nothing = fairness([math.nan])
    assert (nothing.clients, str(nothing)) == (0, "no accuracy measured")


@given(st.lists(st.floats(0, 1).filter(lambda a: a == 0 or a > 1e-3), min_size=1, max_size=30))
def test_bounds(accuracies: list[float]) -> None:
    """1/K ≤ Jain ≤ 1, and K·Jain·(mean² + sd²) = K·mean², whatever the accuracies."""
    found = fairness(accuracies)
    assert min(accuracies) <= found.worst + 1e-12
    assert found.worst <= found.mean + 1e-12
    if any(accuracies):
        assert 1 / len(accuracies) - 1e-12 <= found.jain <= 1 + 1e-12
        assert found.jain * (found.mean**2 + found.sd**2) == pytest.approx(found.mean**2)
