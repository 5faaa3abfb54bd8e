"""One server with every part that was tried, each behind a parameter; clients send and remember what FedAvg's do.

look-ahead    clients start from z = x − β1 m instead of x (``ahead``); with η_g in front of β1 (``full``)
gain          z = x − H, x ← z − d, H ← β1 H + b d: FedACG for b = β1, FedDyn's server for β1 = 1, b = S/N
projection    m ← the nearest direction that works against no client's remembered updates, with a margin ``rho_g``
calibration   clients add τ log p_ic to their scores, p_ic the (smoothed) share of class c at client i
rows          clients' steps are projected as GradMA's are, by rows that take no memory of a client
memory        FedVARP's correction of the cohort's mean by remembered updates, a share ``varp`` of it
deviations    the same with remembered deviations from the mean direction (``dev``), which fade with ``age``
soft          a cone that gives way: violations cost, and less the longer ago a client was there (``soft``, ``fade``)
groups        updates remembered for so many groups of clients instead of for each
trust         momentum counts as much as it agrees with the cohort: β1 (1 + cos(m̃, d)) / 2
fall          step sizes fall within the round to this share, as FedSWA's do
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.advanced import Calibration, Projection, Rule
from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Answer,
    Clients,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.fedswa import falling
from fedkeel.algorithms.mifa import mean_of
from fedkeel.algorithms.server_steps import average, average_gap, gaps
from fedkeel.algorithms.state import State
from fedkeel.learning.projected import Row
from fedkeel.learning.projection import bounds_of, dots, inner, projected
from fedkeel.state.rows import Rows


class Candidate(Algorithm):
    name = "candidate"
    title = "Candidate"
    idea = "Parts of methods, put together."
    paper = Paper("–", "the authors of fedkeel", "–", 2026)
    unknown = memory.UNKNOWN
    params: Params

    class Params(AlgorithmParams):
        beta1: float = 0.85
        beta2: float = 0.5
        eta_g: float = 1.0
        ahead: bool = True
        full: bool = False
        b: float = 0.0
        projection: bool = False
        rho_g: float = 0.0
        calibration: Literal["none", "log"] = "none"
        tau: float = 1.0
        rows: tuple[Row, ...] = ()
        varp: float = 0.0
        dev: float = 0.0
        age: float = 1.0
        soft: float = 0.0
        fade: float = 1.0
        groups: int = 0
        trust: bool = False
        fall: float = 1.0

    def server_init(self, problem: Problem) -> State:
        remembered: dict[str, Any] = memory.initial(problem, "flat") if self.params.projection else {}
        last = torch.full((problem.N,), -1, dtype=torch.int64)
        return State(w=problem.w0, m=problem.zeros(), u=Rows(), last=last, **remembered)

    def pace(self, steps: Tensor) -> Tensor | None:
        return None if self.params.fall == 1 else falling(steps, self.params.fall)

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=self._start(server))

    def local_round(self, local: Local) -> Answer:
        calibration = None
        if self.params.calibration == "log":
            n = local.class_counts
            share = (n + 1) / (n.sum(1, keepdim=True) + n.shape[1])
            calibration = Calibration(shift=(self.params.tau * torch.log(share)).to(local.w.dtype))
        bounds = bounds_of(local.problem.layout, "flat")
        rows = Projection(self.params.rows, local.w, 0.0, bounds) if self.params.rows else None
        trained = local.train_by(Rule(calibration=calibration, projection=rows))
        return *self.finish(local, trained.y), trained

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        params, clients, z = self.params, uploads.clients, self._start(server)
        d = average_gap(z, uploads.y, clients.uniform)
        if params.varp:
            d, server = self._with_memory(d, z, server, uploads, round)
        if params.dev:
            d, server = self._with_deviations(d, z, server, uploads, round)
        if params.b:
            return server.replace(w=z - params.eta_g * d, m=params.beta1 * server.m + params.b * d)
        m = params.beta1 * (agreement(server.m, d) if params.trust else 1.0) * server.m + d
        if params.projection:
            ids, updates = clients.ids, gaps(z, uploads.y)
            if params.groups:
                ids, updates = grouped(ids, updates, params.groups)
            server = memory.mem_red(server, ids, clients.N)
            server = memory.remember(server, ids, updates, params.beta2)
            D, gram = memory.directions(server, params.beta2)
            if params.soft:
                m = softly_projected(m, D, params.soft / params.fade ** server.age.double().numpy())
            else:
                m, _ = projected(m, D, params.rho_g, server.bounds, gram)
                server = server.replace(gram=gram)
        return server.replace(w=server.w - params.eta_g * m, m=m)

    def _start(self, server: State) -> Tensor:
        params = self.params
        far = 1.0 if params.b else (params.eta_g if params.full else 1.0) * params.beta1 * params.ahead
        z: Tensor = server.w - far * server.m
        return z

    def _with_memory(self, d: Tensor, z: Tensor, server: State, uploads: Uploads, round: Round) -> tuple[Tensor, State]:
        clients = uploads.clients
        old = average(server.u.take(clients.ids, default=torch.zeros_like(d)), clients.uniform)
        everybody = mean_of(server.u, torch.full((clients.N,), 1 / clients.N, dtype=d.dtype), d)
        renewed = server.u.put(clients.ids, (z - uploads.y) / round.lr)
        return d + self.params.varp * round.lr * (everybody - old), server.replace(u=renewed)

    def _with_deviations(
        self, d: Tensor, z: Tensor, server: State, uploads: Uploads, round: Round
    ) -> tuple[Tensor, State]:
        params, ids, N = self.params, list(uploads.clients.ids), uploads.clients.N
        fresh = params.dev * params.age ** (round.t - server.last).double()
        weight = torch.where(server.last >= 0, fresh, 0.0).to(d.dtype)
        old = average(server.u.take(tuple(ids), default=torch.zeros_like(d)), weight[ids] / len(ids))
        everybody = mean_of(server.u, weight / N, d)
        usual = (1 - params.beta1) * (params.beta1 * server.m + d) if params.beta1 else d
        renewed = server.u.put(tuple(ids), ((z - uploads.y) - usual) / round.lr)
        last = server.last.index_fill(0, torch.tensor(ids), round.t)
        return d - round.lr * (old - everybody), server.replace(u=renewed, last=last)


def agreement(m: Tensor, d: Tensor) -> float:
    """(1 + cos(m, d)) / 2; 1 where one of them is zero."""
    lengths = float(m.norm() * d.norm())
    return (1 + float(m @ d) / lengths) / 2 if lengths > 0 else 1.0


def grouped(ids: Sequence[int], updates: Iterable[Tensor], groups: int) -> tuple[tuple[int, ...], list[Tensor]]:
    """The mean update of every group (number modulo ``groups``) of which somebody is there."""
    members: dict[int, list[Tensor]] = {}
    for i, update in zip(ids, updates, strict=True):
        members.setdefault(i % groups, []).append(update.clone())  # the next one comes in its place
    return tuple(members), [torch.stack(found).mean(0) for found in members.values()]


def softly_projected(m: Tensor, rows: Sequence[Tensor], give: np.ndarray) -> Tensor:
    """argmin_u ½‖u − m‖² + Σ_j max(0, −⟨ĝ_j, u⟩)² / (2 c_j), ĝ_j rows of unit length, c_j = ``give`` [rows].

    Its dual is the hard cone's with c on the diagonal: z ≥ 0 of least ½ zᵀ(K + diag c) z + zᵀ(Ĝ m), u = m + Ĝᵀ z.
    """
    lengths = np.array([float(row.norm()) for row in rows])
    known = np.flatnonzero(lengths > 0)
    kept = [rows[j] for j in known]
    if not kept:
        return m
    scale = 1 / lengths[known]
    K = inner(kept, kept).numpy() * scale[:, None] * scale + np.diag(give[known])
    p = dots(kept, m).numpy() * scale
    # ½‖Lᵀz + L⁻¹p‖² has the same minimum, with K = L Lᵀ.
    L = np.linalg.cholesky(K + 1e-10 * np.eye(len(K)))
    z, _ = nnls(L.T, -np.linalg.solve(L, p))
    u = m.clone()
    for row, weight in zip(kept, (z * scale).tolist(), strict=True):
        u.add_(row, alpha=weight)
    return u
