"""Adam and AdamW as local optimisers (Kingma & Ba, 2015; Loshchilov & Hutter, 2019), started anew every round.

m ← β₁·m + (1 − β₁)·q;   v ← β₂·v + (1 − β₂)·q²
q ← m/(1 − β₁ᵏ) / (√(v/(1 − β₂ᵏ)) + ε) + wd·y         wd only for AdamW; Adam's is part of q already
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """Its settings."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Of AdamW: taken from y itself, not through the moments."""


class Moments:
    """m and v of K clients [K, d] over the steps of a round.

    A client whose steps are over does not come back, so that the number of a step is that of everybody who takes it.
    """

    def __init__(self, adam: Adam, y: Tensor) -> None:
        self._adam = adam
        self._m, self._v = torch.zeros_like(y), torch.zeros_like(y)
        self._k = 0

    def direction(self, q: Tensor, y: Tensor) -> Tensor:
        """What the next step goes along in place of the gradient q at y [K, d]; q itself stays as it is."""
        (first, second), self._k = self._adam.betas, self._k + 1
        self._m.lerp_(q, 1 - first)
        self._v.mul_(second).addcmul_(q, q, value=1 - second)
        scale = (self._v / (1 - second**self._k)).sqrt_().add_(self._adam.eps)
        along = (self._m / (1 - first**self._k)).div_(scale)
        return along.add_(y, alpha=self._adam.weight_decay) if self._adam.weight_decay else along
