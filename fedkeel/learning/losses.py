"""Losses per sample, and what counts as a right answer under each.

A batch's loss is the mean over its samples, and a client's the mean over its own. torch's losses are taken apart into
their samples, so that the mean of a full batch is the one that torch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkeel.errors import invalid, unknown

Answers = Literal["classes", "values", "any"]
"""What a model has to return: scores [B, C, ...] for labels [B, ...], values in the targets' shape, or anything."""
LossName = Literal["cross_entropy", "mse", "l1", "smooth_l1", "huber", "bce_with_logits"]
"""What an experiment may call a loss: those that take what a model of the zoo returns, which are no probabilities."""
IGNORED = -100
"""The label that torch leaves out unless told otherwise: padding in sequences of labels."""


@dataclass(frozen=True)
class Loss:
    """How outputs are scored against targets.

    ``per_sample(outputs [B, ...], targets [B, ...]) → [B]`` is averaged over a batch; ``correct`` gives how right each
    answer is [B], as truth values or shares, or is None where no answer is right or wrong; ``l2`` is λ in an added
    λ/2·‖w‖² that belongs to the objective itself (not weight decay).
    """

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    l2: float = 0.0
    answers: Answers = "any"
    ignored: int | None = None
    """The label that does not count, in sequences of labels."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """In another process, the cross-entropy is that one again, by which fast ways know it, and no copy of it."""
        if self is cross_entropy:
            return "cross_entropy"
        return Loss, (self.name, self.per_sample, self.correct, self.l2, self.answers, self.ignored)


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


cross_entropy = Loss("cross_entropy", _cross_entropy, _arg_max, answers="classes")


def squared_hinge(l2: float = 0.1) -> Loss:
    """The support-vector machine's loss λ/2·‖w‖² + ½·mean max(0, 1 − l·wᵀx)²."""
    return Loss("squared_hinge", _half_squared_hinge, _sign, l2)


@dataclass(frozen=True)
class PerSample:
    """A loss of torch's, sample by sample: the mean (or the sum) over all that a sample has."""

    module: Callable[[Tensor, Tensor], Tensor]
    """With ``reduction='none'``."""
    aligns: bool
    """Whether outputs take the shape of the targets: [B, 1] for targets [B] would be compared each with each."""
    ignored: int | None = None
    sums: bool = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = self.module(in_shape_of(targets, outputs) if self.aligns else outputs, targets)
        if values.dim() == 1:
            return values
        values = values.flatten(1)
        if self.sums:
            return values.sum(1)
        if self.ignored is None or targets.is_floating_point():
            return values.mean(1)
        return values.sum(1) / (targets != self.ignored).flatten(1).sum(1).clamp(min=1)


@dataclass(frozen=True)
class RightClass:
    """Whether the largest of a sample's scores [B, C, ...] is that of its label [B, ...]; of sequences, how often."""

    ignored: int | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():  # probabilities
            targets = targets.argmax(dim=1)
        right = (outputs.argmax(dim=1) == targets) & ~outputs.isnan().any(dim=1)
        if right.dim() == 1:
            return right
        counts = torch.ones_like(right) if self.ignored is None else targets != self.ignored
        right, counts = (right & counts).flatten(1), counts.flatten(1)
        return right.sum(1, dtype=torch.float64) / counts.sum(1).clamp(min=1)


@dataclass(frozen=True)
class RightSide:
    """The share of a sample's labels, each yes or no, on whose side of ``threshold`` its scores are [B]."""

    threshold: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scores = in_shape_of(targets, outputs)
        right = ((scores > self.threshold) == (targets > 0.5)) & ~scores.isnan()
        return right if right.dim() == 1 else right.flatten(1).mean(1, dtype=torch.float64)


def in_shape_of(targets: Tensor, outputs: Tensor) -> Tensor:
    """Outputs that differ from the targets by axes of length one, without these."""
    if outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return outputs
    squeezed = [size for size in outputs.shape if size != 1] == [size for size in targets.shape if size != 1]
    return outputs.reshape(targets.shape) if squeezed else outputs


_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_SIDES = {nn.BCEWithLogitsLoss: 0.0, nn.BCELoss: 0.5, nn.MultiLabelSoftMarginLoss: 0.0}
_VALUES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.PoissonNLLLoss,
    nn.KLDivLoss,
    nn.SoftMarginLoss,
)
KNOWN = (*_CLASSES, *_SIDES, *_VALUES)
"""The losses of torch that are sums over samples."""
_OWN = "Or give a function f(outputs, targets) with one value for each sample [B]."


def as_loss(given: object) -> Loss | None:
    """A loss by name, of torch's, of fedkeel's or somebody's own function; None is what the model asks for."""
    if given is None or (isinstance(given, Loss) and callable(given.per_sample) and _is_optional(given.correct)):
        return given
    if isinstance(given, str):
        return by_name(given)
    if given is F.cross_entropy or given is nn.CrossEntropyLoss:
        return cross_entropy
    if isinstance(given, type) and issubclass(given, nn.Module):
        hint = f"Make an object of it: {given.__name__}()."
        raise invalid("loss", "a loss, not its class", given.__name__, hint)
    if type(given) in KNOWN:
        return _of_torch(given)
    if isinstance(given, nn.modules.loss._Loss) and type(given).__module__.startswith("torch."):
        names = ", ".join(f"nn.{kind.__name__}" for kind in KNOWN)
        raise invalid("loss", f"one of {names}", f"nn.{type(given).__name__}", _OWN)
    if callable(given):
        name = str(getattr(given, "__name__", type(given).__name__))
        return Loss(f"own:{name}", given, _RightLabel())
    raise invalid("loss", 'a name such as "mse", or a loss of torch.nn such as nn.MSELoss()', given, _OWN)


def by_name(name: str) -> Loss:
    """The loss that an experiment calls so."""
    if name not in NAMED:
        raise unknown("loss", name, list(NAMED))
    return NAMED[name]


def known_as(loss: Loss) -> str | None:
    """What an experiment calls a loss; None if it has no name for exactly this one."""
    for name, known in NAMED.items():
        # Options are part of a loss's name. A function of one's own may be called anything, but is not taken apart.
        if loss == known or (loss.name == known.name and isinstance(loss.per_sample, PerSample)):
            return name
    return None


def _is_optional(correct: object) -> bool:
    return correct is None or callable(correct)


@dataclass(frozen=True)
class _RightLabel:
    """Under somebody's own loss: as for classes where targets are labels and every class has a score; else unknown."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point() or outputs.dim() != targets.dim() + 1 or outputs.shape[1] < 2:
            return torch.full((len(targets),), torch.nan, dtype=torch.float64, device=targets.device)
        return RightClass(IGNORED)(outputs, targets)


def _of_torch(given: Any) -> Loss:
    kind = type(given)
    name = f"nn.{kind.__name__}"
    reductions = ("mean", "none", "batchmean") if kind is nn.KLDivLoss else ("mean", "none")
    if given.reduction not in reductions:
        hint = "A client's loss is the mean over its samples; scale it with training.lr instead."
        raise invalid(f"{name}.reduction", " or ".join(map(repr, reductions)), given.reduction, hint)
    if getattr(given, "weight", None) is not None and kind not in (nn.MultiMarginLoss, nn.MultiLabelSoftMarginLoss):
        coupled = "divides by the weights of the batch, so that a sample's loss depends on the others in it"
        by_place = "weighs a sample by its place in the batch"
        why = coupled if kind in _CLASSES else by_place
        other = " pos_weight is allowed." if kind is nn.BCEWithLogitsLoss else ""
        raise invalid(f"{name}.weight", "absent", "a tensor of weights", f"It {why}.{other} {_OWN}")
    ignored = given.ignore_index if kind in (nn.CrossEntropyLoss, nn.NLLLoss) else None
    if kind is nn.CrossEntropyLoss and given.label_smoothing == 0 and ignored is not None and ignored < 0:
        return cross_entropy if ignored == IGNORED else _for_sequences(ignored)
    module = deepcopy(given)
    module.reduction = "none"
    per_sample = PerSample(module, kind not in _CLASSES, ignored, given.reduction == "batchmean")
    described = f"{name}{_options(given)}"
    if kind in _CLASSES:
        return Loss(described, per_sample, RightClass(ignored), answers="classes", ignored=ignored)
    correct = RightSide(_SIDES[kind]) if kind in _SIDES else None
    return Loss(described, per_sample, correct, answers="values")


def _options(given: Any) -> str:
    """What distinguishes a loss from others of its class, so that a run can tell them apart."""
    plain = {k: v for k, v in vars(given).items() if not k.startswith("_") and k not in ("reduction", "training")}
    tensors = {k: v.tolist() for k, v in given._buffers.items() if v is not None}
    return f"({', '.join(f'{k}={v}' for k, v in sorted((plain | tensors).items()))})"


def _for_sequences(ignored: int) -> Loss:
    module = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
    per_sample, correct = PerSample(module, False, ignored), RightClass(ignored)
    return Loss(f"cross_entropy over sequences, without {ignored}", per_sample, correct, 0.0, "classes", ignored)


def for_targets(loss: Loss, dimensions: int) -> Loss:
    """The loss as it is for targets of so many axes: cross-entropy of [B, T] is the mean over a sample's own labels."""
    if loss is cross_entropy:
        return loss if dimensions == 1 else _for_sequences(IGNORED)
    # One label a sample is never negative, so that nothing is left out.
    plain = loss.ignored is not None and loss.ignored < 0 and loss.name == _for_sequences(loss.ignored).name
    return cross_entropy if plain and dimensions == 1 else loss


NAMED: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mse": _of_torch(nn.MSELoss()),
    "l1": _of_torch(nn.L1Loss()),
    "smooth_l1": _of_torch(nn.SmoothL1Loss()),
    "huber": _of_torch(nn.HuberLoss()),
    "bce_with_logits": _of_torch(nn.BCEWithLogitsLoss()),
}
"""The losses of :data:`LossName`, with torch's own options."""
