"""FedProx: a proximal term against drift (Li et al., MLSys 2020).

A spring of strength μ ties each local model to the global one, so that long local training cannot run away.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + μ (y − w))
    server   w ← Σ_S p_i y_i
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fedkeel.algorithms.advanced import only_at
from fedkeel.algorithms.contract import Law, Local, Paper
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.learning.correction import Correction


class FedProx(FedAvg):
    name = "fedprox"
    title = "FedProx"
    idea = "A spring of strength μ holds every client near the global model."
    paper = Paper("Federated Optimization in Heterogeneous Networks", "Li et al.", "MLSys", 2020)
    laws: ClassVar[tuple[Law, ...]] = (Law("FedProx(μ = 0) is FedAvg", {"mu": 0.0}, "fedavg"),)
    params: Params

    class Params(FedAvg.Params):
        # FedDC's program ignores its μ and adds 1e-4·‖y − w‖² without the ½, which is μ = 2e-4.
        modes = {"code": {"mu": 2e-4}}
        mu: float = Field(0.01, ge=0, description="μ, strength of (μ/2)‖y − w‖²; typical 1e-4 to 1, stable for η·μ < 2")
        skip_first: bool = Field(
            False, description="as FedBN's program: no term in round 0 nor on the first batch of an epoch"
        )

    def correction(self, local: Local) -> Correction:
        term = pull(self.params.mu, towards=local.w)
        if not self.params.skip_first:
            return term
        k = torch.arange(int(local.steps.max()))
        first = (k % local.steps_per_epoch.unsqueeze(1)) == 0
        return only_at(term, ~first & (local.round.t > 0))
