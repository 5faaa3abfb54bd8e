"""The minibatches of several clients as one: padded to one shape, with weights and masks for what is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset import Indices
from fedkeel.engine.samples import Array, ClientBatches, array_of, blocks_of, space_for
from fedkeel.learning.kernels.dense import hot_steps
from fedkeel.learning.task import Batch, Batches


def stacked(parts: Sequence[Sequence[Batch]], dtype: torch.dtype) -> Batches:
    """Step k of K clients at once. A client whose steps are over is inactive, and its batch has no weight."""
    plain = [
        part
        for part in parts
        if isinstance(part, ClientBatches) and part.augmentation is None and part.array is not None
    ]
    return GatheredBatches(plain, dtype) if len(plain) == len(parts) else PaddedBatches(parts, dtype)


class GatheredBatches(Batches):
    """Minibatches taken for all clients straight from their samples.

    Where a client has fewer samples in a step than others, or none, its first sample fills up, with weight zero.
    """

    def __init__(self, clients: Sequence[ClientBatches], dtype: torch.dtype) -> None:
        self._clients = clients
        self._dtype = dtype
        steps = max(len(client) for client in clients)
        self._sizes = np.zeros((len(clients), steps), dtype=np.int64)
        for i, client in enumerate(clients):
            self._sizes[i, : len(client)] = client.widths
        widths = self._sizes.max(axis=0, initial=0)
        self._widths: list[int] = widths.tolist()
        self._full = np.all(self._sizes == widths, axis=0).tolist()
        self._active = np.all(self._sizes > 0, axis=0).tolist()
        self._starts = list(accumulate(self._widths, initial=0))
        self._rows = self._all_rows()

    def __len__(self) -> int:
        return len(self._widths)

    def __getitem__(self, k: Any) -> Any:
        if k >= len(self):
            raise IndexError(k)
        rows = self._rows[:, self._starts[k] : self._starts[k + 1]]
        x = self._space(rows.shape[1])
        for client, own, out in zip(self._clients, rows, x, strict=True):
            array_of(client.x, client.x).take(own, axis=0, out=array_of(out, client.x), mode="clip")
        return Batch(x, self._targets(rows), *self._masks(k))

    def stream(self, classes: int | None = None) -> Iterator[Batch]:
        blocks = blocks_of(self._widths, self._clients[0].x, len(self._clients))
        memory = self._space(max((self._starts[b.stop] - self._starts[b.start] for b in blocks), default=0))
        sources = [array_of(client.x, client.x) for client in self._clients]
        asked = self._targets(self._rows)
        targets = asked.split_with_sizes(self._widths, dim=1)
        hot = None if classes is None else hot_steps(asked, self._widths, classes, self._dtype)
        views: dict[tuple[int, ...], tuple[Sequence[Array], Sequence[Tensor]]] = {}
        for block in blocks:
            widths = tuple(self._widths[block.start : block.stop])
            if widths not in views:  # making views takes longer than one would think
                x = memory[:, : sum(widths)]
                arrays = [array_of(own, client.x) for own, client in zip(x, self._clients, strict=True)]
                views[widths] = arrays, (x if hot is None else x.flatten(2)).split_with_sizes(widths, dim=1)
            by_client, by_step = views[widths]
            rows = self._rows[:, self._starts[block.start] : self._starts[block.stop]]
            for source, own, out in zip(sources, rows, by_client, strict=True):
                source.take(own, axis=0, out=out, mode="clip")
            for k, part in zip(block, by_step, strict=True):
                yield Batch(part, targets[k], *self._masks(k), hot=None if hot is None else hot[k])

    def _space(self, samples: int) -> Tensor:
        """Memory for some samples of each client [K, samples, ...]."""
        clients, like = len(self._clients), self._clients[0].x
        return space_for(like, clients * samples).view(clients, samples, *like.shape[1:])

    def _targets(self, rows: Indices) -> Tensor:
        """Of some samples of each client [K, rows]."""
        return torch.stack([client.y[own] for client, own in zip(self._clients, torch.from_numpy(rows), strict=True)])

    def _all_rows(self) -> Indices:
        """Of all steps, one behind the other, the samples of each client [K, rows]."""
        rows = np.zeros((len(self._clients), self._starts[-1]), dtype=np.int64)
        for i, client in enumerate(self._clients):
            if client.widths == self._widths:
                rows[i] = client.rows
                continue
            for k, start in enumerate(self._starts[: len(client)]):
                rows[i, start : start + client.widths[k]] = client.rows[client.starts[k] : client.starts[k + 1]]
        return rows

    def _masks(self, k: int) -> tuple[Tensor | None, Tensor | None]:
        """``weight`` [K, B] and ``active`` [K] of step k, each None where it would say nothing."""
        weight = active = None
        if self._full[k] and self._active[k]:
            return weight, active
        sizes = self._sizes[:, k : k + 1]
        if not self._full[k]:
            real = np.arange(self._widths[k]) < sizes
            weight = torch.from_numpy(real / np.maximum(sizes, 1)).to(self._dtype)
        if not self._active[k]:
            active = torch.from_numpy(sizes[:, 0] > 0)
        return weight, active


class PaddedBatches(Batches):
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
        y = self._first.y.new_zeros(len(batches), width, *self._first.y.shape[2:])
        weight = x.new_zeros(len(batches), width, dtype=self._dtype)
        for i, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            if batch is not None:
                x[i, :size], y[i, :size] = batch.x[0], batch.y[0]
                weight[i, :size] = 1 / size if batch.weight is None else batch.weight[0]
        active = torch.tensor([size > 0 for size in sizes], device=x.device)
        full = min(sizes) == width and all(batch is None or batch.weight is None for batch in batches)
        return Batch(x, y, None if full else weight, None if bool(active.all()) else active)
