"""What servers do with uploads: averages in client order, and steps along a pseudo-gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def average(rows: Iterable[Tensor], weights: Tensor) -> Tensor:
    """Σ_i weights_i·rows_i over rows together [S, ...] or one by one (new memory for all of them is not for free).

    Added in client order, so that the bits depend on nothing else.
    """
    total = torch.empty(0)
    for i, (row, weight) in enumerate(zip(rows, weights.tolist(), strict=True)):
        total = row * weight if i == 0 else total.add_(row, alpha=weight)
    return total


def average_gap(w: Tensor, rows: Iterable[Tensor], weights: Tensor) -> Tensor:
    """Σ_i weights_i·(w − rows_i) over rows as of ``average``, without forming each difference."""
    return weights.sum() * w - average(rows, weights)


def control_gain(w: Tensor, rows: Iterable[Tensor], rates: Tensor, c: Tensor) -> Tensor:
    """Σ_i s_i Δc_i, what the server's control variate gains from the models that clients upload, without forming each.

    By option II of SCAFFOLD Δc_i = (w − y_i)/(K_i η) − c. Given are the rates s_i/(K_i η) [S] and the sum of all s_i c,
    which is c itself [d] times the sum of the shares.
    """
    return average_gap(w, rows, rates) - c


def mean_direction(w: Tensor, rows: Iterable[Tensor], travel: Tensor) -> Tensor:
    """mean_S (w − y_i)/(K_i η) of models rows_i = y_i that clients made of w [d], given K_i η [S, 1]: the mean step.

    That is what steps followed, all in it: what a gradient was mixed with, corrections, clipping and weight decay.
    """
    return average_gap(w, rows, 1 / (len(travel) * travel.squeeze(1)))


def gaps(w: Tensor, rows: Iterable[Tensor]) -> Iterator[Tensor]:
    """w − rows_i one by one; each is overwritten when the next comes, which spares new memory, and may be changed."""
    space = torch.empty_like(w)
    for row in rows:
        yield torch.sub(w, row, out=space)


def towards(w: Tensor, target: Tensor, rate: float) -> Tensor:
    """w moved a share ``rate`` of the way to ``target``; exactly ``target`` for rate 1."""
    return target if rate == 1 else (1 - rate) * w + rate * target
