"""What servers do with uploads: averages in client order, and steps along a pseudo-gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def average(rows: Iterable[Tensor], weights: Tensor) -> Tensor:
    """Σ_i weights_i·rows_i over rows together [S, ...] or one by one (new memory for all of them is not for free).

    Added in client order, so that the bits depend on nothing else.
    """
    total = term = torch.empty(0)
    for i, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        if i == 0:
            total, term = torch.zeros_like(row), torch.empty_like(row)
        total.add_(torch.mul(row, weight, out=term))
    return total


def towards(w: Tensor, target: Tensor, rate: float) -> Tensor:
    """w moved a share ``rate`` of the way to ``target``; exactly ``target`` for rate 1."""
    return target if rate == 1 else (1 - rate) * w + rate * target
