"""Samples that walk uphill on a model's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from fedkeel.learning.task import Batch, Net, Task

PerSample = Callable[[Tensor, Tensor], Tensor]
"""From outputs [n, C] and targets [n, ...] to a loss of each sample [n]."""


def uphill(
    task: Task, w: Tensor, b: Tensor, batches: Sequence[Batch], loss: PerSample, etas: Sequence[float], steps: int
) -> list[list[Tensor]]:
    """For each step size η, the inputs of each batch [K, B, ...] after steps along the sign of the loss's gradient.

    The models w [K, d] with buffers [K, m] compute in evaluation mode. This is the plain way, by autograd.
    """

    def walked(batch: Batch, eta: float) -> Tensor:
        x = batch.x
        for _ in range(steps):
            x = x + eta * by_inputs(task, w, b, replace(batch, x=x), loss).sign()
        return x

    return [[walked(batch, eta) for batch in batches] for eta in etas]


def by_inputs(task: Task, w: Tensor, b: Tensor, batch: Batch, loss: PerSample) -> Tensor:
    """The derivative of the sum of the samples' losses by their inputs [K, B, ...]."""

    def objective(net: Net, inputs: Tensor, one: Batch, own: dict[str, Tensor]) -> Tensor:
        # The mean over the batch would divide by its size, which does not change a sign.
        return loss(net.forward(own["w"], inputs.view(one.x.shape)), one.y).sum()

    # The point at which the gradient is taken are the inputs, not the parameters.
    gradient, *_ = task.gradient(batch.x.flatten(1), b, batch, objective, {"w": w}, train=False)
    return gradient.view(batch.x.shape)
