"""MoFedSAM: FedSAM with client-level momentum (Qu et al., ICML 2022).

FedSAM's gradients uphill, mixed with the mean step of the last round as in FedCM.

    client   y ← w;  K_i times:  v ← ∇F_i(y);   y ← y − η (a ∇F_i(y + ρ v/‖v‖) + (1 − a) g)
    server   g ← mean_S (w − y_i)/(K_i η);   w ← w + η_g (mean_S y_i − w)
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Ascent, Rule
from fedkeel.algorithms.contract import Answer, Law, Local
from fedkeel.algorithms.fedcm import FedCM
from fedkeel.algorithms.fedsam import PAPER


class MoFedSAM(FedCM):
    name = "mofedsam"
    title = "MoFedSAM"
    idea = "FedSAM's gradients uphill, mixed with the last round's mean step."
    paper = PAPER
    laws: ClassVar[tuple[Law, ...]] = (
        Law("MoFedSAM(ρ = 0) is FedCM", {"rho": 0.0, "a": 0.3}, "fedcm", {"a": 0.3}),
        Law(
            "MoFedSAM(a = 1) is FedSAM with equal weights",
            {"rho": 0.1, "a": 1.0},
            "fedsam",
            {"rho": 0.1, "weights": "uniform"},
        ),
    )
    gradients_a_step = 2.0
    params: Params

    class Params(FedCM.Params):
        rho: float = Field(0.1, ge=0, description="ρ, how far uphill the gradient is taken; typical 0.01 to 0.5")

    def local_round(self, local: Local) -> Answer:
        trained = local.train_by(Rule(ascent=Ascent(self.params.rho), correction=self.correction(local)))
        return *self.finish(local, trained.y), trained
