"""MIFA: memory-augmented impatient averaging (Gu et al., NeurIPS 2021).

The server keeps the last update of every client and steps with the mean over all N, so that a client that is away
takes part with what it said last.

    client   y ← w;  K_i times:  y ← y − η_t ∇F_i(y)
    server   U_i ← (y_i − w)/η_t  for i in S;   w ← w + η_g η_t 1/N Σ_N U_i

U is in units of gradients, so that a decaying η_t applies to old entries too. Before a client's first report U_i = 0;
with ``wait`` the server does not step until every client has reported.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

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
from fedkeel.algorithms.state import State
from fedkeel.state.rows import Rows


class Mifa(Algorithm):
    name = "mifa"
    title = "MIFA"
    idea = "The server remembers every client's last update and steps with the mean of all of them."
    paper = Paper(
        "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", "Gu et al.", "NeurIPS", 2021
    )
    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            "MIFA with everybody present is FedAvg with equal weights",
            {},
            "fedavg",
            {"weights": "uniform"},
            needs=frozenset({"full"}),
        ),
    )
    params: Params

    class Params(AlgorithmParams):
        # The authors' program lets nobody train while it waits; once all have shown up, everybody trains, present or
        # not, to fill the table, and the first step comes a round later.
        modes = {"code": {"fill": "everybody"}}
        wait: bool = Field(False, description="no step before every client has reported once")
        fill: Literal["reports", "everybody"] = Field(
            "reports", description="with wait, the table's first entries: as clients report, or all in one extra round"
        )
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of the mean over all clients")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")

    def server_init(self, problem: Problem) -> State:
        N, sizes = problem.N, problem.sizes.to(problem.w0.dtype)
        p = sizes / sizes.sum() if self.params.weights == "n" else torch.full_like(sizes, 1 / N)
        seen = {"seen": torch.zeros(N, dtype=torch.bool)} if self._calls_everybody else {}
        return State(w=problem.w0, U=Rows(), p=p, **seen)

    def cohort(self, server: State, present: tuple[int, ...], N: int) -> tuple[int, ...]:
        """Those present, or everybody in the round that fills the table."""
        fills = self._calls_everybody and not server.U and bool(_seen(server, present).all())
        return tuple(range(N)) if fills else present

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        message = Message(w=server.w)
        return message.replace(idle=1) if self._idle(server, clients) else message

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor | None:
        return torch.zeros_like(clients.sizes) if "idle" in down else None

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        ids, N = uploads.clients.ids, uploads.clients.N
        if self._calls_everybody and not bool(uploads.steps.any()):
            return server.replace(seen=_seen(server, ids))
        U = server.U.put(ids, (uploads.y - server.w) / round.lr)
        known = server.U if self.params.fill == "everybody" else U
        if self.params.wait and len(known) < N:
            return server.replace(U=U)
        return server.replace(w=server.w + self.server_rate * round.lr * mean_of(U, server.p, server.w), U=U)

    @property
    def server_rate(self) -> float:
        """η_g, unless a server rule wrapped around this one applies it (``server_momentum``)."""
        return self.params.eta_g

    @property
    def _calls_everybody(self) -> bool:
        return self.params.wait and self.params.fill == "everybody"

    def _idle(self, server: State, clients: Clients) -> bool:
        """Whether clients only show up: the table is empty and this is not the round that fills it."""
        return self._calls_everybody and not server.U and clients.S < clients.N


def _seen(server: State, present: tuple[int, ...]) -> Tensor:
    """Who has shown up so far, with those present [N]."""
    seen: Tensor = server.seen.clone()
    seen[list(present)] = True
    return seen


def mean_of(U: Rows, p: Tensor, like: Tensor) -> Tensor:
    """Σ_N p_i U_i, a vector ``like`` [d], added in client order whatever the order of their reports."""
    total = torch.zeros_like(like)
    for client in sorted(U):
        total.add_(U[client] * p[client])
    return total
