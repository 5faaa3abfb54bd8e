"""Local steps that take back whatever raises the loss on remembered samples.

y ← y − η ∇loss(γ y + (1 − γ) w; x, l)
D ← y − w;  θ ← β y + (1 − β) w
g2 ← ∇loss(θ; one batch);      a ← max(0, ⟨D, g2⟩/‖g2‖²)
g3 ← ∇loss(θ; another batch);  b ← max(0, ⟨D − a g2, g3⟩/‖g3‖²)
y ← y − a g2 − b g3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedkeel.learning.task import Batch, Objective, Task

TINY = 1e-30
"""Added to ‖g‖², which vanishes where samples are fitted exactly."""
Strip = Callable[[Tensor, Tensor, Tensor, Batch], Tensor]
"""``strip(g, mixed, b, batch) → g``: what else is done to the gradient g [K, d] at the mixed parameters."""


@dataclass(frozen=True)
class Unforgetting:
    """Remembered batches and how they are used; step k takes batch k of each client, which then starts over."""

    w: Tensor
    """Where training started [K, d]."""
    b: Tensor
    """The buffers there [K, m], with which remembered batches are computed."""
    gamma: float
    """γ, share of y where the gradient is taken."""
    beta: float
    """β, share of y where the loss on remembered batches is taken."""
    remembered: tuple[Sequence[Batch], Sequence[Batch]]
    """Those of g2 and those of g3; targets may be probabilities."""
    counts: Tensor
    """How many batches each client has [K]."""
    objective: Objective | None = None
    """In place of the plain loss."""
    strip: Strip | None = None

    def gradient(self, task: Task, y: Tensor, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The plain way to ∇loss [K, d], with loss [K] and buffers [K, m]."""
        mixed = torch.lerp(self.w, y, self.gamma)
        g, loss, b_after = task.gradient(mixed, b, batch, self.objective)
        return g if self.strip is None else self.strip(g, mixed, b, batch), loss, b_after

    def after_step(self, task: Task, y: Tensor, k: int) -> Tensor:
        """The plain way from y [K, d] after step k to what is left of it."""
        moved, theta = y - self.w, torch.lerp(self.w, y, self.beta)
        for batches in self.remembered:
            # Training mode normalises with each batch's own statistics; those that it gathers are dropped.
            g = task.gradient(theta, self.b, turn(batches, self.counts, k), self.objective)[0]
            a = share(moved, g).clamp(min=0)
            if bool(a.any()):
                y, moved = (torch.addcmul(part, a, g, value=-1) for part in (y, moved))
        return y


def share(of: Tensor, along: Tensor) -> Tensor:
    """⟨u, g⟩/‖g‖² for each client's rows u and g [K, d]: how often u contains g [K, 1]."""
    return dot(of, along) / (dot(along, along) + TINY)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """⟨u, v⟩ of each client's rows [K, d]: [K, 1]."""
    return torch.bmm(u.unsqueeze(1), v.unsqueeze(2)).squeeze(2)


def turn(batches: Sequence[Batch], counts: Tensor, k: int) -> Batch:
    """Each client's batch of step k, where every client starts over after its own number of batches."""
    turns: list[int] = (k % counts).tolist()
    if len(set(turns)) == 1:
        return batches[turns[0]]
    rows = [(batches[turn], i) for i, turn in enumerate(turns)]
    shares = [b.x.new_full((b.y.shape[1],), 1 / b.y.shape[1]) if b.weight is None else b.weight[i] for b, i in rows]
    return Batch(
        pad_sequence([b.x[i] for b, i in rows], batch_first=True),
        pad_sequence([b.y[i] for b, i in rows], batch_first=True),
        pad_sequence(shares, batch_first=True),
    )
