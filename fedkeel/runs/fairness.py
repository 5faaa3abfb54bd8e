"""How evenly a model serves clients: the mean alone hides those that it fails."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Fairness:
    """The accuracies of clients, each on its own samples, in a few numbers; NaN where no accuracy is known."""

    clients: int
    """Those whose accuracy is known."""
    mean: float
    worst: float
    """Mean of the worst tenth of the clients, one at least."""
    sd: float
    """Standard deviation over these clients, not an estimate from them."""
    jain: float
    """Jain's index (Σ a)²/(K Σ a²): 1 if all are served alike, 1/K if one alone is served; NaN if nobody is."""

    def __str__(self) -> str:
        if not self.clients:
            return "no accuracy measured"
        return (
            f"mean {self.mean:.2%} over {self.clients} clients, worst tenth {self.worst:.2%}, sd {self.sd:.2%}, "
            f"Jain {self.jain:.3f}"
        )


def fairness(accuracies: Collection[float]) -> Fairness:
    """Of one accuracy a client, in [0, 1]."""
    known = sorted(a for a in accuracies if not math.isnan(a))
    K = len(known)
    if not K:
        return Fairness(0, math.nan, math.nan, math.nan, math.nan)
    total, squares = math.fsum(known), math.fsum(a * a for a in known)
    mean, tenth = total / K, known[: max(1, K // 10)]
    sd = math.sqrt(math.fsum((a - mean) ** 2 for a in known) / K)
    return Fairness(K, mean, math.fsum(tenth) / len(tenth), sd, total * total / (K * squares) if squares else math.nan)
