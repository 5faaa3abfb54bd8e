"""FedLC: logits calibrated by a client's own label counts (Zhang et al., ICML 2022).

A client with few samples of a class would push its score down; a margin that is the larger the fewer there are keeps it
from that.

    client   y ← w;  K_i times:  y ← y − η ∇ℓ(y),   ℓ = cross-entropy of the scores z_c − τ max(n_ic, n_min)^(−1/4)
    server   w ← w + η_g (Σ_S p_i y_i − w)

n_ic: client i's samples of class c. Models are evaluated with their own scores.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Calibration, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg


class FedLC(FedAvg):
    name = "fedlc"
    title = "FedLC"
    idea = "The scores of classes that a client has little of get a margin in its loss."
    paper = Paper(
        "Federated Learning with Label Distribution Skew via Logits Calibration", "Zhang et al.", "ICML", 2022
    )
    laws: ClassVar[tuple[Law, ...]] = (Law("FedLC(τ = 0) is FedAvg", {"tau": 0.0}, "fedavg"),)
    params: Params

    class Params(FedAvg.Params):
        # What public programs do: 1e-8 samples are a margin of 100·τ, which leaves a missing class out of the softmax.
        modes = {"code": {"n_min": 1e-8}}
        tau: float = Field(1.0, ge=0, description="τ, size of the margins")
        n_min: float = Field(1.0, ge=1e-8, description="samples that a class counts for at least, so a missing one too")

    def local_round(self, local: Local) -> Answer:
        margin = self.params.tau * local.class_counts.clamp(min=self.params.n_min) ** -0.25
        trained = local.train_by(Rule(calibration=Calibration(shift=-margin)))
        return *self.finish(local, trained.y), trained
