"""The server's memory of GradMA: the accumulated update D[i] of at most m clients, the least frequent leaving first.

    mem_red    for i ∈ S_t in order (Algorithm 4):
                   i ∈ buf:  c(i) ← c(i) + 1
                   else:     if |buf| = m:  drop the k ∈ buf, k ∉ S_t, of least c(k) (the earliest entry among equals)
                             c(i) ← 1;  buf ← buf ∪ {i};  new_buf ← new_buf ∪ {i}
    remember   (Algorithm 3, lines 2-8)   D[i] ← d_i                for i ∈ new_buf
                                          D[i] ← β2 D[i] + d_i      for the others of S_t
                                          D[i] ← β2 D[i]            for i ∉ S_t

The server state holds ``buf`` (clients in order of entry [b]), their counters ``c`` [b] and the table ``D``. A row of
the table is the vector as last renewed, and ``age`` [b] counts the rounds since: D[i] = β2^age·row. So decay touches no
vector, the directions of clients long absent do not underflow, and neither those rows nor their inner products
``gram`` [B, b, b] (one matrix a block between ``bounds``; inf: never needed so far) change.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import scipy.optimize  # noqa: F401 (the projection needs it: imported once here, not in every worker process)
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Problem
from fedkeel.algorithms.state import State
from fedkeel.errors import invalid
from fedkeel.learning.projection import Blocks, bounds_of
from fedkeel.state.rows import Rows

UNKNOWN = frozenset({"gram"})
"""Values of the server state in which inf means "not known"."""


PIECE = 1 << 16
"""Coordinates of a row that are renewed at a time."""


def initial(problem: Problem, blocks: Blocks) -> dict[str, Any]:
    """An empty memory, as values of the server state."""
    bounds = bounds_of(problem.layout, blocks)
    gram = torch.zeros(len(bounds) - 1, 0, 0, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.int64)
    return {"D": Rows(), "buf": none, "c": none, "age": none, "gram": gram, "bounds": bounds}


def check_room(algorithm: str, m: int | None, cohort: int) -> None:
    """Refuse a memory that is too small for the clients of one round."""
    if m is not None and m < cohort:
        hint = "Leave it out to remember every client, or let fewer take part (training.participation)."
        raise invalid(f"{algorithm}.m", f"at least the {cohort} clients of a round", m, hint)


def mem_red(server: State, cohort: tuple[int, ...], m: int) -> State:
    """Algorithm 4: count the cohort, and make room for its new members, who have no row in D yet."""
    buf: dict[int, int] = dict(zip(server.buf.tolist(), server.c.tolist(), strict=True))
    for i in cohort:
        if i not in buf and len(buf) == m:
            old = [k for k in buf if k not in cohort]
            del buf[min(old, key=buf.__getitem__)]
        buf[i] = buf.get(i, 0) + 1
    kept = torch.tensor([k for k, i in enumerate(server.buf.tolist()) if i in buf], dtype=torch.int64)
    new = len(buf) - len(kept)
    gram = torch.nn.functional.pad(server.gram[:, kept][:, :, kept], (0, new, 0, new), value=torch.inf)
    return server.replace(
        D=server.D.drop([i for i in server.D if i not in buf]),
        buf=torch.tensor(list(buf)),
        c=torch.tensor(list(buf.values())),
        age=torch.cat([server.age[kept], server.age.new_zeros(new)]),
        gram=gram,
    )


def remember(server: State, cohort: tuple[int, ...], d: Iterable[Tensor], beta2: float) -> State:
    """Lines 2-8 of Algorithm 3: take in the cohort's updates d (each [d]), let the rest decay."""
    buf = server.buf.tolist()
    places = torch.tensor([buf.index(i) for i in cohort])
    decay = beta2 ** (server.age[places] + 1).double()
    rows, lengths = [], []
    for i, factor, update in zip(cohort, decay.tolist(), d, strict=True):
        rows.append(server.D.room(update))
        lengths.append(renew(rows[-1], update, server.D.get(i), factor, server.bounds))
    gram = server.gram.clone()
    gram[:, places] = gram[:, :, places] = torch.inf
    gram[:, places, places] = torch.tensor(lengths, dtype=torch.float64).T
    D = server.D.hold(cohort, rows)
    return server.replace(D=D, age=(server.age + 1).index_fill(0, places, 0), gram=gram)


def renew(row: Tensor, update: Tensor, old: Tensor | None, factor: float, bounds: Tensor) -> list[float]:
    """row ← factor·old + update (each [d]), and its squared length in every block.

    Piece by piece in the cache: vectors of many parameters are as quick as memory is.
    """
    squares = []
    for start, stop in pairwise(bounds.tolist()):
        total = 0.0
        for piece in (slice(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)):
            part = row[piece]
            if old is None:
                part.copy_(update[piece])
            else:
                torch.add(update[piece], old[piece], alpha=factor, out=part)
            total += float(torch.dot(part, part))
        squares.append(total)
    return squares


def directions(server: State, beta2: float) -> tuple[list[Tensor], Tensor]:
    """The remembered rows, and what is known of their inner products by block (a copy)."""
    gram = server.gram.clone()
    if beta2 == 0:  # what was not renewed in this round is zero
        gram.diagonal(dim1=1, dim2=2).masked_fill_(server.age > 0, 0.0)
    return [server.D[i] for i in server.buf.tolist()], gram
