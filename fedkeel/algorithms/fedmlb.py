"""FedMLB: multi-level branched regularisation (Kim, Kim & Han, ICML 2022).

Beside its own path, a client runs M hybrid paths: its own lower stages grafted on the frozen upper stages of the global
model, one for each cut of the model. They must classify well, too, and the client's own output must agree with theirs.

    client   y ← w;  z: logits of y;  z_l: stages up to cut l from y, the others from w;  l = 1 … M
             K_i times:  y ← y − η ∇ [ λ1 CE(z) + λ2/M Σ_l CE(z_l) + λ3/M Σ_l KL(softmax(z_l/T) ‖ softmax(z/T)) ]
    server   w ← Σ_S p_i y_i

The gradient flows through both arguments of KL, and through the frozen stages into the client's lower ones.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Branches, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.learning.objectives import cuts


class FedMLB(FedAvg):
    name = "fedmlb"
    title = "FedMLB"
    idea = "Local lower layers must also work under the global model's upper layers."
    paper = Paper("Multi-Level Branched Regularization for Federated Learning", "Kim et al.", "ICML", 2022)
    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            "FedMLB(λ2 = λ3 = 0) is FedAvg of the same model",
            {"lambda2": 0.0, "lambda3": 0.0},
            "fedavg",
            needs=frozenset({"stages"}),
        ),
    )
    gradients_a_step = 2.0  # branches go through part of the model each
    params: Params

    class Params(FedAvg.Params):
        lambda1: float = Field(1.0, ge=0, description="λ1, weight of the client's own cross-entropy")
        lambda2: float = Field(1.0, ge=0, description="λ2, weight of the hybrid paths' cross-entropy")
        lambda3: float = Field(1.0, ge=0, description="λ3, weight of the divergence from the hybrid paths")
        T: float = Field(1.0, gt=0, description="T, temperature of the divergence; no factor T² is applied")

    def local_round(self, local: Local) -> Answer:
        cuts(local.task, self.title)
        p = self.params
        trained = local.train_by(Rule(inside=Branches(p.lambda1, p.lambda2, p.lambda3, p.T, local.w, local.b)))
        return *self.finish(local, trained.y), trained
