"""Local steps that follow an average of past gradients on some coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Averaging:
    """On the stretches of coordinates ``parts`` a step follows m ← α·m + (1 − α)·q instead of the gradient q.

    ``m`` [K, v] holds the v coordinates of all stretches side by side. Training renews it in place.
    """

    parts: Sequence[slice]
    alpha: float
    m: Tensor

    def apply(self, q: Tensor, active: Tensor | None) -> None:
        """Put m in the gradient's place, in q [K, d] itself; ``active`` [K] says who takes this step (None: all)."""
        for part, m in zip(self.parts, self.m.split_with_sizes(self._sizes, dim=1), strict=True):
            renewed = torch.lerp(q[:, part], m, self.alpha)
            m.copy_(renewed if active is None else torch.where(active[:, None], renewed, m))
            q[:, part] = m

    def on(self, stretch: slice) -> Tensor | None:
        """m on a stretch of coordinates [K, n]; None where the step follows the gradient itself."""
        start = 0
        for part, size in zip(self.parts, self._sizes, strict=True):
            if part.start <= stretch.start and stretch.stop <= part.stop:
                first = start + stretch.start - part.start
                return self.m[:, first : first + stretch.stop - stretch.start]
            start += size
        return None

    def splits(self, stretch: slice) -> bool:
        """Whether only some coordinates of a stretch are averaged."""
        touched = any(part.start < stretch.stop and stretch.start < part.stop for part in self.parts)
        return touched and self.on(stretch) is None

    @property
    def _sizes(self) -> list[int]:
        return [part.stop - part.start for part in self.parts]
