"""The minibatches of several clients as one: padded to one shape, with weights and masks for what is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset import Indices
from fedkeel.engine.samples import ClientBatches, block_from
from fedkeel.learning.task import Batch


def stacked(parts: Sequence[Sequence[Batch]], dtype: torch.dtype) -> Sequence[Batch]:
    """Step k of K clients at once. A client whose steps are over is inactive, and its batch has no weight."""
    plain = [part for part in parts if isinstance(part, ClientBatches) and part.augmentation is None]
    return GatheredBatches(plain, dtype) if len(plain) == len(parts) else PaddedBatches(parts, dtype)


class GatheredBatches(Sequence[Batch]):
    """Minibatches taken for all clients straight from their samples, a block of steps in one copy each.

    Where a client has fewer samples in a step than others, or none, its first sample fills up, with weight zero.
    """

    def __init__(self, clients: Sequence[ClientBatches], dtype: torch.dtype) -> None:
        self._clients = clients
        self._dtype = dtype
        steps = max(len(client) for client in clients)
        self._sizes = np.zeros((len(clients), steps), dtype=np.int64)
        for i, client in enumerate(clients):
            self._sizes[i, : len(client)] = [len(rows) for rows in client.plan]
        self._widths = self._sizes.max(axis=0, initial=0)
        self._full = np.all(self._sizes == self._widths, axis=0)
        self._active = np.all(self._sizes > 0, axis=0)
        self._starts = np.concatenate([[0], np.cumsum(self._widths)]).tolist()
        self._rows = torch.from_numpy(self._all_rows())
        self._steps = range(0)
        self._x = self._y = torch.empty(0)

    def __len__(self) -> int:
        return len(self._widths)

    def __getitem__(self, k: Any) -> Any:
        if k >= len(self):
            raise IndexError(k)
        if k not in self._steps:
            self._gather(k)
        start, width = self._starts[k] - self._starts[self._steps.start], self._starts[k + 1] - self._starts[k]
        active = None if self._active[k] else torch.from_numpy(self._sizes[:, k] > 0)
        weight = None if self._full[k] else self._weight(k)
        return Batch(self._x.narrow(1, start, width), self._y.narrow(1, start, width), weight, active)

    def __iter__(self) -> Iterator[Batch]:
        return (self[k] for k in range(len(self)))

    def _all_rows(self) -> Indices:
        """Of all steps, one behind the other, the samples of each client [K, rows]."""
        rows = np.zeros((len(self._clients), self._starts[-1]), dtype=np.int64)
        for i, client in enumerate(self._clients):
            if np.array_equal(self._sizes[i], self._widths):
                np.concatenate([*client.plan, rows[i, :0]], out=rows[i])
                continue
            for own, start in zip(client.plan, self._starts, strict=False):
                rows[i, start : start + len(own)] = own
        return rows

    def _gather(self, first: int) -> None:
        """Fill the block that begins with a step: x [K, rows, ...], y [K, rows]."""
        like = self._clients[0]
        self._steps = block_from(first, self._widths.tolist(), like.x, len(self._clients))
        rows = self._rows[:, self._starts[first] : self._starts[self._steps.stop]]
        self._x = like.x.new_empty(*rows.shape, *like.x.shape[1:])
        self._y = like.y.new_empty(rows.shape)
        for client, own, x, y in zip(self._clients, rows, self._x, self._y, strict=True):
            torch.index_select(client.x, 0, own, out=x)
            torch.index_select(client.y, 0, own, out=y)

    def _weight(self, k: int) -> Tensor:
        sizes = self._sizes[:, k : k + 1]
        real = np.arange(self._widths[k]) < sizes
        return torch.from_numpy(real / np.maximum(sizes, 1)).to(self._dtype)


class PaddedBatches(Sequence[Batch]):
    """Any minibatches, each copied into its place, for what comes augmented or with weights of its own."""

    def __init__(self, parts: Sequence[Sequence[Batch]], dtype: torch.dtype) -> None:
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
