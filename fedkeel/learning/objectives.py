"""What clients minimise beside the plain loss: pieces for the algorithms that look inside the model."""

from __future__ import annotations

from torch import Tensor

from fedkeel.errors import ModelError
from fedkeel.learning.task import Batch, Task


def mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean of per-sample values [B] over one client's batch, without its padding."""
    return values.mean() if batch.weight is None else (values * batch.weight).sum()


def penalty(task: Task, y: Tensor, batch: Batch) -> Tensor | float:
    """The model's own λ/2·‖y‖² at one client's parameters [d], where it has one; the batch's share of it."""
    return mean(y.new_ones(len(batch.y)), batch) * 0.5 * task.loss.l2 * y.square().sum() if task.loss.l2 else 0.0


def cuts(task: Task, title: str) -> int:
    """How many cuts a staged model has, at least one; an error in the name of the algorithm otherwise."""
    levels = task.levels
    if levels == 0:
        raise ModelError(
            f"{title} needs a model of at least two stages, got one with a single stage; choose a model with a hidden "
            "layer (fedkeel models) or build yours as fedkeel.Staged({'body': ..., 'head': ...})."
        )
    return levels
