"""FedAvg: federated averaging (McMahan et al., AISTATS 2017).

Every client trains the global model on its own data; the server averages what comes back.

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   w ← w + η_g (Σ_S p_i y_i − w)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Paper, Round, Uploads
from fedkeel.algorithms.server_steps import average, towards
from fedkeel.algorithms.state import State


class FedAvg(Algorithm):
    name = "fedavg"
    title = "FedAvg"
    idea = "Clients train by themselves; the server averages their models."
    paper = Paper(
        "Communication-Efficient Learning of Deep Networks from Decentralized Data", "McMahan et al.", "AISTATS", 2017
    )
    any_optimiser = True
    any_mean = True
    any_staleness = True
    params: Params

    class Params(AlgorithmParams):
        weights: Literal["n", "uniform"] = Field("n", description="weights of the average: samples, or equal")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate; 1 is the plain average")

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.y, uploads.clients.weights(self.params.weights))
        return server.replace(w=towards(server.w, mean, self.server_rate))

    @property
    def server_rate(self) -> float:
        """η_g, unless a server rule wrapped around this average applies it (``server_momentum``)."""
        return self.params.eta_g
