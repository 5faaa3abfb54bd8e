"""FedCM: client-level momentum (Xu et al., 2021).

A client's steps follow the mean step of the last round as well as its own gradient. So a cohort that happens to be
unlike the rest cannot turn the model around in one round.

    client   y ← w;  K_i times:  y ← y − η (a ∇F_i(y) + (1 − a) g)
    server   g ← mean_S (w − y_i)/(K_i η);   w ← w + η_g (mean_S y_i − w)
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

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
from fedkeel.algorithms.corrections import scaled, shift
from fedkeel.algorithms.server_steps import average, mean_direction, towards
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedCM(Algorithm):
    name = "fedcm"
    title = "FedCM"
    idea = "Every local step follows the last round's mean step as well as its own gradient."
    paper = Paper("FedCM: Federated Learning with Client-level Momentum", "Xu et al.", "arXiv:2106.10874", 2021)
    laws: ClassVar[tuple[Law, ...]] = (
        Law("FedCM(a = 1) is FedAvg with equal weights", {"a": 1.0}, "fedavg", {"weights": "uniform"}),
    )
    params: Params

    class Params(AlgorithmParams):
        a: float = Field(0.1, gt=0, le=1, description="a, share of a client's own gradient; 0.1 in the paper")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, g=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, g=server.g)

    def correction(self, local: Local) -> Correction:
        return scaled(self.params.a) + shift((1 - self.params.a) * local.down.g)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.y, uploads.clients.uniform)
        g = mean_direction(server.w, uploads.y, uploads.travel)
        return server.replace(w=towards(server.w, mean, self.params.eta_g), g=g)
