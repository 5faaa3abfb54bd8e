"""How many samples each client gets."""

from __future__ import annotations

import numpy as np

from fedkeel.data.partitions.rule import REDRAWS, Indices, dirichlet
from fedkeel.errors import invalid


def equal_sizes(n: int, clients: int) -> Indices:
    """``n`` dealt as evenly as whole numbers allow: the first ``n mod clients`` clients get one more."""
    sizes = np.full(clients, n // clients, dtype=np.int64)
    sizes[: n % clients] += 1
    return sizes


def lognormal_sizes(n: int, clients: int, sigma: float, rng: np.random.Generator) -> Indices:
    """FedDyn's unbalance: s_i ~ LogNormal(log(n/N), σ), n_i = ⌊n s_i/Σs⌋, the rest goes to the first client.

    Drawn again while a client would be empty.
    """
    if sigma == 0:
        return equal_sizes(n, clients)
    for _ in range(REDRAWS):
        # The location log(n/N) cancels in the shares, so the logarithms are shifted to keep exp() in range.
        logs = sigma * rng.standard_normal(clients)
        shares = np.exp(logs - logs.max())
        sizes: Indices = (n * (shares / shares.sum())).astype(np.int64)
        sizes[0] += n - sizes.sum()
        if sizes.min() > 0:
            return sizes
    raise invalid(
        "partition.sigma",
        f"small enough to leave each of {clients} clients one of {n} samples",
        sigma,
        "Lower it, or take fewer clients.",
    )


def dirichlet_sizes(n: int, clients: int, alpha: float, min_size: int, rng: np.random.Generator) -> Indices:
    """``min_size`` for everybody, and the rest in shares drawn from Dir(α, …, α)."""
    free = n - min_size * clients
    shares = dirichlet(rng, np.full(clients, float(alpha)), 1)[0]
    cuts = np.minimum((np.cumsum(shares) * free).astype(np.int64), free)
    cuts[-1] = free
    return np.diff(cuts, prepend=0) + min_size


def cut(order: Indices, sizes: Indices) -> list[Indices]:
    """``order`` in consecutive pieces of the given sizes."""
    return np.split(order, np.cumsum(sizes)[:-1])
