"""Losses that differ from client to client by what is done to the scores of classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Calibration:
    """Clients minimise the cross-entropy of scale·z + shift, where the model's scores are z.

    ``scale`` and ``shift`` are [K, classes]; None: 1 and 0. Models are evaluated as they are.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None

    def __post_init__(self) -> None:
        # −∞ would leave a class out, and then make NaN of it, since its log-probability is multiplied by zero.
        for name, part in (("scale", self.scale), ("shift", self.shift)):
            if part is not None and not bool(torch.isfinite(part).all()):
                raise ValueError(f"{name} of scores must be finite; leave a class out by a large negative shift")

    def of(self, i: int) -> Calibration:
        """Client i's alone, without the client axis."""
        return Calibration(*(None if part is None else part[i] for part in (self.scale, self.shift)))

    def scores(self, z: Tensor) -> Tensor:
        """One client's scores [B, classes], calibrated."""
        for part in (self.scale, self.shift):
            if part is not None and (z.dim() != 2 or z.shape[1] != len(part)):
                raise ValueError(f"{len(part)} classes are calibrated, but the model gives {list(z.shape)}")
        scaled = z if self.scale is None else z * self.scale
        return scaled if self.shift is None else scaled + self.shift
