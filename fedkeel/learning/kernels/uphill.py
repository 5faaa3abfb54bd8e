"""Samples that walk uphill (``uphill``) on a chain of known layers, which computes every sample for itself.

So the batches of a client are one computation, and the derivatives by the inputs go through the layers by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedkeel.learning.kernels.chain import Chain
from fedkeel.learning.task import Batch, Task
from fedkeel.learning.uphill import PerSample

AT_ONCE = 250
"""Samples at a time: large enough for matrix products, small enough for the cache."""


def uphill_by_hand(
    task: Task, w: Tensor, b: Tensor, batches: Sequence[Batch], loss: PerSample, eta: float, steps: int
) -> list[Tensor]:
    """As ``uphill`` does it."""
    clients = []
    for i in range(len(w)):
        chain = task.frozen.chain_at(w[i], b[i])
        x, y = (torch.cat(parts) for parts in zip(*((batch.x[i], batch.y[i]) for batch in batches), strict=True))
        for inputs, targets in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
            inputs = task.seen_by_chain(inputs)
            for _ in range(steps):
                inputs.add_(by_inputs(chain, inputs, targets, loss).sign_(), alpha=eta)
        clients.append(torch.split(x, [batch.x.shape[1] for batch in batches]))
    return [torch.stack(parts) for parts in zip(*clients, strict=True)]


@torch.no_grad()
def by_inputs(chain: Chain, x: Tensor, targets: Tensor, loss: PerSample) -> Tensor:
    """The derivative of the sum of the samples' losses by their inputs x [n, ...]."""
    outputs, way = chain.forward(x)
    with torch.enable_grad():
        (error,) = torch.autograd.grad(loss(outputs.requires_grad_(), targets).sum(), outputs)
    return chain.by_inputs(way, error)
