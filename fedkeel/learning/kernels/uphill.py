"""Samples that walk uphill (``uphill``) on a chain of known layers, which computes every sample for itself.

So the batches of a client are one computation, and the derivatives by the inputs go through the layers by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkeel.learning.kernels.chain import Chain
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.task import Batch, Task
from fedkeel.learning.uphill import PerSample

AT_ONCE = 300
"""Samples at a time, at most: enough for matrix products at full speed, few enough for the cache."""


def uphill_by_hand(
    task: Task, w: Tensor, b: Tensor, batches: Sequence[Batch], loss: PerSample, etas: Sequence[float], steps: int
) -> list[list[Tensor]]:
    """As ``uphill`` does it. All walks start alike, so that the first direction is computed once."""
    widths = [batch.x.shape[1] for batch in batches]
    walked: list[list[Tensor]] = [[] for _ in etas]
    for i in range(len(w)):
        chain = task.frozen.chain_at(w[i], b[i])
        x, y = (torch.cat(parts) for parts in zip(*((batch.x[i], batch.y[i]) for batch in batches), strict=True))
        own = [x, *(x.clone() for _ in etas[1:])]
        count = -(-len(x) // AT_ONCE)
        for targets, *starts in zip(*(torch.tensor_split(all_, count) for all_ in (y, *own)), strict=True):
            inputs = [task.seen_by_chain(start) for start in starts]
            error = error_by(loss, targets)
            first = by_inputs(chain, inputs[0], error).sign_()
            for walker, eta in zip(inputs, etas, strict=True):
                walker.add_(first, alpha=eta)
                for _ in range(steps - 1):
                    walker.add_(by_inputs(chain, walker, error).sign_(), alpha=eta)
        for mine, after in zip(walked, own, strict=True):
            mine.append(after)
    # Of one client the batches are parts of what it walked; of several, each batch is gathered from all.
    return [
        [_stacked(parts) for parts in zip(*(torch.split(one, widths) for one in mine), strict=True)] for mine in walked
    ]


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts))


Error = Callable[[Tensor], Tensor]
"""From outputs [n, C] to the derivative of the sum of the samples' losses by them; the outputs may be overwritten."""


def error_by(loss: PerSample, targets: Tensor) -> Error:
    """The derivative of a loss against targets [n, ...]: that of cross-entropy by hand, any other's by autograd."""
    if loss is not cross_entropy.per_sample or targets.is_floating_point() or targets.dim() != 1:
        return _by_autograd(loss, targets)
    places = targets.unsqueeze(1)
    minus_one = places.new_full(places.shape, -1)
    return lambda outputs: outputs.softmax(dim=1).scatter_add_(1, places, minus_one.to(outputs.dtype))


def _by_autograd(loss: PerSample, targets: Tensor) -> Error:
    def error(outputs: Tensor) -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(loss(outputs.requires_grad_(), targets).sum(), outputs)[0]

    return error


@torch.no_grad()
def by_inputs(chain: Chain, x: Tensor, error: Error) -> Tensor:
    """The derivative of the sum of the samples' losses by their inputs x [n, ...]."""
    outputs, way = chain.forward(x)
    return chain.by_inputs(way, error(outputs))
