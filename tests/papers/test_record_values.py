"""What algorithms note of a round, as records keep it."""

from __future__ import annotations

import math

from fedkeel.papers.records import values


def test_numbers_and_clients_numbers_by_round_in_the_order_of_clients() -> None:
    """0.123456789 has six digits; client 2 stands before client 7 whoever came first; NaN is None."""
    assert values({1: 0.123456789, 3: math.nan}) == ((1, 3), (0.123457, None))
    assert values({2: {7: 1.0, 2: 20.0}, 4: {2: math.inf}}) == ((2, 4), ((20.0, 1.0), (None,)))
