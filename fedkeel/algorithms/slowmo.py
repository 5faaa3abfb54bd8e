"""SlowMo: slow momentum on top of local SGD (Wang et al., ICLR 2020).

    client   y ← w;  K_i times:  y ← y − η_t ∇F_i(y)
    server   u ← β u + (w − Σ_S p_i y_i)/η_t;   w ← w − α_s η_t u

u is in units of gradients, so a decaying η_t also shrinks what the momentum remembers; with constant η_t this is
FedAvgM with η_g = α_s.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Law, Paper, Problem, Round, Uploads
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State


class SlowMo(Algorithm):
    name = "slowmo"
    title = "SlowMo"
    idea = "Server momentum in units of gradients, rescaled by the current learning rate."
    paper = Paper(
        "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", "Wang et al.", "ICLR", 2020
    )
    laws = (
        Law("SlowMo(β = 0, α_s = 1) is FedAvg", {"beta": 0.0, "alpha_s": 1.0}, "fedavg"),
        Law(
            "SlowMo at a constant learning rate is FedAvgM",
            {"beta": 0.6, "alpha_s": 0.8},
            "fedavgm",
            {"beta": 0.6, "eta_g": 0.8},
            needs=frozenset({"constant_lr"}),
        ),
    )
    any_mean = True
    params: Params

    class Params(AlgorithmParams):
        beta: float = Field(0.5, ge=0, lt=1, description="β, slow momentum; 0.4 to 0.8 in the paper")
        alpha_s: float = Field(1.0, gt=0, description="α_s, slow learning rate")
        weights: Literal["n", "uniform"] = Field("n", description="weights of the average: samples, or equal")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, u=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.y, uploads.clients.weights(self.params.weights))
        u = self.params.beta * server.u + (server.w - mean) / round.lr
        return server.replace(w=server.w - self.params.alpha_s * round.lr * u, u=u)
