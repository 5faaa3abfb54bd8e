"""FedMoSWA: FedSWA with control variates that follow the latest cohorts (Liu et al., ICML 2025).

SCAFFOLD's c gives every client's c_i the same weight, however old; m gives more to those that were renewed last.

    client   y ← w;  k = 0 … K_i − 1:  y ← y − η_k (∇F_i(y) − c_i + m),   η_k = η (1 − (1 − ρ) k/K_i)
             c_i ← c_i − m + (w − y)/Σ_k η_k
    server   m ← m + γ mean_S (c_i − m);   w ← w + α (mean_S y_i − w)
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Controls
from fedkeel.algorithms.contract import Clients, Law, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.fedswa import PAPER, FedSWA
from fedkeel.algorithms.server_steps import average, towards
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedMoSWA(FedSWA):
    name = "fedmoswa"
    title = "FedMoSWA"
    idea = "FedSWA, with control variates in which the latest cohorts weigh most."
    paper = PAPER
    any_optimiser = False
    any_mean = False
    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            "FedMoSWA(ρ = 1, α = 1, γ = 1) is SCAFFOLD if everybody takes part",
            {"rho": 1.0, "alpha": 1.0, "gamma": 1.0},
            "scaffold",
            needs=frozenset({"full"}),
        ),
    )
    params: Params

    class Params(FedSWA.Params):
        # What the authors' program runs under this name: no decay, no move beyond the average, and 0.4 for γ.
        modes = {"code": {"rho": 1.0, "alpha": 1.0, "gamma": 0.4}}
        gamma: float = Field(0.2, gt=0, le=1, description="γ, the weight of the cohort's mean c_i in m")
        weights: Literal["n", "uniform"] = Field("uniform", description="weights of the average: samples, or equal")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros())

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, m=server.m)

    def correction(self, local: Local) -> Correction:
        return shift(local.down.m - local.client.c)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        c = local.client.c - local.down.m + (local.w - y) / local.travel
        return Message(y=y, c=c), local.client.replace(c=c)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        m = towards(server.m, average(uploads.c, uploads.clients.uniform), self.params.gamma)
        return super().aggregate(server, uploads, round).replace(m=m)

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c)
