"""Dirichlet rules that split every class among the clients, so that sizes vary too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.data.partitions.rule import REDRAWS, Indices, Param, Rule, dirichlet, positive, switch, whole
from fedkeel.data.partitions.sizes import cut, equal_sizes
from fedkeel.errors import invalid

FEDPVR_ALL_TOGETHER = 40  # below this many clients FedPVR draws for all of them at once


def deal_classwise(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    alpha: float,
    cap: bool,
    min_size: int | None,
    two_each: bool,
) -> list[Indices]:
    """Every class is split by its own π ~ Dir(α, …, α) over the clients; drawn again until nobody is too small.

    ``cap`` (NIID-Bench, MOON): clients that hold n/N samples get no more. ``two_each`` (GradMA): two random samples
    for everybody first. The smallest client has ``min_size`` samples, by default 10, or 2 with ``two_each``.
    """
    least = min_size if min_size is not None else (2 if two_each else 10)
    if max(least, 2 * two_each) * clients > len(labels):
        raise invalid(
            "partition.min_size",
            f"at most {len(labels) // clients} for {clients} clients and {len(labels)} samples",
            least,
            "Lower it, or take fewer clients.",
        )
    order = rng.permutation(len(labels))
    gift = 2 * clients if two_each else 0
    gifts, rest = order[:gift].reshape(clients, -1), order[gift:]
    dealt = _split_classes(labels, rest, clients, rng, alpha, cap, least - 2 * two_each)
    return [np.concatenate(pair) for pair in zip(gifts, dealt, strict=True)]


def deal_fedpvr(
    labels: Indices, clients: int, rng: np.random.Generator, alpha: float, block: int | None
) -> list[Indices]:
    """FedPVR: capped class-wise split in blocks of clients, then all lists in a row cut into N equal parts.

    Below 40 clients there is one block, from 40 on blocks of 10; in each, nobody has less than half the block's mean.
    """
    width = block or (clients if clients < FEDPVR_ALL_TOGETHER else 10)
    widths = [min(width, clients - start) for start in range(0, clients, width)]
    sizes = equal_sizes(len(labels), clients)
    starts = np.cumsum([0, *widths[:-1]])
    pools = cut(rng.permutation(len(labels)), np.add.reduceat(sizes, starts))
    row: list[Indices] = []
    for pool, members in zip(pools, widths, strict=True):
        row += _split_classes(labels, pool, members, rng, alpha, True, len(pool) // members // 2)
    return cut(np.concatenate(row), sizes)


def _split_classes(
    labels: Indices, pool: Indices, clients: int, rng: np.random.Generator, alpha: float, cap: bool, least: int
) -> list[Indices]:
    """Split the classes of the shuffled samples ``pool`` until every client has ``least``, at most REDRAWS times."""
    by_class = [pool[labels[pool] == c] for c in np.unique(labels[pool])]
    for _ in range(REDRAWS):
        bounds = _draw_bounds([len(samples) for samples in by_class], clients, rng, alpha, cap)
        if np.diff(bounds, axis=1).sum(axis=0).min() >= least:
            pieces = [np.split(samples, edge[1:-1]) for samples, edge in zip(by_class, bounds, strict=True)]
            return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]
    raise invalid(
        "partition.alpha",
        f"large enough for each of {clients} clients to get {least} of {len(pool)} samples ({REDRAWS} draws failed)",
        alpha,
        "Raise alpha, lower min_size (or block), or take fewer clients.",
    )


def _draw_bounds(
    class_sizes: list[int], clients: int, rng: np.random.Generator, alpha: float, cap: bool
) -> npt.NDArray[np.int64]:
    """Where each class is cut, int64 [classes, clients + 1], rising from 0 to the size of the class."""
    shares = dirichlet(rng, np.full(clients, float(alpha)), len(class_sizes))
    held = np.zeros(clients, dtype=np.int64)
    full = sum(class_sizes) / clients
    bounds = np.zeros((len(class_sizes), clients + 1), dtype=np.int64)
    for edge, share, size in zip(bounds, shares, class_sizes, strict=True):
        weight = np.where(held < full, share, 0.0) if cap else share
        if weight.sum() < 1e-12:  # all mass was on clients that are full
            weight = (held < full).astype(float) if (held < full).any() else np.ones(clients)
        edge[1:] = np.cumsum(weight / weight.sum()) * size
        edge[-1] = size
        np.minimum(edge, size, out=edge)
        held += np.diff(edge)
    return bounds


def _optional_whole(least: int) -> Any:
    return lambda value: value is None or whole(value, least)


RULES = (
    Rule(
        "dirichlet_classwise",
        "every class is split among the clients by Dirichlet shares, sizes vary (NIID-Bench, MOON, GradMA)",
        deal_classwise,
        (
            positive("alpha", 0.5, "concentration; smaller is less alike and less equal"),
            switch("cap", True, "clients that hold the mean size get no more (NIID-Bench); false for GradMA, FedPMVR"),
            Param(
                "min_size",
                None,
                "smallest client; 10 unless given, 2 with two_each",
                "a whole number above 0",
                _optional_whole(1),
            ),
            switch("two_each", False, "first two random samples for every client (GradMA)"),
        ),
    ),
    Rule(
        "dirichlet_fedpvr",
        "capped class-wise split, then cut into equal sizes (FedPVR)",
        deal_fedpvr,
        (
            positive("alpha", 0.5, "concentration; smaller is less alike"),
            Param(
                "block",
                None,
                "clients drawn together; all below 40 clients, else 10",
                "a whole number above 1",
                _optional_whole(2),
            ),
        ),
    ),
)
