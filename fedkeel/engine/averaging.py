"""The average of a run's models over its rounds: a model to report, which training never sees.

    every round   w̄ ← w̄ + ρ (w − w̄),   with w the model that the algorithm reports after it
    ema           ρ = (1 − β) / (1 − β^k)   in its k-th round: weights ∝ 1, β, β², … backwards, and w̄ = w_1 at first
    swa           ρ = 1 / k                 from round s on: the plain mean of w_s, …, w_t (Izmailov et al., UAI 2018)

The factor 1 − β^k is Adam's correction for a start at nothing, so that no weight is left on an initial model. BatchNorm
statistics are averaged with the same ρ; counters among the buffers are whole numbers and stay the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkeel.learning.layout import Layout

Kind = Literal["ema", "swa"]


@dataclass(frozen=True)
class Averaged:
    """What a run remembers of its average."""

    rule: str
    """That it was made by; another rule does not go on with it."""
    models: int
    """How many are in it, one a round; at least 1."""
    w: Tensor
    """w̄ [d]."""
    b: Tensor
    """Buffers [m]."""


@dataclass(frozen=True)
class Averaging:
    """Which models count, and how much."""

    kind: Kind
    decay: float = 0.0
    """β of ``ema``: a model counts β times as much as the one after it."""
    first: int = 1
    """s of ``swa``: the first round, from 1, whose model counts."""

    def __str__(self) -> str:
        if self.kind == "ema":
            return f"exponential average over rounds, decay {self.decay:g}"
        return f"average over the rounds from {self.first} on"

    def after(self, t: int, before: Averaged | None, w: Tensor, b: Tensor, layout: Layout) -> Averaged | None:
        """The average after round t, from 1, whose model is (w, b); None as long as no model counts."""
        if t < self.first:
            return None
        if before is None:
            return Averaged(str(self), 1, w.clone(), b.clone())
        k = before.models + 1
        rho = (1 - self.decay) / (1 - self.decay**k) if self.kind == "ema" else 1 / k
        buffers = torch.lerp(before.b, b, rho)
        for entry in layout:
            if not entry.dtype.is_floating_point:
                buffers[entry.start : entry.stop] = b[entry.start : entry.stop]
        return Averaged(str(self), k, torch.lerp(before.w, w, rho), buffers)
