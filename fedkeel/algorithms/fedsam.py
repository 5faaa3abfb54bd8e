"""FedSAM: sharpness-aware minimisation at the clients (Qu et al., ICML 2022).

A client follows the gradient of the worst point nearby, so that it settles where the loss is flat.

    client   y ← w;  K_i times:  g ← ∇F_i(y);   y ← y − η ∇F_i(y + ρ g/‖g‖),  both of the same minibatch
    server   w ← w + η_g (Σ_S p_i y_i − w)
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Ascent, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg

PAPER = Paper("Generalized Federated Learning via Sharpness Aware Minimization", "Qu et al.", "ICML", 2022)


class FedSAM(FedAvg):
    name = "fedsam"
    title = "FedSAM"
    idea = "Clients follow the gradient of the worst point nearby, and settle where the loss is flat."
    paper = PAPER
    laws: ClassVar[tuple[Law, ...]] = (Law("FedSAM(ρ = 0) is FedAvg", {"rho": 0.0}, "fedavg"),)
    gradients_a_step = 2.0
    params: Params

    class Params(FedAvg.Params):
        rho: float = Field(0.1, ge=0, description="ρ, how far uphill the gradient is taken; typical 0.01 to 0.5")

    def local_round(self, local: Local) -> Answer:
        trained = local.train_by(Rule(ascent=Ascent(self.params.rho)))
        return *self.finish(local, trained.y), trained
