"""The projection of GradMA: the direction nearest to g that agrees with every remembered one (as in GEM, 2017).

    min_u ½‖u − g‖²   subject to   ⟨G_j, u⟩ ≥ ρ ‖g‖ ‖G_j‖   for every row G_j          (ρ = 0 as published)

Its dual has one number z_j ≥ 0 a row; with the Gram matrix K = G Gᵀ and p = G g − ρ ‖g‖ (rows and g of unit length),

    z ≥ 0,   K z + p ≥ 0,   z·(K z + p) = 0,      u = g + Gᵀ z.

The length of a row does not matter and a row of zeros says nothing, so rows are normalised and zero rows left out.
``project`` takes any number of rows, one vector at a time (server); ``project_few`` takes up to three rows of K clients
at once and tries all active sets (workers). Both solve one such problem per block of coordinates, and in float64
whatever the vectors are. Where opposite rows leave no direction with a margin ρ > 0, the block is solved with ρ = 0,
which always has a solution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedkeel.learning.layout import Layout

Blocks = Literal["flat", "tensor"]
Matrix = list[list[float]]
COLUMNS = 1 << 14
"""Coordinates that are converted to float64 at a time, so that the copies stay in the cache."""
STRETCH = 1 << 10
"""Coordinates whose products are summed in the vectors' own precision, before float64 takes over."""
POSSIBLE = 1e-5
"""Violation of a condition, relative to ‖g‖, from which on there is no solution."""


def bounds_of(layout: Layout, blocks: Blocks) -> Tensor:
    """Where the blocks begin and end: one over the whole vector, or one for every tensor of the model [B + 1]."""
    stops = [entry.stop for entry in layout] if blocks == "tensor" else [layout.d]
    return torch.tensor([0, *stops])


def rounding(dtype: torch.dtype) -> float:
    """Violation of a condition, relative to ‖g‖, that vectors of this precision cannot avoid.

    Not a detail: with full batches a worker's x_τ − x is the negative of its gradients but for rounding, and a solver
    that took the rest for a direction would forbid the step a random one.
    """
    return max(1e-13, 8 * torch.finfo(dtype).eps)


def inner(left: Sequence[Tensor], right: Sequence[Tensor], bounds: Tensor) -> Tensor:
    """Inner products of vectors [d] by block, in float64 [B, len(left), len(right)]."""
    products = torch.zeros(len(bounds) - 1, len(left), len(right), dtype=torch.float64)
    for block, columns in _columns(bounds):
        a = torch.stack([vector[columns] for vector in left]).double()
        b = torch.stack([vector[columns] for vector in right]).double()
        products[block] += a @ b.T
    return products


@torch.no_grad()
def project(
    g: Tensor,
    G: Sequence[Tensor] | Tensor,
    rho: float = 0.0,
    bounds: Tensor | None = None,
    gram: Tensor | None = None,
) -> Tensor:
    """The projection of g [d] for rows G (each [d]); g itself where it violates nothing.

    ``gram`` [B, m, m] are the rows' inner products by block, for callers who keep them.
    """
    rows = list(G)
    if not rows:
        return g
    bounds = torch.tensor([0, len(g)]) if bounds is None else bounds
    gram = inner(rows, rows, bounds) if gram is None else gram
    pg = inner([*rows, g], [g], bounds).squeeze(2)
    u = g.clone()
    for block, (start, stop) in enumerate(pairwise(bounds.tolist())):
        parts = [row[start:stop] for row in rows]
        u[start:stop] = _project_block(g[start:stop], parts, gram[block], pg[block, :-1], float(pg[block, -1]), rho)
    return u


def _project_block(g: Tensor, rows: list[Tensor], gram: Tensor, p: Tensor, gg: float, rho: float) -> Tensor:
    if not bool(torch.isfinite(p).all() & torch.isfinite(gram).all()):
        return g * float("nan")  # never the unprojected direction: a run that diverged must be seen to have
    lengths = gram.diagonal().sqrt()
    said = lengths.ne(0).nonzero().squeeze(1)
    if gg == 0 or not len(said):
        return g
    K = gram[said][:, said] / torch.outer(lengths[said], lengths[said])
    p = p[said] / (lengths[said] * gg**0.5)
    scaled = [(rows[j], gg**0.5 / float(lengths[j])) for j in said.tolist()]
    u, missed = _solved(g, scaled, gg, K, p, rho)
    return u if missed <= POSSIBLE or rho <= 0 else _solved(g, scaled, gg, K, p, 0.0)[0]


def _solved(
    g: Tensor, rows: list[tuple[Tensor, float]], gg: float, K: Tensor, p: Tensor, rho: float
) -> tuple[Tensor, float]:
    """u, and by how much it misses the conditions relative to ‖g‖; each row comes with ‖g‖/‖row‖."""
    exact = rounding(g.dtype)
    if bool((p >= rho - exact).all()):
        return g, 0.0
    z = _dual(K, p - rho)
    best, missed = g, float("inf")
    for _ in range(5):
        u = g.double()
        for j in z.nonzero().squeeze(1).tolist():
            u = u.add(rows[j][0].double(), alpha=float(z[j]) * rows[j][1])
        # K holds only half the digits of nearly dependent rows: compare with the rows themselves, and mend.
        against = inner([row for row, _ in rows], [u], torch.tensor([0, len(g)])).flatten()
        slack = against * torch.tensor([scale / gg for _, scale in rows], dtype=K.dtype) - rho
        active = (z > 0) | (slack < -exact)
        worst = max(float(slack[active].abs().amax()), float((z * slack).abs().sum())) if bool(active.any()) else 0.0
        if worst >= missed:
            break
        best, missed = u, worst
        if worst <= exact:
            break
        system, right = K[active][:, active], -slack[active].unsqueeze(1)
        change = torch.linalg.lstsq(system, right, rcond=_noise(K), driver="gelsd").solution.squeeze(1)
        z = z.index_put((active,), change, accumulate=True).clamp(min=0)
    return best.to(g.dtype), missed


def _dual(K: Tensor, p: Tensor) -> Tensor:
    """z for unit rows and unit g: with K = FᵀF, the nonnegative least squares of F z = −F⁻ᵀ p [m]."""
    values, vectors = torch.linalg.eigh(K)
    real = values > _noise(K) * values[-1]
    values, vectors = values[real].sqrt(), vectors[:, real]
    inside = vectors.T @ p
    if float((vectors @ inside - p).abs().max()) <= POSSIBLE:
        z, _ = nnls((vectors * values).T.numpy(), (-inside / values).numpy(), maxiter=30 * len(p))
        return torch.from_numpy(z)
    # A margin puts p outside K's range where rows depend on each other. Lawson and Hanson's least-distance programme
    # does not mind: y ≥ 0 of least ‖[F; −pᵀ] y − e‖, e the last unit vector, and z = y/(1 + pᵀy).
    system = torch.cat([(vectors * values).T, -p.unsqueeze(0)]).numpy()
    y, _ = nnls(system, np.eye(len(system))[-1], maxiter=30 * len(p))
    return torch.from_numpy(y / max(1 + p.numpy() @ y, POSSIBLE))


def _noise(K: Tensor) -> float:
    """Eigenvalues of K below this share of the largest are rounding, no direction of their own."""
    return 20 * len(K) * torch.finfo(K.dtype).eps


@torch.no_grad()
def project_few(vectors: Tensor, rho: float = 0.0, bounds: Tensor | None = None) -> Tensor:
    """The projections u [K, d] of K vectors g for r ≤ 3 rows each, given together as [K, 1 + r, d] with g first.

    u is written over g.
    """
    u = vectors[:, 0]
    if vectors.shape[1] == 1:
        return u
    bounds = torch.tensor([0, u.shape[1]]) if bounds is None else bounds
    steps = multipliers(vectors, rho, bounds).to(u.dtype)
    for block, (start, stop) in enumerate(pairwise(bounds.tolist())):
        for row in range(steps.shape[2]):
            if bool(steps[:, block, row].ne(0).any()):
                u[:, start:stop].addcmul_(vectors[:, 1 + row, start:stop], steps[:, block, row, None])
    return u


def multipliers(vectors: Tensor, rho: float, bounds: Tensor) -> Tensor:
    """What each row adds to g, by block: u = g + Σ_j c_j G_j [K, B, r]."""
    edges = list(pairwise(bounds.tolist()))
    exact = rounding(vectors.dtype)
    steps = [[_step(_gram(own, start, stop).tolist(), rho, exact) for start, stop in edges] for own in vectors]
    return torch.tensor(steps, dtype=torch.float64)


def _step(gram: Matrix, rho: float, exact: float) -> list[float]:
    """c [r] of one client and block, given the inner products of g and the rows of G [1 + r, 1 + r].

    In plain numbers: for three rows a call into a library costs more than the arithmetic.
    """
    lengths = [math.sqrt(row[j]) or 1.0 if row[j] >= 0 else math.nan for j, row in enumerate(gram)]
    if not all(map(math.isfinite, lengths)):
        return [math.nan] * (len(gram) - 1)  # never the unprojected direction: divergence must be seen
    cosines = [[value / (lengths[i] * lengths[j]) for j, value in enumerate(row)] for i, row in enumerate(gram)]
    K, p = [row[1:] for row in cosines[1:]], [row[0] for row in cosines[1:]]
    z, missed = _best_active_set(K, [value - rho for value in p], exact)
    if rho > 0 and missed > POSSIBLE:
        z, _ = _best_active_set(K, p, exact)
    return [z_j * lengths[0] / length for z_j, length in zip(z, lengths[1:], strict=True)]


def _gram(vectors: Tensor, start: int, stop: int) -> Tensor:
    """Inner products of r + 1 vectors over some coordinates, in float64 [r + 1, r + 1].

    Stretches are summed in the vectors' own precision: their rounding is that of the numbers themselves and does not
    add up over the stretches, while converting everything to float64 would cost as much as a gradient.
    """
    whole = start + (stop - start) // STRETCH * STRETCH
    stretches = vectors[:, start:whole].view(len(vectors), -1, STRETCH).transpose(0, 1) if whole > start else None
    rest = vectors[:, whole:stop]
    products = (rest @ rest.T).double()
    return products if stretches is None else products + (stretches @ stretches.mT).sum(0, dtype=torch.float64)


def _best_active_set(K: Matrix, p: list[float], exact: float) -> tuple[list[float], float]:
    """z [r] of the smallest active set that meets all conditions, and by how much it misses them.

    On an active set K z = −p; off it z = 0. Some set of independent rows is always the right one, so that dependent
    ones (the first two rows are equal in a worker's second step) need no more than being passed over.
    """
    best, least = [0.0] * len(p), math.inf
    for active in _active_sets(len(p)):
        solution = _solution([[K[i][j] for j in active] for i in active], [-p[i] for i in active])
        if solution is None:
            continue
        z = [0.0] * len(p)
        for i, value in zip(active, solution, strict=True):
            z[i] = value
        slack = [sum(K_ij * z_j for K_ij, z_j in zip(row, z, strict=True)) + p_i for row, p_i in zip(K, p, strict=True)]
        missed = max([0.0, -min(z), -min(slack), *(abs(slack[i]) for i in active)])
        if missed < least:
            best, least = z, missed
        if missed <= exact:
            break
    return [max(value, 0.0) for value in best], least


def _solution(A: Matrix, b: list[float]) -> list[float] | None:
    """x of A x = b for at most three equations, by elimination with pivots; None if A is singular."""
    rows = [[*row, right] for row, right in zip(A, b, strict=True)]
    n = len(rows)
    for column in range(n):
        pivot = max(range(column, n), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if rows[column][column] == 0:
            return None
        for i in range(column + 1, n):
            factor = rows[i][column] / rows[column][column]
            rows[i] = [low - factor * high for low, high in zip(rows[i], rows[column], strict=True)]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][j] * x[j] for j in range(i + 1, n))) / rows[i][i]
    return x


@cache
def _active_sets(r: int) -> list[list[int]]:
    """All sets of rows, the smallest first."""
    return [list(rows) for size in range(r + 1) for rows in combinations(range(r), size)]


def _columns(bounds: Tensor) -> Iterator[tuple[int, slice]]:
    """The coordinates in pieces that lie in one block each."""
    for block, (start, stop) in enumerate(pairwise(bounds.tolist())):
        for first in range(start, stop, COLUMNS):
            yield block, slice(first, min(first + COLUMNS, stop))
