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
from torch import Tensor
from torch.nn import functional as F

from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.objectives import cuts, mean, supervised
from fedkeel.learning.task import Batch, Net


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
    params: Params

    class Params(FedAvg.Params):
        lambda1: float = Field(1.0, ge=0, description="λ1, weight of the client's own cross-entropy")
        lambda2: float = Field(1.0, ge=0, description="λ2, weight of the hybrid paths' cross-entropy")
        lambda3: float = Field(1.0, ge=0, description="λ3, weight of the divergence from the hybrid paths")
        T: float = Field(1.0, gt=0, description="T, temperature of the divergence; no factor T² is applied")

    def local_round(self, local: Local) -> Answer:
        params, task, M = self.params, local.task, cuts(local.task, self.title)

        def objective(net: Net, y: Tensor, batch: Batch, extra: dict[str, Tensor]) -> Tensor:
            # Evaluation mode: the frozen stages normalise with the global model's statistics and learn none.
            frozen = task.net(extra["b"], train=False)
            features, hybrids = batch.x, []
            for cut in range(1, M + 1):
                features = net.forward(y, features, start=cut - 1, stop=cut)
                hybrids.append(frozen.forward(extra["w"], features, start=cut))
            z = net.forward(y, features, start=M)
            value: Tensor = params.lambda1 * supervised(task, z, y, batch)
            for z_l in hybrids:
                value = value + params.lambda2 / M * mean(task.loss.per_sample(z_l, batch.y), batch)
                value = value + params.lambda3 / M * mean(divergence(z_l / params.T, z / params.T), batch)
            return value

        extras = {"w": local.w, "b": local.b}
        trained = local.train(gradient=lambda y, b, batch, _: task.gradient(y, b, batch, objective, extras))
        return *self.finish(local, trained.y), trained


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax(p) ‖ softmax(q)) of logits [n, C], sample by sample [n]."""
    log_p = F.log_softmax(p, dim=-1)
    return (log_p.exp() * (log_p - F.log_softmax(q, dim=-1))).sum(dim=-1)
