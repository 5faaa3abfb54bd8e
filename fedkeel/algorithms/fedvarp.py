"""FedVARP: variance reduction for partial participation (Jhunjhunwala et al., UAI 2022).

The server remembers the last update of every client, as MIFA does, and corrects the mean of those that answer by what
it remembers of them and of everybody. What a cohort says that is only because it is this cohort cancels.

    client   y ← w;  K_i times:  y ← y − η_t ∇F_i(y)
    server   Δ_i ← (y_i − w)/η_t;   v ← mean_S (Δ_i − u_i) + 1/N Σ_N u_j;   w ← w + η_g η_t v
             u_i ← Δ_i  for i in S

u is in units of gradients, so that a decaying η_t applies to old entries too. Before a client's first report u_i = 0.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Law, Paper, Problem, Round, Uploads
from fedkeel.algorithms.mifa import mean_of
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.state.rows import Rows


class FedVARP(Algorithm):
    name = "fedvarp"
    title = "FedVARP"
    idea = "The cohort's mean update, corrected by what the server remembers of these clients and of all."
    paper = Paper(
        "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated Learning",
        "Jhunjhunwala et al.",
        "UAI",
        2022,
    )
    laws = (
        Law(
            "FedVARP with everybody present is FedAvg with equal weights",
            {"eta_g": 0.7},
            "fedavg",
            {"weights": "uniform", "eta_g": 0.7},
            needs=frozenset({"full"}),
        ),
        Law("FedVARP with everybody present is MIFA", {}, "mifa", needs=frozenset({"full"})),
    )
    params: Params

    class Params(AlgorithmParams):
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, u=Rows())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = uploads.clients
        delta = (uploads.y - server.w) / round.lr
        news = delta - server.u.take(clients.ids, default=torch.zeros_like(server.w))
        everybody = torch.full((clients.N,), 1 / clients.N, dtype=delta.dtype)
        v = average(news, clients.uniform) + mean_of(server.u, everybody, server.w)
        return server.replace(w=server.w + self.params.eta_g * round.lr * v, u=server.u.put(clients.ids, delta))
