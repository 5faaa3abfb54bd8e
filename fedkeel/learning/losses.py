"""Losses per sample, and what counts as a right answer under each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from fedkeel.errors import invalid


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


def as_loss(given: object) -> Loss | None:
    """A loss of fedkeel's, or torch's cross-entropy as it is by default; None stays what the model asks for."""
    if given is None or (isinstance(given, Loss) and callable(given.per_sample) and callable(given.correct)):
        return given
    if given is F.cross_entropy or given is nn.CrossEntropyLoss or _is_plain_cross_entropy(given):
        return cross_entropy
    hint = "It scores every sample by itself: Loss(name, per_sample=f(outputs, targets), correct=g(outputs, targets))."
    raise invalid("loss", "a fedkeel.learning.losses.Loss or torch.nn.CrossEntropyLoss() without options", given, hint)


def _is_plain_cross_entropy(given: object) -> bool:
    return (
        type(given) is nn.CrossEntropyLoss
        and given.weight is None
        and given.reduction == "mean"
        and given.label_smoothing == 0
        and given.ignore_index < 0
    )


cross_entropy = Loss("cross_entropy", _cross_entropy, _arg_max)


def squared_hinge(l2: float = 0.1) -> Loss:
    """The support-vector machine's loss λ/2·‖w‖² + ½·mean max(0, 1 − l·wᵀx)²."""
    return Loss("squared_hinge", _half_squared_hinge, _sign, l2)
