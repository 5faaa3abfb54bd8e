"""FedLESAM-D: FedDyn, with gradients uphill along the last global move (Fan et al., ICML 2024).

What is uphill for everybody is where the global model came from. A client knows that without a gradient of its own:
from w_i, the model that it received when it last took part.

    client   ε ← ρ (w_i − w)/‖w_i − w‖;   w_i ← w
             y ← w;  K_i times:  y ← y − η (∇F_i(y + ε) + α_i (y − w + h_i)),   α_i = α/ω_i
             h_i ← h_i + (y − w)
    server   θ̄ ← mean_S y_i;   h̄ ← h̄ + 1/N Σ_S (y_i − w);   w ← θ̄ + h̄

w_i of a client that has never taken part is the initial model.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Ascent, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Message, Paper, Problem
from fedkeel.algorithms.feddyn import FedDyn
from fedkeel.algorithms.state import State


class FedLESAMD(FedDyn):
    name = "fedlesam_d"
    title = "FedLESAM-D"
    idea = "FedDyn's penalty, and gradients of points uphill along the last global move."
    paper = Paper(
        "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-aware "
        "Minimization",
        "Fan et al.",
        "ICML",
        2024,
    )
    laws: ClassVar[tuple[Law, ...]] = (
        Law("FedLESAM-D(ρ = 0) is FedDyn", {"rho": 0.0, "alpha": 0.1}, "feddyn", {"alpha": 0.1}),
    )
    params: Params

    class Params(FedDyn.Params):
        alpha: float = Field(0.1, gt=0, description="α, weight of the penalty; 0.1 in the program")
        rho: float = Field(0.1, ge=0, description="ρ, how far uphill the gradient is taken")

    def client_init(self, problem: Problem) -> State:
        return super().client_init(problem).replace(w=problem.w0)

    def local_round(self, local: Local) -> Answer:
        ascent = Ascent(self.params.rho, along=local.client.w - local.w)
        trained = local.train_by(Rule(ascent=ascent, correction=self.correction(local)))
        return *self.finish(local, trained.y), trained

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        message, client = super().finish(local, y)
        return message, client.replace(w=local.w.clone())
