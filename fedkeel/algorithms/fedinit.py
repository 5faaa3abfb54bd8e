"""FedInit: stage-wise relaxed initialisation (Sun et al., NeurIPS 2023).

A client does not start at the global model but a little beyond it, away from where it ended last time. That takes back
part of its drift before it begins to drift again.

    client   z ← w + β (w − y_i);   y ← z;  K_i times:  y ← y − η ∇F_i(y);   y_i ← y
    server   w ← w + η_g mean_S (y_i − z_i)

Before a client's first round y_i is the initial model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedkeel.algorithms.contract import Answer, Law, Local, Message, Paper, Problem
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import State


class FedInit(FedAvg):
    name = "fedinit"
    title = "FedInit"
    idea = "Clients start a little beyond the global model, away from where they ended last time."
    paper = Paper(
        "Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed Initialization",
        "Sun et al.",
        "NeurIPS",
        2023,
    )
    laws = (
        Law("FedInit(β = 0) is FedAvg with equal weights", {"beta": 0.0}, "fedavg", {"weights": "uniform"}),
        Law(
            "FedInit's two server rules are one when all take part",
            {"server": "updates"},
            "fedinit",
            {"server": "models"},
            needs=frozenset({"full"}),
        ),
    )
    params: Params

    class Params(FedAvg.Params):
        modes = {"literal": {"server": "models"}}
        beta: float = Field(0.1, ge=0, description="β, how far beyond the global model clients start; 0 is FedAvg")
        weights: Literal["n", "uniform"] = Field("uniform", description="weights of the mean: samples, or equal")
        server: Literal["updates", "models"] = Field(
            "updates", description="what is averaged: w + (y_i − z_i) as in the authors' program, or y_i as printed"
        )

    def client_init(self, problem: Problem) -> State:
        return State(y=problem.w0)

    def local_round(self, local: Local) -> Answer:
        z = local.w + self.params.beta * (local.w - local.client.y)
        trained = local.train(start=z)
        sent = trained.y if self.params.server == "models" else local.w + (trained.y - z)
        return Message(y=sent), State(y=trained.y), trained
