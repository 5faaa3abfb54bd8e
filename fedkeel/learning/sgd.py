"""The local optimiser."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedkeel.learning.adam import Adam


@dataclass(frozen=True)
class Sgd:
    """The local optimiser's settings, equal for all clients."""

    lr: float
    """η of this round."""
    clip: float | None = None
    """Largest allowed norm of a client's corrected gradient; None: no clipping."""
    weight_decay: float = 0.0
    momentum: float | Tensor = 0.0
    """μ, one number or one per coordinate [d]."""
    max_move: float | None = None
    """D, the largest allowed ‖y − y_0‖ after all steps; None: no limit."""
    adam: Adam | None = None
    """Adam or AdamW in place of plain steps; it has no momentum beside its own."""

    @property
    def has_momentum(self) -> bool:
        return bool(torch.as_tensor(self.momentum).ne(0).any())


def used(value: Any) -> frozenset[str]:
    """The names of the fields of a dataclass's value that are not as they are when nobody says anything."""
    return frozenset(field.name for field in fields(value) if not _is(getattr(value, field.name), field.default))


def _is(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor):
        return isinstance(default, int | float) and bool(value.eq(default).all())
    return value is default or bool(value == default)
