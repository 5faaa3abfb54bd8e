"""FedNTD: not-true distillation (Lee et al., NeurIPS 2022).

What a client forgets of the global model is mostly what that knew of classes which the client does not have. So its
model must agree with the global one on how the *other* classes of a sample compare, while it learns the true one.

    client   y ← w;  q̃(x): softmax over the classes other than x's own, at temperature τ
             K_i times:  y ← y − η ∇ [ CE(y) + β KL(q̃_w ‖ q̃_y) ]
    server   w ← Σ_S p_i y_i
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.errors import ModelError
from fedkeel.learning.inside import divergence
from fedkeel.learning.objectives import mean, penalty
from fedkeel.learning.task import Batch, Net


class FedNTD(FedAvg):
    name = "fedntd"
    title = "FedNTD"
    idea = "A client's model must agree with the global one on how the classes that a sample is not of compare."
    paper = Paper(
        "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
        "Lee et al.",
        "NeurIPS",
        2022,
    )
    laws: ClassVar[tuple[Law, ...]] = (Law("FedNTD(β = 0) is FedAvg", {"beta": 0.0}, "fedavg"),)
    gradients_a_step = 4 / 3  # one more forward pass
    params: Params

    class Params(FedAvg.Params):
        beta: float = Field(1.0, ge=0, description="β, weight of the divergence; 1 in the authors' program")
        tau: float = Field(1.0, gt=0, description="τ, temperature of the divergence; no factor τ² is applied")

    def local_round(self, local: Local) -> Answer:
        task = local.task
        if task.loss.name != "cross_entropy":
            raise ModelError(
                f"FedNTD compares the classes that a sample is not of, so it needs a model with the loss "
                f"cross_entropy, got {task.loss.name}; choose another model or another algorithm."
            )

        def objective(net: Net, y: Tensor, one: Batch, own: dict[str, Tensor]) -> Tensor:
            logits = net.forward(y, one.x)
            with torch.no_grad():
                kept = task.net(own["b"], train=False).forward(own["w"], one.x)
            apart = divergence(not_true(kept, one.y) / self.params.tau, not_true(logits, one.y) / self.params.tau)
            losses = task.loss.per_sample(logits, one.y) + self.params.beta * apart
            return mean(losses, one) + penalty(task, y, one)

        def gradient(y: Tensor, b: Tensor, batch: Batch, k: int) -> tuple[Tensor, Tensor, Tensor]:
            return task.gradient(y, b, batch, objective, {"w": local.w, "b": local.b})

        trained = local.train(gradient=gradient)
        return *self.finish(local, trained.y), trained


def not_true(logits: Tensor, targets: Tensor) -> Tensor:
    """The logits [n, C] without each sample's own class [n, C − 1]."""
    if logits.dim() != 2 or targets.shape != logits.shape[:1] or targets.is_floating_point() or logits.shape[1] < 3:
        raise ModelError(
            "FedNTD needs one label of at least three classes for each sample (with two there is nothing to compare), "
            f"got outputs {list(logits.shape)} for targets {list(targets.shape)} of {targets.dtype}; choose another "
            "algorithm."
        )
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, others + (others >= targets.unsqueeze(1)))
