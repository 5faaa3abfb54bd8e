"""Local steps that do not work against remembered directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.projection import project_few
from fedkeel.learning.task import Batch, Task

Row = Literal["prev", "global", "anchor"]


@dataclass(frozen=True)
class Projection:
    """A step follows QP(g, G), the direction nearest to the gradient g that agrees with every row of G.

    The rows are some of ``prev``, the gradient at the point before this one; ``global``, the gradient at the point that
    training started from; ``anchor``, what was moved since. All gradients of a step are of the same minibatch.
    """

    rows: tuple[Row, ...]
    before: Tensor
    """The point before the first one [K, d]."""
    rho: float
    """Margin ⟨G_j, u⟩ ≥ ρ‖g‖‖G_j‖."""
    bounds: Tensor
    """Where blocks of coordinates begin and end that are projected each by itself [B + 1]."""
    decay: Tensor | None = None
    """Strengths of a weight decay that every gradient includes [d]."""
    own_draws: bool = False
    """Whether the gradients of a step drop units each for itself, or all the same ones."""

    def gradients(self, task: Task, start: Tensor) -> ProjectedGradients:
        """What takes the gradient's place in the steps of K clients from ``start`` [K, d]."""
        return ProjectedGradients(self, task, start)


class ProjectedGradients:
    """The plain way: every gradient is computed, then projected."""

    def __init__(self, rule: Projection, task: Task, start: Tensor) -> None:
        self._rule, self._task, self._start = rule, task, start
        self._elsewhere = [row for row in rule.rows if row != "anchor"]
        # The same memory for all steps: where gradients are taken; g and the rows of G.
        self._points = torch.stack([start, *(rule.before if row == "prev" else start for row in self._elsewhere)])
        self._gG = start.new_empty(1 + len(rule.rows), *start.shape)
        self.acting = [0] * len(start)
        """How many rows had a part in each client's steps so far [K]."""

    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The direction of step k [K, d], loss [K] and buffers [K, m], at y [K, d]."""
        points, gG = self._points, self._gG
        if k > 0 and "prev" in self._elsewhere:
            points[1 + self._elsewhere.index("prev")] = points[0]
        points[0] = y
        loss, b_after = (self._at_once if self._task.draws_nothing else self._one_by_one)(b, batch)
        for j in range(len(points), len(gG)):
            torch.sub(y, self._start, out=gG[j])
        return self._projected(gG.transpose(0, 1), batch.active), loss, b_after

    def _projected(self, vectors: Tensor, active: Tensor | None) -> Tensor:
        """QP(g, G) of g and the rows of G [K, 1 + r, d]; whoever takes no step any more is not counted."""
        u, acting = project_few(vectors, self._rule.rho, self._rule.bounds)
        steps_on = [True] * len(acting) if active is None else active.tolist()
        self.acting = [before + on * now for before, on, now in zip(self.acting, steps_on, acting, strict=True)]
        return u

    def _gradient(self, y: Tensor, b: Tensor, batch: Batch, out: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the minibatch gradient at y to ``out``; loss and buffers."""
        gradient, loss, b_after = self._task.gradient(y, b, batch, out=out)
        if self._rule.decay is not None:
            gradient.addcmul_(self._rule.decay, y)
        return loss, b_after

    def _at_once(self, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The gradients at all points [P, K, d] as one computation; loss [K] and buffers [K, m] of the first."""
        P, K = self._points.shape[:2]
        everywhere = b.expand(P, *b.shape).flatten(0, 1)
        out = self._gG[:P].flatten(0, 1)
        loss, b_after = self._gradient(self._points.flatten(0, 1), everywhere, batch.repeated(P), out)
        return loss[:K], b_after[:K]

    def _one_by_one(self, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same for models that draw, which all points share or each does anew."""
        drawn = drawn_so_far(b.device)
        found = []
        for point, gradient in zip(self._points, self._gG, strict=False):
            if not self._rule.own_draws:
                draw_again(b.device, drawn)
            found.append(self._gradient(point, b, batch, gradient))
        return found[0]
