"""Step sizes that change within a round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Pace:
    """Step k of client i has the size η·factors[i, k].

    ``factors`` [K, steps] has as many columns as the client with most steps takes; what stands behind a client's own
    last step is not looked at.
    """

    factors: Tensor

    def at(self, k: int) -> Tensor:
        """The factors of step k [K, 1]."""
        return self.factors[:, k].unsqueeze(1)
