"""The samples of a federation as tensors, prepared once and handed out by client and minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset import Federation, Indices, Split
from fedkeel.data.transform import Transform
from fedkeel.engine.devices import CPU
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.learning.kernels.dense import hot_steps
from fedkeel.learning.task import Batch, Batches

CACHE_BYTES = 1 << 30
"""Prepared samples are kept while all of them together stay below this; beyond, a client's are prepared when needed."""
BLOCK_BYTES = 1 << 21
"""Minibatches are gathered this much at a time, always into the same memory: it stays in cache until it is read."""
ALIGNMENT = 64
"""Bytes of a cache line."""
Array = np.ndarray[Any, np.dtype[Any]]
Scored = Literal["test", "validation"]
"""What global models are scored on."""
ASKED = 2000
"""Training samples that stand in for a validation set where the server holds none."""


@dataclass(frozen=True)
class ClientData:
    """What one client trains on: its inputs [n, ...], prepared for the model, and its targets [n, ...]."""

    x: Tensor
    y: Tensor
    transform: Transform
    """Says how minibatches are augmented."""
    dtype: torch.dtype | None = None
    """The run's precision, where the inputs are tokens and do not show it."""


class DataOfClients(Protocol):
    """Whoever has the training samples of some clients."""

    def data_of(self, client: int) -> ClientData:
        """Those of one client, by its id."""


class Samples:
    """Normalised inputs and targets of every client and of the test set, in the run's precision.

    ``channels_last`` lays images out as convolutions like them; their shape [n, C, H, W] stays.
    """

    def __init__(
        self,
        federation: Federation,
        dtype: torch.dtype,
        channels_last: bool = False,
        device: torch.device = CPU,
    ) -> None:
        self.federation = federation
        self.dtype = dtype
        self.device = device
        self.transform = federation.dataset.transform
        self._channels_last = channels_last
        width = int(np.prod(federation.dataset.train.x.shape[1:]))
        self.keeps_all = federation.n * width * dtype.itemsize <= CACHE_BYTES
        """Whether prepared samples stay in memory."""
        self._ends = np.cumsum(federation.sizes)

    def of_client(self, client: int) -> tuple[Tensor, Tensor]:
        """All inputs [n, ...] and targets [n] of a client."""
        rows = self.federation.clients[client]
        if not self.keeps_all:
            return self._prepared(self.federation.dataset.train, rows)
        x, y = self.everybody
        stop = int(self._ends[client])
        return x[stop - len(rows) : stop], y[stop - len(rows) : stop]

    def data_of(self, client: int) -> ClientData:
        """What a client trains on."""
        return ClientData(*self.of_client(client), self.transform, self.dtype)

    @cached_property
    def everybody(self) -> tuple[Tensor, Tensor]:
        """All clients' samples, one client after the other, so that each has a slice and a million cost no more."""
        return self._prepared(self.federation.dataset.train, np.concatenate(self.federation.clients))

    def prepare_all(self) -> None:
        """Prepare everything that is kept now."""
        if self.keeps_all:
            _ = self.everybody
        _ = self.test

    def _prepared(self, split: Split, rows: Indices | None = None) -> tuple[Tensor, Tensor]:
        x, y = (split.x, split.y) if rows is None else (split.x[rows], split.y[rows])
        return prepared(x, y, self.transform, self.dtype, self._channels_last, self.device)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """All test inputs and targets."""
        return self._prepared(self.federation.dataset.test)

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        """What the server scores its model on between rounds: the samples it holds out, never the test set.

        Without held-out samples the clients are asked: a fixed draw of ``ASKED`` of all their training samples.
        """
        rows = self.federation.validation
        if rows is None:
            everybody = np.concatenate(self.federation.clients)
            rows = np.sort(everybody[asked_of(len(everybody))])
        return self._prepared(self.federation.dataset.train, rows)

    def to_score(self, on: Scored) -> tuple[Tensor, Tensor]:
        """``test`` or ``validation``."""
        return self.test if on == "test" else self.validation

    def client_test(self, client: int) -> tuple[Tensor, Tensor]:
        """Test inputs and targets of one client, where the federation has them apart."""
        federation = self.federation
        if federation.held_tests is not None:
            return self._prepared(federation.dataset.train, federation.held_tests[client])
        tests = federation.client_tests
        return self.test if tests is None else self._prepared(federation.dataset.test, tests[client])


def prepared(
    x: Array, y: Array, transform: Transform, dtype: torch.dtype, channels_last: bool, device: torch.device = CPU
) -> tuple[Tensor, Tensor]:
    """Stored samples as a model takes them: inputs [n, ...] and targets [n]."""
    values = transform.prepare(x, dtype)
    if channels_last and values.dim() == 4:
        values = as_channels_last(values)
    targets = torch.from_numpy(y)
    if targets.is_floating_point():
        targets = targets.to(dtype)
    return values.to(device), targets.to(device)


def aligned(x: Tensor) -> Tensor:
    """The same samples at the start of a cache line, as if they were all there is.

    The bits of a matrix product may depend on where its factors begin: a client's samples must give the same ones
    whether they are a slice of everybody's or lie alone at a site. Rows of whole cache lines are never copied.
    """
    return x.clone() if x.is_cpu and x.data_ptr() % ALIGNMENT else x


def asked_of(samples: int) -> Indices:
    """The fixed draw that stands in for a validation set: positions among all clients' samples, client by client."""
    return generator(0, Purpose.VALIDATION).choice(samples, size=min(ASKED, samples), replace=False)


class ClientBatches(Batches):
    """The minibatches of one client's round; augmented if the data set says so."""

    def __init__(
        self, data: ClientData, plan: list[np.ndarray], augmentation: torch.Generator | None, whose: int
    ) -> None:
        self.x, self.y = data.x, data.y
        self.array = array_of(self.x, self.x) if self.x.is_cpu else None
        self.widths = [len(rows) for rows in plan]
        """Samples of each step."""
        self.starts = list(accumulate(self.widths, initial=0))
        self.rows: Indices = np.concatenate([*plan, np.empty(0, dtype=np.int64)])
        """The positions within x and y of all steps' samples, one step behind the other."""
        self.augmentation = augmentation
        self._transform = data.transform
        self._augmented: dict[int, Tensor] = {}
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < len(self.x):
            raise IndexError(
                f"client {whose} has {len(self.x)} samples, but its minibatches ask for the positions "
                f"{self.rows.min()} to {self.rows.max()}"
            )

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        if k >= len(self):
            raise IndexError(k)
        rows = self.rows[self.starts[k] : self.starts[k + 1]]
        if self.array is None:
            x = self.x[torch.from_numpy(rows)]
        else:
            x = space_for(self.x, len(rows))
            self.array.take(rows, axis=0, out=array_of(x, self.x), mode="clip")
        if self.augmentation is not None:
            # Kept for the round, so that an algorithm that looks at step k twice sees the same images.
            if k not in self._augmented:  # drawn in main memory, so that all devices see the same ones
                self._augmented[k] = self._transform.augmented(x.cpu(), self.augmentation).to(x.device)
            x = self._augmented[k]
        return Batch(x.unsqueeze(0), self.y[torch.from_numpy(rows)].unsqueeze(0))

    @property
    def positions(self) -> Sequence[Tensor] | None:
        return None if self.augmentation is not None else torch.from_numpy(self.rows).split_with_sizes(self.widths)

    def stream(self, classes: int | None = None) -> Iterator[Batch]:
        if self.augmentation is not None or self.array is None:
            yield from self
            return
        asked = self.y[torch.from_numpy(self.rows)].unsqueeze(0)
        targets = asked.split_with_sizes(self.widths, dim=1)
        hot = None if classes is None else hot_steps(asked, self.widths, classes, self.x.dtype)
        blocks = blocks_of(self.widths, self.x)
        memory = space_for(self.x, max((self.starts[b.stop] - self.starts[b.start] for b in blocks), default=0))
        for block in blocks:
            rows = self.rows[self.starts[block.start] : self.starts[block.stop]]
            x = memory[: len(rows)]
            self.array.take(rows, axis=0, out=array_of(x, self.x), mode="clip")
            x = x.unsqueeze(0)
            parts = (x if hot is None else x.flatten(2)).split_with_sizes(self.widths[block.start : block.stop], dim=1)
            for k, part in zip(block, parts, strict=True):
                yield Batch(part, targets[k], hot=None if hot is None else hot[k])


def blocks_of(widths: Sequence[int], x: Tensor, clients: int = 1) -> list[range]:
    """The steps in runs whose minibatches are gathered in one go (for some clients at once)."""
    most = BLOCK_BYTES // (clients * x[0].numel() * x.element_size())
    blocks, first, gathered = [], 0, 0
    for step, width in enumerate(widths):
        if step > first and gathered + width > most:
            blocks.append(range(first, step))
            first, gathered = step, 0
        gathered += width
    return [*blocks, range(first, len(widths))] if widths else []


def array_of(samples: Tensor, like: Tensor) -> Array:
    """Samples [n, ...] as a NumPy array along whose last axis memory runs, if they are laid out as ``like`` is.

    NumPy's ``take`` copies a sample in one go; torch's ``index_select`` takes half as long again, and loses
    ``channels_last``. The rows to take must exist: ``mode="clip"`` is what spares a second copy, and says nothing.
    """
    return (samples.permute(0, 2, 3, 1) if is_channels_last(like) else samples).numpy()


def space_for(x: Tensor, samples: int) -> Tensor:
    """Memory for some samples, laid out as x is."""
    if is_channels_last(x):
        _, channels, height, width = x.shape
        return as_images(x.new_empty(samples, height, width, channels))
    return x.new_empty(samples, *x.shape[1:])


def is_channels_last(x: Tensor) -> bool:
    """Whether samples [n, ...] are images whose channels lie side by side in memory."""
    return x.dim() == 4 and x.stride(1) == 1


def as_channels_last(x: Tensor) -> Tensor:
    """The same images [n, C, H, W] with a pixel's channels side by side in memory."""
    return as_images(x.permute(0, 2, 3, 1).contiguous())


def as_images(pixels: Tensor) -> Tensor:
    """Images [n, H, W, C] seen as [n, C, H, W].

    The strides are spelled out because torch gives images of one channel others, in which convolutions do not
    recognise ``channels_last``.
    """
    n, height, width, channels = pixels.shape
    return pixels.as_strided((n, channels, height, width), (height * width * channels, 1, width * channels, channels))


def full_batches(data: ClientData, batch_size: int) -> list[Batch]:
    """All of a client's samples once; the weights make the sum over batches the mean over samples."""
    x, y = aligned(data.x), data.y
    share = x.new_full(
        (1, len(y)), 1 / len(y), dtype=data.dtype or (x.dtype if x.is_floating_point() else torch.float64)
    )
    return [
        Batch(x[None, s : s + batch_size], y[None, s : s + batch_size], share[:, s : s + batch_size])
        for s in range(0, len(y), batch_size)
    ]
