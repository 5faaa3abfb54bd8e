"""FedRS: a restricted softmax for the classes that a client does not have (Li and Zhan, KDD 2021).

Every sample of a client pushes the scores of the classes that it has none of down. Scaled by α they are pushed less.

    client   y ← w;  K_i times:  y ← y − η ∇ℓ(y),   ℓ = cross-entropy of the scores α_ic z_c
             α_ic = 1 for the classes that client i has, α for the others
    server   w ← w + η_g (Σ_S p_i y_i − w)

Models are evaluated with their own scores.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fedkeel.algorithms.advanced import Calibration, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg


class FedRS(FedAvg):
    name = "fedrs"
    title = "FedRS"
    idea = "The scores of classes that a client has none of are scaled down in its loss."
    paper = Paper(
        "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data",
        "Li and Zhan",
        "KDD",
        2021,
    )
    laws: ClassVar[tuple[Law, ...]] = (Law("FedRS(α = 1) is FedAvg", {"alpha": 1.0}, "fedavg"),)
    params: Params

    class Params(FedAvg.Params):
        alpha: float = Field(0.5, ge=0, le=1, description="α, scale of the scores of missing classes; 0.5 in the paper")

    def local_round(self, local: Local) -> Answer:
        counts = local.class_counts
        scale = torch.where(counts > 0, torch.ones_like(counts), self.params.alpha)
        trained = local.train_by(Rule(calibration=Calibration(scale=scale)))
        return *self.finish(local, trained.y), trained
