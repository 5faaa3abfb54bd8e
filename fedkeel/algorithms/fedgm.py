"""FedGM: FedProx with momentum at the server, the global phase of FedGVRGM alone (Wang et al., ICPADS 2022).

Clients take FedProx's steps; the server collects the mean of their updates and goes on in that direction.

    client   y ← w;  K_k times:  y ← y − η (∇F_k(y) + μ (y − w))
    GM       v ← β v + η_g Σ_S p_k (y_k − w);   w ← w + v
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Law, Local, Paper, Problem, Round, Uploads
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.algorithms.variants.readings import LocalReadings, MomentumReadings
from fedkeel.learning.correction import Correction


class TwoPhases(Algorithm):  # what both phases share: FedProx's local step and the mean of the updates
    paper = Paper("Accelerating Federated Learning with Two-phase Gradient Adjustment", "Wang et al.", "ICPADS", 2022)
    params: Params

    class Params(LocalReadings):
        mu: float = Field(0.1, ge=0, description="μ, strength of (μ/2)‖y − w‖²; 0.1 in the paper")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate; 1 in the paper")
        weights: Literal["n", "uniform"] = Field("n", description="weights of the averages: samples, or equal")

    def correction(self, local: Local) -> Correction:
        return pull(self.params.mu, towards=local.w)

    def mean_step(self, server: State, uploads: Uploads) -> Tensor:
        """η_g Σ_S p_k (y_k − w) [d]."""
        step: Tensor = average(uploads.y, uploads.clients.weights(self.params.weights)) - server.w
        return step * self.params.eta_g


class FedGM(TwoPhases):
    name = "fedgm"
    title = "FedGM"
    idea = "FedProx whose server keeps moving in the direction of its past steps."
    laws = (
        Law("FedGM(β = 0) is FedProx", {"beta": 0.0, "mu": 0.1, "scale": "unit"}, "fedprox", {"mu": 0.1}),
        Law(
            "FedGM(β = 0) scaled by S/N is FedProx when all take part",
            {"beta": 0.0, "mu": 0.1, "scale": "participation"},
            "fedprox",
            {"mu": 0.1},
            needs=frozenset({"full"}),
        ),
        Law("FedGM(μ = 0) is FedAvgM", {"mu": 0.0, "beta": 0.9, "scale": "unit"}, "fedavgm", {"beta": 0.9}),
    )
    variant = "fedkeel.algorithms.variants.fedgvrgm:FedGMVariant"
    any_mean = True
    params: Params

    class Params(MomentumReadings, TwoPhases.Params):
        beta: float = Field(0.9, ge=0, lt=1, description="β, momentum of the server; 0.9 in the paper")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, v=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        v = self.params.beta * server.v + self.mean_step(server, uploads)
        return server.replace(w=server.w + v, v=v)
