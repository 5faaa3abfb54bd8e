"""The minibatches of several clients as one: padded to one shape, with weights and masks for what is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedkeel.learning.task import Batch


class StackedBatches(Sequence[Batch]):
    """Step k of K clients at once. A client whose steps are over is inactive and sees zeros."""

    def __init__(self, parts: list[Sequence[Batch]], dtype: torch.dtype) -> None:
        self._parts = parts
        self._dtype = dtype
        # A client may take no step at all; whoever does shows the shapes.
        self._first = next((part[0] for part in parts if len(part)), None)

    def __len__(self) -> int:
        return max(len(part) for part in self._parts)

    def __getitem__(self, k: Any) -> Any:
        if self._first is None or k >= len(self):
            raise IndexError(k)
        batches = [part[k] if k < len(part) else None for part in self._parts]
        sizes = [0 if batch is None else batch.y.shape[1] for batch in batches]
        width = max(sizes)
        x = self._first.x.new_zeros(len(batches), width, *self._first.x.shape[2:])
        y = self._first.y.new_zeros(len(batches), width)
        weight = torch.zeros(len(batches), width, dtype=self._dtype)
        for i, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            if batch is not None:
                x[i, :size], y[i, :size] = batch.x[0], batch.y[0]
                weight[i, :size] = 1 / size if batch.weight is None else batch.weight[0]
        active = torch.tensor([size > 0 for size in sizes])
        full = min(sizes) == width and all(batch is None or batch.weight is None for batch in batches)
        return Batch(x, y, None if full else weight, None if bool(active.all()) else active)

    def __iter__(self) -> Iterator[Batch]:
        return (self[k] for k in range(len(self)))
