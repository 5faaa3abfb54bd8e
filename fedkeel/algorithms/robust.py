"""Robust means: one vector that stands for n uploads of which up to f, nobody knows which, may be anything at all.

    median             of every coordinate                                          Yin et al., ICML 2018
    trimmed mean       of every coordinate, without its f largest and f smallest    Yin et al., ICML 2018
    geometric median   the point with the least sum of distances to all uploads     Pillutla et al., IEEE TSP 2022 (RFA)
    Krum, Multi-Krum   the upload, or the mean of the n − f uploads, with the closest neighbours
                                                                                    Blanchard et al., NeurIPS 2017
    centred clipping   the mean, to which no upload adds more than a radius         Karimireddy et al., ICML 2021
    buckets            means of random groups, to which one of these is applied     Karimireddy et al., ICLR 2022

Rows are uploads, [n, d]. Every rule is unweighted: a weight would be one more number that a client may choose. Nothing
larger than a few blocks of coordinates or vectors of length d is made. What is so far off that its distance cannot be
written as a number has no part in distances, weights and means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median_low

import torch
from torch import Tensor

from fedkeel.algorithms.server_steps import average

BLOCK = 1 << 14
"""Coordinates that are sorted or compared at a time: few enough for a processor's cache."""
WEISZFELD_STEPS = 100
SETTLED = 1e-7
"""A geometric median that moves less than this share of the median distance is found."""
SMOOTHING = 1e-6
"""ν: nearer than this share of the median distance, an upload weighs no more than at it."""
CLIPPING_STEPS = 3


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """The mean of each coordinate without its f smallest and f largest values [d]; n > 2f."""
    n = len(rows)
    found = torch.empty_like(rows[0])
    for part in _blocks(rows):
        first, *others = _ordered(rows[:, part])[f : n - f]
        for row in others:
            first.add_(row)
        torch.div(first, n - 2 * f, out=found[part])
    return found


def median(rows: Tensor) -> Tensor:
    """The median of each coordinate [d], of an even number the mean of the two in the middle."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def geometric_median(rows: Tensor) -> Tensor:
    """argmin_z Σ_i ‖z − rows_i‖ [d], by Weiszfeld's steps with smoothed weights, from the median of each coordinate."""
    z = median(rows)
    distances = _distances(rows, z)
    scale = median_low(distances)
    if scale == 0:
        return z
    rounding = 2 * torch.finfo(rows.dtype).eps * float(torch.linalg.vector_norm(z, dtype=torch.float64))
    for _ in range(WEISZFELD_STEPS):
        pulls = torch.tensor([1 / max(distance, SMOOTHING * scale) for distance in distances], dtype=torch.float64)
        before, z = z, _weighted(rows, (pulls / pulls.sum()).tolist())
        if float(torch.linalg.vector_norm(z - before)) <= max(SETTLED * scale, rounding):
            break
        distances = _distances(rows, z)
    return z


def multi_krum(rows: Tensor, f: int, m: int | None = None) -> Tensor:
    """The mean of the m uploads with the least sums of squared distances to their n − f − 2 nearest [d]; n > 2f + 2.

    ``m`` is n − f by default; ties go to the earlier upload.
    """
    n = len(rows)
    apart = _squared_distances(rows).fill_diagonal_(math.inf)
    scores = apart.sort(dim=1).values[:, : n - f - 2].sum(dim=1)
    chosen = scores.sort(stable=True).indices[: n - f if m is None else m].sort().values
    return average((rows[i] for i in chosen.tolist()), torch.full((len(chosen),), 1 / len(chosen), dtype=torch.float64))


def krum(rows: Tensor, f: int) -> Tensor:
    """The upload with the least sum of squared distances to its n − f − 2 nearest [d]; n > 2f + 2."""
    return multi_krum(rows, f, 1)


def centred_clipping(rows: Tensor, radius: float | None = None, steps: int = CLIPPING_STEPS) -> Tensor:
    """``steps`` times v ← v + 1/n Σ_i (rows_i − v)·min(1, radius/‖rows_i − v‖) [d], from the median of each coordinate.

    The radius is by default the median distance from there, so that there is nothing to be tuned.
    """
    v = median(rows)
    distances = _distances(rows, v)
    tau = median_low(distances) if radius is None else radius
    if tau == 0:
        return v
    for _ in range(steps):
        shares = [1.0 if distance <= tau else tau / distance for distance in distances]
        held = v * (1 - math.fsum(shares) / len(shares))
        v = held.add_(_weighted(rows, [share / len(shares) for share in shares]))
        distances = _distances(rows, v)
    return v


def buckets(rows: Tensor, order: Sequence[int], size: int) -> Tensor:
    """The means [⌈n/size⌉, d] of the rows in groups of ``size``, taken in an order; the last group may be smaller."""
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    return torch.stack([_weighted(rows[list(group)], [1 / len(group)] * len(group)) for group in groups])


@dataclass(frozen=True)
class Rule:
    """A robust mean by its name in ``[robust]``."""

    estimate: Callable[[Tensor, int, float | None], Tensor]
    """From uploads [n, d], f and the radius (of a rule that has one) to what stands for them [d]."""
    least: Callable[[int], int]
    """The fewest uploads with which it bears f hostile ones."""
    has_radius: bool = False


def _majority(f: int) -> int:
    return 2 * f + 1


RULES = {
    "median": Rule(lambda rows, f, radius: median(rows), _majority),
    "trimmed-mean": Rule(lambda rows, f, radius: trimmed_mean(rows, f), _majority),
    "geometric-median": Rule(lambda rows, f, radius: geometric_median(rows), _majority),
    "krum": Rule(lambda rows, f, radius: krum(rows, f), lambda f: 2 * f + 3),
    "multi-krum": Rule(lambda rows, f, radius: multi_krum(rows, f), lambda f: 2 * f + 3),
    "centred-clipping": Rule(lambda rows, f, radius: centred_clipping(rows, radius), _majority, has_radius=True),
}


def _blocks(rows: Tensor) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, rows.shape[1], BLOCK))


def _ordered(rows: Tensor) -> list[Tensor]:
    """The rows with every coordinate sorted, as new tensors.

    Whole rows are compared, pair by pair: for 10 to 100 rows that took a seventh of the time of torch's sort.
    """
    ordered = list(rows.clone())
    spare = torch.empty_like(ordered[0])
    for i, j in _comparisons(len(rows)):
        low, spare = torch.minimum(ordered[i], ordered[j], out=spare), ordered[i]
        torch.maximum(spare, ordered[j], out=ordered[j])
        ordered[i] = low
    return ordered


@lru_cache(maxsize=16)
def _comparisons(n: int) -> tuple[tuple[int, int], ...]:
    """The pairs that sort n values if the smaller one of each goes to the first place (Batcher's odd-even merge sort).

    Runs of p sorted values become runs of 2p, by comparing values that are k apart.
    """
    powers = [1 << exponent for exponent in range((n - 1).bit_length())]
    return tuple(
        (i, i + k)
        for p in powers
        for k in reversed([k for k in powers if k <= p])
        for start in range(k % p, n - k, 2 * k)
        for i in range(start, min(start + k, n - k))
        if i // (2 * p) == (i + k) // (2 * p)
    )


def _distances(rows: Tensor, z: Tensor) -> list[float]:
    """‖rows_i − z‖ of each; the squares of what hostile clients send are beyond float32."""
    return [float(torch.linalg.vector_norm(row - z, dtype=torch.float64)) for row in rows]


def _squared_distances(rows: Tensor) -> Tensor:
    """‖rows_i − rows_j‖² [n, n], from differences: products would lose them beside a hostile upload."""
    n = len(rows)
    pairs = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    for part in _blocks(rows):
        pairs += torch.pdist(rows[:, part]).double().square()
    apart = torch.zeros(n, n, dtype=torch.float64)
    apart[*torch.triu_indices(n, n, 1)] = pairs.nan_to_num(nan=math.inf)
    return apart + apart.T


def _weighted(rows: Tensor, weights: Sequence[float]) -> Tensor:
    """Σ_i weights_i·rows_i [d], without rows of weight 0."""
    counted = [(row, weight) for row, weight in zip(rows, weights, strict=True) if weight]
    if not counted:
        return torch.zeros_like(rows[0])
    return average((row for row, _ in counted), torch.tensor([weight for _, weight in counted], dtype=torch.float64))
