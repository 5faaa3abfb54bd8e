"""Keel: the server's momentum, projected onto what every client agrees with, and applied before clients train.

GradMA-S keeps momentum from undoing what absent clients contributed; FedACG lets clients train from the point to which
momentum is about to carry the model. Keel does both. Its clients are FedAvg's: they send and remember nothing else.

    server   sends z = x − κ η_g β1 m̃
    client   y ← z;  K_i times:  y ← y − η ∇F_i(y);   d_i = z − y
    server   D[i] ← β2 D[i] + d_i  for i ∈ S,   β2 D[i]  for the others     (``gradma_memory``: at most m clients)
             m = β1 m̃ + Σ_S a_i d_i
             m̃ ← argmin_u ‖u − m‖²  subject to  ⟨D[i], u⟩ ≥ ρ ‖m‖ ‖D[i]‖  for every remembered i
             x ← x − η_g m̃
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Clients,
    Law,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.server_steps import average_gap, gaps
from fedkeel.algorithms.state import State
from fedkeel.learning.projection import projected


class Keel(Algorithm):
    name = "keel"
    title = "Keel"
    idea = "Clients train from where the server's momentum is heading, and momentum must not work against any of them."
    paper = Paper("Look-ahead along a projected momentum", "The fedkeel authors", "fedkeel", 2026)
    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            "Keel without conflicts is FedACG(β = 0)",
            {"beta1": 0.6, "rho": -1.0},
            "fedacg",
            {"lam": 0.6, "beta": 0.0},
        ),
        Law(
            "Keel without look-ahead is GradMA-S",
            {"beta1": 0.3, "beta2": 0.6, "eta_g": 1.2, "ahead": 0.0},
            "gradma_s",
            {"beta1": 0.3, "beta2": 0.6, "eta_g": 1.2},
        ),
    )
    unknown = memory.UNKNOWN
    params: Params

    class Params(AlgorithmParams):
        beta1: float = Field(0.8, ge=0, lt=1, description="β1, momentum of the projected update")
        beta2: float = Field(0.6, ge=0, lt=1, description="β2, decay of remembered updates")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")
        ahead: float = Field(1.0, ge=0, le=1, description="κ, how far along the momentum clients start; 0: at x")
        m: int | None = Field(None, ge=1, description="m, clients remembered, at least a cohort; absent: all")
        rho: float = Field(0.0, ge=-1, lt=1, description="ρ, margin of the projection; −1 switches it off")
        weights: Literal["uniform", "n"] = Field("uniform", description="a_i of the mean update: 1/S, or by samples")

    @property
    def most_remembered(self) -> int | None:
        return self.params.m

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros(), **memory.initial(problem, "flat"))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        memory.check_room(self.name, self.params.m, clients.S)
        return Message(w=self._ahead(server))

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        params, clients, y, z = self.params, uploads.clients, uploads.y, self._ahead(server)
        m = params.beta1 * server.m + average_gap(z, y, clients.weights(params.weights))
        server = memory.mem_red(server, clients.ids, params.m or clients.N)
        server = memory.remember(server, clients.ids, gaps(z, y), params.beta2)
        D, gram = memory.directions(server, params.beta2)
        m_tilde, active = projected(m, D, params.rho, server.bounds, gram)
        server = server.replace(w=server.w - params.eta_g * m_tilde, m=m_tilde, gram=gram)
        return server.noting(active=active, remembered=len(D))

    def _ahead(self, server: State) -> Tensor:
        """z = x − κ η_g β1 m̃ [d]."""
        z: Tensor = server.w - self.params.ahead * self.params.eta_g * self.params.beta1 * server.m
        return z
