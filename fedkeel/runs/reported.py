"""The accuracy that a run reports. There are three, and each says which it is: they answer different questions.

The best of many noisy rounds flatters; the last alone is noisy; the mean of the last tenth is what to expect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 10
"""The mean is over the last 1/10 of the rounds."""


@dataclass(frozen=True)
class Reported:
    """Test accuracies in [0, 1]; NaN where none was measured."""

    last: float = math.nan
    """Of the last evaluated round."""
    late: float = math.nan
    """Mean over the evaluations of the last 10 % of the rounds, the last evaluation at least."""
    best: float = math.nan
    best_round: int | None = None
    """The first of equals."""

    def __str__(self) -> str:
        if math.isnan(self.last):
            return "no accuracy measured"
        best = "" if self.best_round is None else f" (round {self.best_round})"
        return f"last round {self.last:.2%}, mean of the last 10 % {self.late:.2%}, best {self.best:.2%}{best}"


def reported(points: Sequence[tuple[int, float]], rounds: int) -> Reported:
    """From evaluations as (round, accuracy), in round order, of a run with so many rounds behind it."""
    if not points:
        return Reported()
    late = [value for round, value in points if round > rounds - rounds / SHARE] or [points[-1][1]]
    known = [point for point in points if not math.isnan(point[1])]
    best = max(known, key=lambda point: point[1], default=None)
    mean = math.fsum(late) / len(late)
    return Reported(points[-1][1], mean, best[1] if best else math.nan, best[0] if best else None)
