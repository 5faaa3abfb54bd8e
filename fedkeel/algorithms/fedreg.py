"""FedReg: alleviated forgetting in local training (Xu et al., ICLR 2022).

Pseudo data stand in for the data of the others: local inputs pushed uphill on the global model's loss, with that
model's own answers as labels. What a local step has moved is stripped of whatever raises the loss on them; the same
with slightly perturbed inputs and their true labels.

    client   once, with w, for every batch (x, l), from x_s = x_p = x:
                 P times  x_s ← x_s + η_s sign ∇_x CE(w; x_s, l);   l_s ← softmax f_w(x_s)
                 P times  x_p ← x_p + η_p sign ∇_x CE(w; x_p, l)
             y ← w;  K_i times:
                 y ← y − η ∇CE(γ y + (1 − γ) w; x, l)
                 D ← y − w;  θ ← β y + (1 − β) w
                 g2 ← ∇CE(θ; x_s, l_s);   a ← max(0, ⟨D, g2⟩/‖g2‖²)
                 g3 ← ∇CE(θ; x_p, l);     b ← max(0, ⟨D − a g2, g3⟩/‖g3‖²)
                 y ← y − a g2 − b g3
    server   w ← mean_S y_i

Step k takes pseudo batch k, starting over when there is none left; it is not made of the samples of step k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkeel.algorithms.advanced import Rule, Unforgetting, uphill
from fedkeel.algorithms.contract import Answer, Local, Paper
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.errors import ModelError
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.objectives import mean
from fedkeel.learning.task import Batch, Net
from fedkeel.learning.unforgetting import share


class FedReg(FedAvg):
    name = "fedreg"
    title = "FedReg"
    idea = "Local steps must not raise the loss on pseudo data that stand for what the global model knows."
    paper = Paper(
        "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", "Xu et al.", "ICLR", 2022
    )
    any_optimiser = False  # it says itself how a step is taken
    gradients_a_step, passes_a_round = 3.0, 20.5  # twenty steps uphill there and back, in passes of the first layer
    params: Params

    class Params(FedAvg.Params):
        modes = {"code": {"floor": 1e-12}}
        weights: Literal["n", "uniform"] = Field("uniform", description="weights of the average: samples, or equal")
        gamma: float = Field(
            0.4, gt=0, le=1, description="γ, share of y where the gradient is taken; 0.4 MNIST, 0.5 CIFAR-10"
        )
        beta: float = Field(0.5, gt=0, le=1, description="β, share of y where the pseudo gradients are taken")
        eta_s: float = Field(0.2, gt=0, description="η_s, step of the pseudo data; 0.2 MNIST, 0.1 CIFAR")
        eta_p: float = Field(0.002, gt=0, description="η_p, step of the perturbed data; η_s/100 in the paper")
        P: int = Field(10, ge=1, description="P, sign-gradient steps that make pseudo and perturbed data")
        mask: bool = Field(
            False, description="strip the gradient of what makes the model undecided on pseudo data of the same batch"
        )
        floor: float = Field(
            0.0, ge=0, description="added to a probability inside its logarithm; 1e-12 in the authors' program"
        )

    def local_round(self, local: Local) -> Answer:
        params, task = self.params, local.task
        if task.loss.name != "cross_entropy":
            raise ModelError(
                f"FedReg labels pseudo data with class probabilities, so it needs a model with the loss cross_entropy, "
                f"got {task.loss.name}; choose another model or another algorithm."
            )
        pseudo, perturbed, counts = self.pseudo_data(local)

        def strip(g: Tensor, mixed: Tensor, b: Tensor, batch: Batch) -> Tensor:
            fake = replace(batch, x=self._uphill(local, [batch], params.eta_s)[0][0])
            g_mask = task.gradient(mixed, b, fake, self._indecision)[0]
            return g - share(g, g_mask) * g_mask

        rule = Unforgetting(
            local.w,
            local.b,
            params.gamma,
            params.beta,
            (pseudo, perturbed),
            counts,
            # Where nothing is added inside the logarithm, the entropy is the model's own loss.
            None if task.loss is cross_entropy and not params.floor else self._entropy,
            strip if params.mask else None,
        )
        trained = local.train_by(Rule(unforgetting=rule))
        return *self.finish(local, trained.y), trained

    def pseudo_data(self, local: Local) -> tuple[list[Batch], list[Batch], Tensor]:
        """Pseudo batches with soft labels [K, B, C], perturbed batches with true ones, and each client's number [K]."""
        batches = list(local.pseudo_batches)
        far, nearby = self._uphill(local, batches, self.params.eta_s, self.params.eta_p)
        pseudo, counts = [], torch.zeros(len(local.w), dtype=torch.long)
        for batch, x in zip(batches, far, strict=True):
            rows = zip(local.w, local.b, x, strict=True)
            with torch.no_grad():
                soft = torch.stack([local.task.outputs(w, b, one).softmax(-1) for w, b, one in rows])
            pseudo.append(replace(batch, x=x, y=soft))
            counts += 1 if batch.active is None else batch.active.long()
        return pseudo, [replace(batch, x=x) for batch, x in zip(batches, nearby, strict=True)], counts

    def _uphill(self, local: Local, batches: Sequence[Batch], *etas: float) -> list[list[Tensor]]:
        """For each η, the batches' inputs after P steps of that size along sign ∇_x of the global model's loss."""
        task, plain = local.task, local.task.loss is cross_entropy and not self.params.floor
        loss = task.loss.per_sample if plain else self._per_sample
        try:
            return uphill(task, local.w, local.b, batches, loss, etas, self.params.P)
        except RuntimeError as error:
            if "require grad" not in str(error) and "not have been used" not in str(error):
                raise
            raise ModelError(
                "FedReg moves inputs along the gradient of the loss, but this model's loss has none at its inputs: "
                "it rounds them or takes them for indices, as an embedding does; choose another model or algorithm."
            ) from None

    def _entropy(self, net: Net, y: Tensor, batch: Batch, extra: dict[str, Tensor]) -> Tensor:
        return mean(self._per_sample(net.forward(y, batch.x), batch.y), batch)

    def _indecision(self, net: Net, y: Tensor, batch: Batch, extra: dict[str, Tensor]) -> Tensor:
        """The loss under labels that give every class the same probability."""
        outputs = net.forward(y, batch.x)
        return mean(self._per_sample(outputs, torch.full_like(outputs, 1 / outputs.shape[-1])), batch)

    def _per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy [n] against labels [n] or probabilities [n, C]."""
        floor = self.params.floor
        logs = torch.log(outputs.softmax(-1) + floor) if floor else F.log_softmax(outputs, dim=-1)
        if targets.is_floating_point():
            return -(targets * logs).sum(-1)
        return -logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
