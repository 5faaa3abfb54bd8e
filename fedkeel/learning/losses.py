"""Losses per sample, and what counts as a right answer under each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Loss:
    """How outputs are scored against targets.

    ``per_sample(outputs [B, ...], targets [B]) → [B]`` is averaged over a batch; ``correct`` gives the share of right
    answers its samples; ``l2`` is λ in an added λ/2·‖w‖² that belongs to the objective itself (not weight decay).
    """

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor]
    l2: float = 0.0


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _arg_max(outputs: Tensor, targets: Tensor) -> Tensor:
    # The largest of numbers with NaN among them is NaN's place, which is nobody's answer.
    return (outputs.argmax(dim=-1) == targets) & ~outputs.isnan().any(dim=-1)


def _half_squared_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """½ max(0, 1 − l·s)² with l = ±1 for targets 1 and 0 and s the one score of a sample."""
    signs = 2 * targets.to(outputs.dtype) - 1
    return 0.5 * F.relu(1 - signs * outputs.reshape(targets.shape)).square()


def _sign(outputs: Tensor, targets: Tensor) -> Tensor:
    scores = outputs.reshape(targets.shape)
    return ((scores > 0) == (targets > 0)) & ~scores.isnan()


cross_entropy = Loss("cross_entropy", _cross_entropy, _arg_max)


def squared_hinge(l2: float = 0.1) -> Loss:
    """The support-vector machine's loss λ/2·‖w‖² + ½·mean max(0, 1 − l·wᵀx)²."""
    return Loss("squared_hinge", _half_squared_hinge, _sign, l2)
