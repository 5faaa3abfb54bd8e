"""The terms that corrections are made of. They add up: ``pull(…) + shift(…)``, ``scaled(…) + shift(…)``."""

from __future__ import annotations

from torch import Tensor

from fedkeel.learning.correction import Correction


def pull(strength: Tensor | float, towards: Tensor) -> Correction:
    """a·(y − r): the gradient of (a/2)‖y − r‖²; strength a is a number or [K, 1], r is [d] or [K, d]."""
    return Correction(slope=strength, constant=-strength * towards)


def shift(by: Tensor) -> Correction:
    """+ s at every step; s is [d] or [K, d]."""
    return Correction(constant=by)


def scaled(share: float) -> Correction:
    """b·∇ in the place of a client's gradient ∇; what is added is not scaled: ``scaled(b) + shift(s)`` is b·∇ + s."""
    return Correction(share=share)


def decay(strength: Tensor | float) -> Correction:
    """a·y added after clipping, as an optimiser's weight decay is."""
    return Correction(decay=strength)
