"""Local steps along the gradient of a point uphill, as in sharpness-aware minimisation (SAM)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.learning.calibration import Calibration
from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.task import Batch, Task

LEAST_NORM = 1e-12
"""Added to a norm before it divides, so that a gradient of zero leads nowhere instead of to NaN."""


@dataclass(frozen=True)
class Consensus:
    """Lets clients agree on where uphill is: v = g − μ − s, and μ ← μ + ε − s once ε is known."""

    mu: Tensor
    """What each client has differed by so far [K, d]. Training renews it in place."""
    s: Tensor
    """Where everybody looks, [d] or [K, d]."""


@dataclass(frozen=True)
class Ascent:
    """A step follows q = (1 − α)·g + α·∇(y + ε) with ε = ρ·v/‖v‖, and g = ∇(y) of the same minibatch.

    v is g itself, or a direction that is known before (``along``): then g is not needed, and a step costs one gradient.

    Both gradients drop the same units, as far as torch draws them, and the second changes nothing else: BatchNorm
    statistics and the loss are those at y, where g is computed, and those at y + ε where it is not.
    """

    rho: float
    """ρ, the length of ε."""
    share: float = 1.0
    """α, the weight of the gradient at y + ε."""
    along: Tensor | None = None
    """v, [d] or [K, d]."""
    consensus: Consensus | None = None

    def __post_init__(self) -> None:
        if self.along is not None and (self.consensus is not None or self.share != 1):
            raise ValueError("a direction that is known leaves no gradient at y, to correct or to mix with")

    def gradients(self, task: Task, start: Tensor, calibration: Calibration | None = None) -> AscentGradients:
        """What takes the gradient's place in the steps of K clients from ``start`` [K, d]."""
        return AscentGradients(self, task, start, calibration)


class AscentGradients:
    """Gradients at y + ε."""

    def __init__(self, rule: Ascent, task: Task, start: Tensor, calibration: Calibration | None) -> None:
        self._rule, self._task, self._calibration = rule, task, calibration
        # The same memory for all steps.
        self._point, self._first, self._second = (torch.empty_like(start) for _ in range(3))
        self._known = None if rule.along is None else of_length(rule.along, rule.rho)

    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The direction of a step [K, d], loss [K] and buffers [K, m], at y [K, d]."""
        task, rule = self._task, self._rule
        if self._known is not None:
            point = torch.add(y, self._known, out=self._point)
            return task.gradient(point, b, batch, out=self._second, calibration=self._calibration)
        drawn = None if task.draws_nothing else drawn_so_far(b.device)
        g, loss, b_after = task.gradient(y, b, batch, out=self._first, calibration=self._calibration)
        point = torch.add(y, self._offset(g, batch.active), out=self._point)
        if drawn is not None:
            draw_again(b.device, drawn)
        q, _, _ = task.gradient(point, b, batch, out=self._second, calibration=self._calibration)
        return q if rule.share == 1 else torch.lerp(g, q, rule.share), loss, b_after

    def _offset(self, g: Tensor, active: Tensor | None) -> Tensor:
        """ε [K, d] from g [K, d]; ``active`` [K] says who takes this step (None: all)."""
        rule, consensus = self._rule, self._rule.consensus
        if consensus is None:
            return of_length(g, rule.rho)
        offset = of_length(g - consensus.mu - consensus.s, rule.rho)
        renewed = consensus.mu + (offset - consensus.s)
        consensus.mu.copy_(renewed if active is None else torch.where(active.unsqueeze(1), renewed, consensus.mu))
        return offset


def of_length(v: Tensor, rho: float) -> Tensor:
    """ρ·v/‖v‖ of every vector [..., d]; zero where v is."""
    norm: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v * (rho / (norm + LEAST_NORM))
