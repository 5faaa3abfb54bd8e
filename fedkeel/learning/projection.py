"""The projection of GradMA: the direction nearest to g that agrees with every remembered one (as in GEM, 2017).

    min_u ½‖u − g‖²   subject to   ⟨G_j, u⟩ ≥ ρ ‖g‖ ‖G_j‖   for every row G_j          (ρ = 0 as published)

Its dual has one number z_j ≥ 0 a row; with the Gram matrix K = G Gᵀ and p = G g − ρ ‖g‖ (rows and g of unit length),

    z ≥ 0,   K z + p ≥ 0,   z·(K z + p) = 0,      u = g + Gᵀ z.

The length of a row does not matter and a row of zeros says nothing, so rows are normalised and zero rows left out.
``project`` takes any number of rows, one vector at a time (server); ``project_few`` takes up to three rows of K clients
at once and tries all active sets (workers). Both solve one such problem per block of coordinates, in float64 whatever
the vectors are; only inner products over short pieces are summed in the vectors' own precision. Where opposite rows
leave no direction with a margin ρ > 0, the block is solved with ρ = 0, which always has a solution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from operator import mul
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkeel.learning.layout import Layout

Blocks = Literal["flat", "tensor"]
Matrix = list[list[float]]
PIECE = 1 << 17
"""Coordinates whose products are summed in the vectors' own precision, before float64 takes over."""
COLUMNS = 1 << 14
"""The same where many rows are multiplied at a time, so that the pieces of all of them stay in the cache."""
FEW_COLUMNS = 1 << 13
"""The same for a worker's few rows, where pieces are at least this and less than twice as wide."""
MENDS = 4
"""How often a solution is improved by what it misses."""
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


def dots(rows: Sequence[Tensor], v: Tensor) -> Tensor:
    """Inner products of rows [d] with a vector [d], in float64 [m].

    Pieces are summed in the rows' own precision: their rounding is that of the numbers themselves and does not add up
    over the pieces, while converting everything to float64 would take several times as long as reading it.
    """
    widths = _widths(len(v), PIECE)
    pieces = v.split_with_sizes(widths)
    sums = [torch.stack(list(map(torch.dot, row.split_with_sizes(widths), pieces))) for row in rows]
    return torch.stack([parts.sum(dtype=torch.float64) for parts in sums])


def square(v: Tensor) -> float:
    """⟨v, v⟩ of a vector [d], in float64; pieces as in ``dots``."""
    return sum(float(torch.dot(piece, piece)) for piece in v.split_with_sizes(_widths(v.shape[0], PIECE)))


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Inner products of all pairs of rows [d], in float64 [len(left), len(right)]; pieces as in ``dots``."""
    widths = _widths(len(left[0]), COLUMNS)
    # All pieces use the same memory: new memory for each would cost as much as the products.
    spaces = [rows[0].new_empty(len(rows) * widths[0]) for rows in (left, right)]
    pieces = [[row.split_with_sizes(widths) for row in rows] for rows in (left, right)]
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    for number, width in enumerate(widths):
        a, b = (
            torch.stack([row[number] for row in rows], out=space[: len(rows) * width].view(len(rows), width))
            for rows, space in zip(pieces, spaces, strict=True)
        )
        total += a @ b.T
    return total


def _widths(d: int, most: int) -> list[int]:
    """d coordinates in pieces of at most so many."""
    return [min(most, d - start) for start in range(0, d, most)]


def lengths_only(rows: Sequence[Tensor], bounds: Tensor) -> Tensor:
    """Gram matrices by block [B, m, m] of which nothing is known (inf) but the diagonal, the squares of lengths."""
    gram = torch.full((len(bounds) - 1, len(rows), len(rows)), torch.inf, dtype=torch.float64)
    for block, (start, stop) in enumerate(pairwise(bounds.tolist())):
        gram[block].diagonal().copy_(torch.cat([dots([row[start:stop]], row[start:stop]) for row in rows]))
    return gram


@torch.no_grad()
def project(
    g: Tensor,
    G: Sequence[Tensor] | Tensor,
    rho: float = 0.0,
    bounds: Tensor | None = None,
    gram: Tensor | None = None,
) -> Tensor:
    """The projection of g [d] for rows G (each [d]); g itself where it violates nothing. The rest as ``projected``."""
    return projected(g, G, rho, bounds, gram)[0]


@torch.no_grad()
def projected(
    g: Tensor,
    G: Sequence[Tensor] | Tensor,
    rho: float = 0.0,
    bounds: Tensor | None = None,
    gram: Tensor | None = None,
) -> tuple[Tensor, int]:
    """The projection of g [d] for rows G (each [d]), and the number of active conditions (z_j > 0) of all blocks.

    ``gram`` [B, m, m] are the rows' inner products by block, for callers who keep them; the diagonal must be right
    (0: leave the row out), inf elsewhere means not known yet. What had to be computed is filled in.
    """
    rows = list(G)
    if not rows:
        return g, 0
    bounds = torch.tensor([0, len(g)]) if bounds is None else bounds
    gram = lengths_only(rows, bounds) if gram is None else gram
    u, active = g.clone(), 0
    for block, (start, stop) in enumerate(pairwise(bounds.tolist())):
        parts = [row[start:stop] for row in rows]
        u[start:stop], acting = _project_block(g[start:stop], parts, gram[block], rho)
        active += acting
    return u, active


def _project_block(g: Tensor, rows: list[Tensor], gram: Tensor, rho: float) -> tuple[Tensor, int]:
    lengths = gram.diagonal().sqrt()
    said = lengths.ne(0).nonzero().squeeze(1).tolist()
    length = float(dots([g], g)) ** 0.5
    if length == 0 or not said:
        return g, 0
    p = torch.full_like(lengths, torch.inf)  # a row of zeros is never violated
    p[said] = dots([rows[j] for j in said], g) / (lengths[said] * length)
    if bool(p.isnan().any()) or not math.isfinite(length):
        return g * float("nan"), 0  # never the unprojected direction: a run that diverged must be seen to have
    directions = Directions(rows, lengths, gram)
    u, missed, active = _solved(g, length, directions, p, rho)
    if missed > POSSIBLE and rho > 0:
        u, _, active = _solved(g, length, directions, p, 0.0)
    return u, active


@dataclass(frozen=True)
class Directions:
    """Rows G_j of one block and what is known of their inner products."""

    rows: list[Tensor]
    lengths: Tensor
    """[m]."""
    gram: Tensor
    """[m, m], inf where not known."""

    def cosines(self, chosen: Tensor) -> Tensor:
        """K of some rows [k, k], given by their numbers; inner products that are not known yet are noted."""
        unknown = self.gram[chosen][:, chosen].isinf()
        missing = []
        while bool(unknown.any()):  # a pair is known when either row has been multiplied with all
            worst = int(unknown.sum(1).argmax())
            unknown[worst] = unknown[:, worst] = False
            missing.append(int(chosen[worst]))
        if missing:
            products = inner([self.rows[j] for j in missing], [self.rows[j] for j in chosen.tolist()])
            for j, known in zip(missing, products, strict=True):
                known = known.where(chosen != j, self.gram[j, j])
                self.gram[j, chosen] = self.gram[chosen, j] = known
        return self.gram[chosen][:, chosen] / torch.outer(self.lengths[chosen], self.lengths[chosen])


def _solved(g: Tensor, length: float, G: Directions, p: Tensor, rho: float) -> tuple[Tensor, float, int]:
    """u, by how much it misses the conditions relative to ‖g‖ = ``length``, and how many of them bend g into u.

    p are the cosines of rows and g.

    Most conditions hold anyway. Only those that g violates are solved for; where others turn out to be violated by the
    solution, these are added and all is solved again.
    """
    exact = rounding(g.dtype)
    slack, working = p - rho, p < rho - exact
    u, best, active, missed = g, g, 0, float("inf") if bool(working.any()) else 0.0
    z, K = torch.zeros_like(p), torch.empty(0)
    mends_left: int | None = None  # not solved yet for these rows
    while missed > exact:
        chosen = working.nonzero().squeeze(1)
        if mends_left is None:
            K, mends_left = G.cosines(chosen), MENDS
            z = torch.zeros_like(p).index_put((chosen,), _dual(K, p[chosen] - rho))
        u, change = _moved(u, g, length, G, z)
        # No slack changes by more than u does, which settles most of the rows. K holds only half the digits of nearly
        # dependent rows: the others are compared with the rows themselves, and mended.
        near = (working | (slack < change + exact)).nonzero().squeeze(1)
        slack = slack - change
        slack[near] = dots([G.rows[j] for j in near.tolist()], u) / (G.lengths[near] * length) - rho
        violated = slack < -exact
        acting = violated | (z > 0)
        worst = max([0.0, *slack[acting].abs().tolist(), float((z * slack)[acting].abs().sum())])
        better = worst < missed
        if better:
            best, active, missed = u, int((z > 0).sum()), worst
        if bool((violated & ~working).any()):
            working, mends_left = working | violated, None
        elif better and mends_left:
            mends_left -= 1
            some = acting[chosen]
            lacking = -slack[acting].unsqueeze(1)
            mend = torch.linalg.lstsq(K[some][:, some], lacking, rcond=_noise(K), driver="gelsd").solution
            z = z.index_put((acting,), mend.squeeze(1), accumulate=True).clamp(min=0)
        else:
            break
    return best, missed, active


def _moved(before: Tensor, g: Tensor, length: float, G: Directions, z: Tensor) -> tuple[Tensor, float]:
    """u = g + ‖g‖ Σ_j z_j G_j/‖G_j‖, and ‖u − before‖/‖g‖, piece by piece in the cache.

    Large terms that cancel are summed in float64; others lose nothing in the vectors' own precision.
    """
    u, squares = torch.empty_like(g), 0.0
    precision = g.dtype if float(z.sum()) <= 1 else torch.float64
    factors = {j: length * float(z[j] / G.lengths[j]) for j in z.nonzero().squeeze(1).tolist()}
    for start in range(0, len(g), COLUMNS):
        piece = slice(start, start + COLUMNS)
        total = g[piece].to(precision, copy=True)
        for j, factor in factors.items():
            total.add_(G.rows[j][piece].to(precision), alpha=factor)
        u[piece] = total
        squares += float(total.sub_(before[piece]).square_().sum())
    return u, squares**0.5 / length


def _dual(K: Tensor, p: Tensor) -> Tensor:
    """z for unit rows and unit g: with K = FᵀF, the nonnegative least squares of F z = −F⁻ᵀ p [m]."""

    values, vectors = torch.linalg.eigh(K)
    real = values > _noise(K) * values[-1]
    values, vectors = values[real].sqrt(), vectors[:, real]
    inside = vectors.T @ p
    if float((vectors @ inside - p).abs().max()) <= POSSIBLE:
        z, _ = _nnls((vectors * values).T.numpy(), (-inside / values).numpy(), maxiter=30 * len(p))
        return torch.from_numpy(z)
    # A margin puts p outside K's range where rows depend on each other. Lawson and Hanson's least-distance programme
    # does not mind: y ≥ 0 of least ‖[F; −pᵀ] y − e‖, e the last unit vector, and z = y/(1 + pᵀy).
    system = torch.cat([(vectors * values).T, -p.unsqueeze(0)]).numpy()
    y, _ = _nnls(system, np.eye(len(system))[-1], maxiter=30 * len(p))
    return torch.from_numpy(y / max(1 + p.numpy() @ y, POSSIBLE))


def _noise(K: Tensor) -> float:
    """Eigenvalues of K below this share of the largest are rounding, no direction of their own."""
    return 20 * len(K) * torch.finfo(K.dtype).eps


@torch.no_grad()
def project_few(vectors: Tensor, rho: float = 0.0, bounds: Tensor | None = None) -> tuple[Tensor, list[int]]:
    """The projections u [K, d] of K vectors g for r ≤ 3 rows each, given together as [K, 1 + r, d] with g first.

    u is written over g. Also how many rows have a part in each u, over all blocks [K].
    """
    u, acting = vectors[:, 0], [0] * len(vectors)
    if vectors.shape[1] == 1:
        return u, acting
    edges = [0, u.shape[1]] if bounds is None else bounds.tolist()
    for start, stop in pairwise(edges):
        part = vectors[:, :, start:stop]
        c = multipliers([products(own, own) for own in part], rho, u.dtype)
        acting = [count + sum(map(bool, own)) for count, own in zip(acting, c, strict=True)]
        for row, c_row in enumerate(zip(*c, strict=True), start=1):
            if any(c_row):
                part[:, 0].addcmul_(part[:, row], torch.tensor(c_row, dtype=u.dtype, device=u.device).unsqueeze(1))
    return u, acting


def multipliers(grams: Sequence[Matrix], rho: float, dtype: torch.dtype) -> Matrix:
    """What each row adds to g in one block: u = g + Σ_j c_j G_j [K, r].

    Given are K clients' inner products of g and the rows of G, each [1 + r, 1 + r], of vectors of that precision.
    """
    return [_step(gram, rho, rounding(dtype)) for gram in grams]


def _step(gram: Matrix, rho: float, exact: float) -> list[float]:
    """c [r] of one client and block.

    In plain numbers: for three rows a call into a library costs more than the arithmetic.
    """
    lengths = [math.sqrt(row[j]) or 1.0 if row[j] >= 0 else math.nan for j, row in enumerate(gram)]
    if not all(map(math.isfinite, lengths)):
        return [math.nan] * (len(gram) - 1)  # never the unprojected direction: divergence must be seen
    length, *G = lengths
    p = [row[0] / (length * own) for row, own in zip(gram[1:], G, strict=True)]
    if min(p) >= rho - exact:
        return [0.0] * len(p)
    K = [[row[j + 1] / (own * other) for j, other in enumerate(G)] for row, own in zip(gram[1:], G, strict=True)]
    z, missed = _best_active_set(K, [value - rho for value in p], exact)
    if rho > 0 and missed > POSSIBLE:
        z, _ = _best_active_set(K, p, exact)
    return [z_j * length / own for z_j, own in zip(z, G, strict=True)]


def products(left: Tensor, right: Tensor) -> Matrix:
    """Inner products of a few vectors [a, n] with a few [b, n], summed in float64 [a, b]; pieces as in ``dots``."""
    (few, n), (others, _) = left.shape, right.shape
    pieces = n // FEW_COLUMNS
    if pieces < 2:
        return (left @ right.T).tolist()
    whole = n - n % pieces
    a = left[:, :whole].view(few, pieces, -1).transpose(0, 1)
    b = right[:, :whole].view(others, pieces, -1).permute(1, 2, 0)
    # Not every accelerator has double precision.
    found: Matrix = torch.bmm(a, b).cpu().sum(0, dtype=torch.float64).tolist()
    return found if whole == n else plus(found, (left[:, whole:] @ right[:, whole:].T).tolist())


def plus(left: Matrix, right: Matrix) -> Matrix:
    """Their sum."""
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


def _best_active_set(K: Matrix, p: list[float], exact: float) -> tuple[list[float], float]:
    """z [r] of an active set that meets all conditions, and by how much it misses them.

    On an active set K z = −p; off it z = 0. Some set of independent rows is always the right one, so that dependent
    ones (the first two rows are equal in a worker's second step) need no more than being passed over.
    """
    best, least = [0.0] * len(p), math.inf
    violated = [i for i, value in enumerate(p) if value < 0]
    for active in [violated, [], *_active_sets(len(p))]:  # mostly the first
        solution = _solution([[K[i][j] for j in active] for i in active], [-p[i] for i in active])
        if solution is None:
            continue
        z = [0.0] * len(p)
        for i, value in zip(active, solution, strict=True):
            z[i] = value
        slack = [sum(map(mul, row, z)) + p_i for row, p_i in zip(K, p, strict=True)]
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
    """All sets of rows that are not empty, the smallest first."""
    return [list(rows) for size in range(1, r + 1) for rows in combinations(range(r), size)]


def _nnls(A: Any, b: Any, maxiter: int) -> Any:
    """min ‖A·x − b‖ over x ≥ 0, and that norm; scipy is imported when somebody projects, which few runs do."""
    from scipy.optimize import nnls

    return nnls(A, b, maxiter=maxiter)
