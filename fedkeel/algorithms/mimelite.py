"""MimeLite: the server's momentum in every local step (Karimireddy et al., 2020).

A client's steps follow the momentum of the whole federation, frozen for the round, instead of one of its own. It is
renewed from full gradients at w, which no drift has touched.

    client   y ← w;  K_i times:  y ← y − η ((1 − β) ∇F_i(y) + β m);   r_i ← ∇F_i(w)
    server   w ← w + η_g Σ_S p_i (y_i − w);   m ← (1 − β) Σ_S p_i r_i + β m
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
from fedkeel.algorithms.corrections import scaled, shift
from fedkeel.algorithms.server_steps import average, towards
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class MimeLite(Algorithm):
    name = "mimelite"
    title = "MimeLite"
    idea = "Every local step uses the server's momentum, frozen for the round."
    paper = Paper(
        "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning",
        "Karimireddy et al.",
        "arXiv:2008.03606",
        2020,
    )
    laws = (Law("MimeLite(β = 0) is FedAvg", {"beta": 0.0, "eta_g": 1.0}, "fedavg"),)
    any_mean = True
    passes_a_round = 1.0
    params: Params

    class Params(AlgorithmParams):
        modes = {"code": {"form": "fedjax", "eta_g": 1.0}}
        beta: float = Field(0.9, ge=0, lt=1, description="β, momentum")
        # K steps along one frozen m are a step of size ηKβ: with η_g = 1 that was unstable at η = 0.1 and K = 24.
        eta_g: float = Field(0.3, gt=0, description="η_g, server learning rate; 1 in the paper, for small η")
        weights: Literal["n", "uniform"] = Field("n", description="weights p_i: samples, or equal")
        form: Literal["paper", "fedjax"] = Field(
            "paper", description="weight of new gradients: 1 − β, or 1 as in FedJAX (steps up to 1/(1 − β) longer)"
        )

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, m=server.m)

    def correction(self, local: Local) -> Correction:
        return scaled(self._fresh) + shift(self.params.beta * local.down.m)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        return Message(y=y, r=local.full_gradient(local.w)), local.client

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        p = uploads.clients.weights(self.params.weights)
        w = towards(server.w, average(uploads.y, p), self.params.eta_g)
        return server.replace(w=w, m=self._fresh * average(uploads.r, p) + self.params.beta * server.m)

    @property
    def _fresh(self) -> float:
        """The weight of a new gradient beside β m."""
        return 1.0 - self.params.beta if self.params.form == "paper" else 1.0
