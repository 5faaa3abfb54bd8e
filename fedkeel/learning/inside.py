"""Objectives that look at what the stages of a model give, beside its outputs.

Each is a value that says what to add to a client's loss. ``gradient`` is the plain way, by autograd through everything;
``kernels.inside`` has a faster one for chains of known layers, in which only the formulas below are differentiated by
autograd. Frozen models compute in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkeel.learning.objectives import mean, penalty
from fedkeel.learning.task import Batch, Net, Task


@dataclass(frozen=True)
class Contrast:
    """Adds μ·ℓ, which draws a client's features towards those of one model and off those of others:

        ℓ = −log [ exp(cos(z, z_0)/T) / Σ_j exp(cos(z, z_j)/T) ]

    z are the features of the client's model, what all stages before the last give; z_0, z_1, … those of ``models``.
    """

    mu: float
    T: float
    models: Tensor
    """Parameters [K, M, d], the one to stay near first."""
    buffers: Tensor
    """Theirs [K, M, m]."""
    counts: Tensor
    """Which of the models count [K, M]; the first always does."""

    def value(self, task: Task, outputs: Tensor, z: Tensor, frozen: Tensor, counts: Tensor, batch: Batch) -> Tensor:
        """A client's loss, without what depends on its parameters alone; z [n, f], frozen [n, M, f], counts [M]."""
        cosines = F.cosine_similarity(z.unsqueeze(1), frozen, dim=-1) / self.T
        # exp(−∞) = 0: a model that does not count adds nothing; with the first alone ℓ and its gradient are zero.
        contrast = -F.log_softmax(torch.where(counts, cosines, -torch.inf), dim=-1)[:, 0]
        return mean(task.loss.per_sample(outputs, batch.y), batch) + self.mu * mean(contrast, batch)

    def gradient(self, task: Task, y: Tensor, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """At parameters y [K, d] and buffers [K, m]: gradient, loss [K], advanced buffers."""

        def objective(net: Net, y: Tensor, one: Batch, own: dict[str, Tensor]) -> Tensor:
            z = net.features(y, one.x)
            frozen = [
                task.net(buffers, train=False).features(model, one.x)
                for model, buffers in zip(own["models"], own["buffers"], strict=True)
            ]
            outputs = net.forward(y, z, start=task.levels)
            value = self.value(task, outputs, z, torch.stack(frozen, dim=1), own["counts"], one)
            return value + penalty(task, y, one)

        own = {"models": self.models, "buffers": self.buffers, "counts": self.counts}
        return task.gradient(y, b, batch, objective, own)


@dataclass(frozen=True)
class Branches:
    """The loss of a client's own path and of M hybrid ones, its lower stages grafted on a frozen model's upper ones.

        λ1 loss(z) + λ2/M Σ_l loss(z_l) + λ3/M Σ_l KL(softmax(z_l/T) ‖ softmax(z/T))

    z: outputs of the client's model; z_l: stages up to cut l from the client, the others from ``w``; l = 1 … M.
    """

    lambda1: float
    lambda2: float
    lambda3: float
    T: float
    w: Tensor
    """The frozen model [K, d]."""
    b: Tensor
    """Its buffers [K, m]."""

    def value(self, task: Task, z: Tensor, hybrids: Tensor, batch: Batch) -> Tensor:
        """A client's loss, without what depends on its parameters alone; z [n, C], hybrids [M, n, C]."""
        losses = torch.stack([task.loss.per_sample(z_l, batch.y) for z_l in hybrids])
        apart = divergence(hybrids / self.T, z / self.T)
        beside = (self.lambda2 * losses + self.lambda3 * apart).mean(dim=0)
        return self.lambda1 * mean(task.loss.per_sample(z, batch.y), batch) + mean(beside, batch)

    def gradient(self, task: Task, y: Tensor, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """At parameters y [K, d] and buffers [K, m]: gradient, loss [K], advanced buffers."""

        def objective(net: Net, y: Tensor, one: Batch, own: dict[str, Tensor]) -> Tensor:
            # Evaluation mode: the frozen stages normalise with their own statistics and learn none.
            frozen = task.net(own["b"], train=False)
            features, hybrids = one.x, []
            for cut in range(1, task.levels + 1):
                features = net.forward(y, features, start=cut - 1, stop=cut)
                hybrids.append(frozen.forward(own["w"], features, start=cut))
            value = self.value(task, net.forward(y, features, start=task.levels), torch.stack(hybrids), one)
            return value + self.lambda1 * penalty(task, y, one)

        return task.gradient(y, b, batch, objective, {"w": self.w, "b": self.b})


Inside = Contrast | Branches


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax(p) ‖ softmax(q)) of logits [..., n, C], sample by sample [..., n]."""
    log_p = F.log_softmax(p, dim=-1)
    return (log_p.exp() * (log_p - F.log_softmax(q, dim=-1))).sum(dim=-1)
