"""What FedVeca's server notes of every round beside its update: the terms of Theorem 1, and whether they hold.

    L ← max(L, ‖∇F(w_{k−1}) − ∇F(w_{k−2})‖/‖w_{k−1} − w_{k−2}‖)
    premise η τ̄ L ≥ 1;   bound (14): η τ̄ (η/4 Σ p_i (τ_i (2L + A_i) − A_i) − 1);   Assumption 2: ‖D‖ ≤ ‖∇F(w)‖

Nothing of this moves the model, except where another reading asks for it (the cap on α, the acceptance test).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Problem, Uploads
from fedkeel.algorithms.state import State

TINY = 1e-12
"""Distances up to this count as zero, so that no quotient is taken over them."""
UNKNOWN = frozenset({"beta", "delta", "A"})
"""Values that are NaN for clients of which they are not known."""


def initial(problem: Problem, tau: Tensor) -> dict[str, Any]:
    """The record before the first round, with the steps τ [N] of every client."""
    unknown = torch.full((problem.N,), math.nan, dtype=torch.float64)
    return {
        "w_prev": problem.w0,
        "tau_floor": tau,
        "L": math.nan,
        "L_next": math.nan,
        "F": math.nan,
        "F_best": math.inf,
        "accepted": True,
        "beta": unknown,
        "delta": unknown,
        "A": unknown,
        "tau_bar": math.nan,
        "premise": math.nan,
        "bound": math.nan,
        "assumption_2": True,
    }


@dataclass(frozen=True)
class Seen:
    """One round of a cohort, as the update computes it."""

    grad: Tensor
    """∇F(w) [d]."""
    D: Tensor
    """[d]."""
    tau_bar: float
    beta: Tensor
    delta: Tensor
    A: Tensor
    """β_i, δ_i and A_i [S]."""
    floor: Tensor
    """τ_i of the next round before it is raised to τ_min [S]."""


def smoothness(server: State) -> float:
    """L, from the models and gradients of the rounds before; NaN as long as there are none."""
    return max((x for x in (server.L, server.L_next) if not math.isnan(x)), default=math.nan)


def renewed(server: State, uploads: Uploads, eta: float, seen: Seen) -> dict[str, Any]:
    """The record after a round."""
    clients, L = uploads.clients, smoothness(server)
    rows = torch.tensor(clients.ids)
    moved = norm(server.w - server.w_prev)
    tau = uploads.steps.double()
    excess = float((clients.p.double() * (tau * (2 * L + seen.A) - seen.A)).sum())
    return {
        "w_prev": server.w,
        "tau_floor": server.tau_floor.index_copy(0, rows, seen.floor),
        "L": L,
        "L_next": norm(seen.grad - server.grad_prev) / moved if moved > TINY else math.nan,
        "beta": _spread(seen.beta, rows, clients.N),
        "delta": _spread(seen.delta, rows, clients.N),
        "A": _spread(seen.A, rows, clients.N),
        "tau_bar": seen.tau_bar,
        "premise": eta * seen.tau_bar * L,
        "bound": eta * seen.tau_bar * (eta / 4 * excess - 1),
        "assumption_2": norm(seen.D) <= norm(seen.grad),
    }


def noting(server: State, uploads: Uploads) -> State:
    """The state after a round, which the run is to keep the terms of Theorem 1 of."""
    cohort = torch.tensor(uploads.clients.ids)
    each = {name: server[name][cohort] for name in ("beta", "delta", "A")}
    all_together = {name: server[name] for name in ("tau_bar", "L", "premise", "bound", "assumption_2")}
    return server.noting(tau=uploads.steps, **each, **all_together)


def norm(x: Tensor) -> float:
    """‖x‖, in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _spread(values: Tensor, rows: Tensor, N: int) -> Tensor:
    """Values of a cohort [S] among all clients [N], NaN for the absent."""
    return torch.full((N,), math.nan, dtype=values.dtype).index_copy(0, rows, values)
