"""FedACG: accelerated client gradient (Kim et al., CVPR 2024).

The server sends clients the point z to which its momentum is about to carry the model. They train from there, with a
spring that holds them near it, so that they agree on where everybody is going at no cost in traffic.

    server   sends z = w + λ m
    client   y ← z;  K_i times:  y ← y − η (∇F_i(y) + β (y − z))
    server   Δ̄ ← mean_S y_i − z;   m ← λ m + Δ̄;   w ← z + Δ̄
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Clients,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedACG(Algorithm):
    name = "fedacg"
    title = "FedACG"
    idea = "Clients train from the point to which the server's momentum is about to carry the model."
    paper = Paper(
        "Communication-Efficient Federated Learning with Accelerated Client Gradient", "Kim et al.", "CVPR", 2024
    )
    laws = (
        Law(
            "FedACG(λ = 0, β = 0) is FedAvg with equal weights",
            {"lam": 0.0, "beta": 0.0},
            "fedavg",
            {"weights": "uniform"},
        ),
        Law("FedACG(λ = 0) is FedProx(μ = β)", {"lam": 0.0, "beta": 0.2, "weights": "n"}, "fedprox", {"mu": 0.2}),
    )
    any_optimiser = True
    any_mean = True
    params: Params

    class Params(AlgorithmParams):
        lam: float = Field(0.85, ge=0, lt=1, description="λ, momentum of the server; 0.85 in the authors' program")
        beta: float = Field(
            0.001, ge=0, description="β, strength of (β/2)‖y − z‖²; the authors' program leaves the ½ out"
        )
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of the mean: equal, or samples")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=self._ahead(server))

    def correction(self, local: Local) -> Correction:
        return pull(self.params.beta, towards=local.w)  # which is z here

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.y, uploads.clients.weights(self.params.weights))
        return server.replace(w=mean, m=self.params.lam * server.m + (mean - self._ahead(server)))

    def _ahead(self, server: State) -> Tensor:
        """z = w + λ m [d]."""
        z: Tensor = server.w + self.params.lam * server.m
        return z
