"""What servers do with uploads: averages in client order, and steps along a pseudo-gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def average(rows: Tensor, weights: Tensor) -> Tensor:
    """Σ_i weights_i·rows_i over the first axis, added in client order so that the bits depend on nothing else."""
    total = torch.zeros_like(rows[0])
    for row, weight in zip(rows, weights, strict=True):
        total.add_(row * weight)
    return total


def towards(w: Tensor, target: Tensor, rate: float) -> Tensor:
    """w moved a share ``rate`` of the way to ``target``; exactly ``target`` for rate 1."""
    return target if rate == 1 else (1 - rate) * w + rate * target
