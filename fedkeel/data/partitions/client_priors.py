"""Dirichlet rules that draw a class prior per client and fill clients of given sizes."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from fedkeel.data.partitions.rule import SIGMA, Indices, Param, Rule, dirichlet, positive
from fedkeel.data.partitions.sizes import equal_sizes, lognormal_sizes

Matrix = npt.NDArray[np.float64]


def deal_dirichlet(
    labels: Indices, clients: int, rng: np.random.Generator, alpha: float, concentration: str, sigma: float
) -> list[Indices]:
    """FedDyn's procedure: π_i ~ Dir per client, then samples are dealt one by one until every client is full.

    ``concentration="alpha"``: Dir(α, …, α) (FedDyn, FedDC); ``"alpha_p"``: Dir(α·p) with the class frequencies p
    (Hsu et al., FedGVRGM), which is C times less concentrated.
    """
    stock = _stock(labels, rng)
    counts = np.array([len(samples) for samples in stock])
    scale = np.ones(len(stock)) if concentration == "alpha" else counts / counts.sum()
    priors = dirichlet(rng, alpha * scale, clients)
    sizes = lognormal_sizes(len(labels), clients, sigma, rng)
    return _fill(priors, sizes, stock, rng)


def _stock(labels: Indices, rng: np.random.Generator) -> list[list[int]]:
    """The samples of every class that occurs, shuffled."""
    return [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in np.flatnonzero(np.bincount(labels))]


def _fill(priors: Matrix, sizes: Indices, stock: list[list[int]], rng: np.random.Generator) -> list[Indices]:
    """Pick a client that is not full, draw a class from its prior over the classes left, take a sample; until done.

    A client whose prior has no mass on what is left draws by the stock of each class, so the loop always ends.
    The cumulated priors are renewed only for clients that are picked after a class ran out.
    """
    n = int(sizes.sum())
    dealt: list[list[int]] = [[] for _ in sizes]
    room = sizes.tolist()
    open_clients = list(range(len(room)))
    rows = priors.tolist()
    ladders: list[list[float]] = [list(accumulate(row)) for row in rows]
    emptied = 0
    renewed = [0] * len(room)
    picks = rng.random((n, 2)).tolist()
    for pick_client, pick_class in picks:
        slot = int(pick_client * len(open_clients))
        i = open_clients[slot]
        if renewed[i] != emptied:
            ladders[i] = list(accumulate(p if samples else 0.0 for p, samples in zip(rows[i], stock, strict=True)))
            renewed[i] = emptied
            if ladders[i][-1] < 1e-12:
                rows[i] = [float(len(samples)) for samples in stock]
                ladders[i] = list(accumulate(rows[i]))
        ladder = ladders[i]
        c = bisect_right(ladder, pick_class * ladder[-1])
        if c == len(ladder) or not stock[c]:  # rounding at the very top of the ladder
            c = max(c for c, samples in enumerate(stock) if samples)
        dealt[i].append(stock[c].pop())
        if not stock[c]:
            emptied += 1
        room[i] -= 1
        if room[i] == 0:
            open_clients[slot] = open_clients[-1]
            open_clients.pop()
    return [np.array(samples, dtype=np.int64) for samples in dealt]


def deal_fedmlb(labels: Indices, clients: int, rng: np.random.Generator, alpha: float) -> list[Indices]:
    """FedMLB: client after client draws n/N unassigned samples without replacement, weighted by its prior."""
    present, classes = np.unique(labels, return_inverse=True)
    priors = dirichlet(rng, np.full(len(present), float(alpha)), clients)
    free = np.arange(len(labels))
    parts = []
    for prior, size in zip(priors, equal_sizes(len(labels), clients), strict=True):
        # The `size` smallest of Exp(1)/weight are a weighted draw without replacement; the floor on the weight
        # orders samples of classes without mass, which are taken only when nothing else is left.
        weight = np.maximum(prior[classes[free]], 1e-300)
        keys = np.log(rng.standard_exponential(len(free))) - np.log(weight)
        chosen = np.zeros(len(free), dtype=bool)
        chosen[np.argpartition(keys, size - 1)[:size]] = True
        parts.append(free[chosen])
        free = free[~chosen]
    return parts


RULES = (
    Rule(
        "dirichlet",
        "a class prior per client from a Dirichlet distribution, chosen sizes (FedDyn, FedDC; Hsu et al.)",
        deal_dirichlet,
        (
            positive("alpha", 0.3, "concentration; smaller is less alike (FedDC: D1 = 0.6, D2 = 0.3)"),
            Param(
                "concentration",
                "alpha",
                "'alpha' for Dir(α, …, α), 'alpha_p' for Dir(α·class frequencies)",
                "'alpha' or 'alpha_p'",
                lambda v: v in ("alpha", "alpha_p"),
            ),
            SIGMA,
        ),
    ),
    Rule(
        "dirichlet_fedmlb",
        "client after client draws its share from what is left, weighted by its Dirichlet prior (FedMLB)",
        deal_fedmlb,
        (positive("alpha", 0.3, "concentration; smaller is less alike"),),
    ),
)
