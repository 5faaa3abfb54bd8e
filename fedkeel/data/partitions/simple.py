"""Rules without class priors: iid, quantity skew, and McMahan's shards."""

from __future__ import annotations

import numpy as np

from fedkeel.data.partitions.rule import SIGMA, Indices, Param, Rule, positive, switch, whole
from fedkeel.data.partitions.sizes import cut, dirichlet_sizes, equal_sizes, lognormal_sizes
from fedkeel.errors import invalid


def deal_iid(
    labels: Indices, clients: int, rng: np.random.Generator, sigma: float, balanced_classes: bool
) -> list[Indices]:
    """Permute and cut; with ``balanced_classes`` every client gets equally many samples of each class."""
    if not balanced_classes:
        return cut(rng.permutation(len(labels)), lognormal_sizes(len(labels), clients, sigma, rng))
    if sigma:
        raise invalid("partition.sigma", "0 together with balanced_classes", sigma)
    per_class = np.bincount(labels)
    odd = np.flatnonzero(per_class % clients)
    if odd.size:
        raise invalid(
            "partition.clients",
            "a divisor of every class's sample count for balanced_classes",
            clients,
            f"Class {odd[0]} has {per_class[odd[0]]} samples.",
        )
    dealt = [rng.permutation(np.flatnonzero(labels == c)).reshape(clients, -1) for c in np.flatnonzero(per_class)]
    return list(np.concatenate(dealt, axis=1))


def deal_quantity(
    labels: Indices, clients: int, rng: np.random.Generator, alpha: float, min_size: int
) -> list[Indices]:
    """Permute and cut into sizes drawn from a Dirichlet distribution."""
    if min_size * clients > len(labels):
        raise invalid("partition.min_size", f"at most {len(labels) // clients} for {clients} clients", min_size)
    order = rng.permutation(len(labels))
    return cut(order, dirichlet_sizes(len(labels), clients, alpha, min_size, rng))


def deal_shards(labels: Indices, clients: int, rng: np.random.Generator, shards: int) -> list[Indices]:
    """Sort by label, cut into ``shards``·N pieces, deal ``shards`` pieces to everybody."""
    pieces = shards * clients
    if pieces > len(labels):
        raise invalid("partition.shards", f"at most {len(labels) // clients} for {clients} clients", shards)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    parts = cut(by_label, equal_sizes(len(labels), pieces))
    dealt = rng.permutation(pieces).reshape(clients, shards)
    return [np.concatenate([parts[piece] for piece in row]) for row in dealt]


RULES = (
    Rule(
        "iid",
        "every client draws from the same distribution; equal or lognormal sizes",
        deal_iid,
        (SIGMA, switch("balanced_classes", False, "exactly equal class counts in every client (FedDyn's CIFAR-100)")),
        labels=False,
    ),
    Rule(
        "quantity",
        "same distribution, very different sizes: shares from a Dirichlet distribution",
        deal_quantity,
        (
            positive("alpha", 0.5, "concentration of the sizes; smaller is more unequal"),
            Param("min_size", 1, "samples every client gets at least", "a whole number above 0", lambda v: whole(v, 1)),
        ),
        labels=False,
    ),
    Rule(
        "shards",
        "sorted by label and cut into pieces, a few pieces per client (McMahan's pathological split)",
        deal_shards,
        (Param("shards", 2, "pieces per client", "a whole number above 0", lambda v: whole(v, 1)),),
    ),
)
