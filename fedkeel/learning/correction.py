"""The affine corrections of a local gradient, q ← b·q + a·(y − r) + s.

One form serves FedProx, SCAFFOLD, FedPVR, VRL-SGD, FedDyn, FedDC, FedGVR and their kin, and, with b, the methods that
mix a client's gradient with everybody's: MimeLite, FedCM, SCAFFOLD-M. Corrections are values: they
are made once per round from what a client received and remembers, added together, and applied at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """Multiplies the gradient by ``share``, adds ``slope·y + constant`` to it, and ``decay·y`` after clipping.

    ``slope`` and ``decay`` are numbers or [K, 1], ``constant`` is [K, d] or [d], ``share`` is a number; None means
    nothing (a share of 1). ``when`` [K, steps] says at which steps of which client slope and constant apply (None:
    always).
    """

    slope: Tensor | float | None = None
    constant: Tensor | None = None
    decay: Tensor | float | None = None
    when: Tensor | None = None
    share: float | None = None
    """Of the gradient alone: what is added to it is not multiplied."""

    def __post_init__(self) -> None:
        if self.share is not None and self.when is not None:
            raise ValueError("a share of the gradient holds at all steps, so that it cannot go with when")

    def __add__(self, other: Correction) -> Correction:
        if self.when is not None or other.when is not None:
            raise ValueError("add corrections first, then say at which steps the sum applies (advanced.only_at)")
        if self.share is not None and other.share is not None:
            raise ValueError("two corrections that each say the share of the gradient have no sum")
        return Correction(
            _sum(self.slope, other.slope),
            _sum(self.constant, other.constant),
            _sum(self.decay, other.decay),
            share=_sum(self.share, other.share),
        )

    def add_to(self, q: Tensor, y: Tensor, k: int) -> None:
        """Correct the gradient q [K, d] of step k in place."""
        if self.share is not None:
            q.mul_(self.share)
        if self.when is not None:
            q.add_(self.when[:, k : k + 1] * self._term(y))
            return
        if isinstance(self.slope, Tensor):
            q.addcmul_(y, self.slope)
        elif self.slope is not None:
            q.add_(y, alpha=self.slope)
        if self.constant is not None:
            q.add_(self.constant)

    def _term(self, y: Tensor) -> Tensor | float:
        linear = 0.0 if self.slope is None else self.slope * y
        return linear if self.constant is None else linear + self.constant


def _sum(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return left + right
