"""The samples of a federation as tensors, prepared once and handed out by client and minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset import Federation, Indices, Split
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.learning.task import Batch

CACHE_BYTES = 1 << 30
"""Prepared samples are kept while all of them together stay below this; beyond, a client's are prepared when needed."""
BLOCK_BYTES = 1 << 21
"""Minibatches are gathered this much at a time, an epoch of a usual client: one large copy that is still in cache."""
ASKED = 2000
"""Training samples that stand in for a validation set where the server holds none."""


class Samples:
    """Normalised inputs and targets of every client and of the test set, in the run's precision.

    ``channels_last`` lays images out as convolutions like them; their shape [n, C, H, W] stays.
    """

    def __init__(self, federation: Federation, dtype: torch.dtype, channels_last: bool = False) -> None:
        self.federation = federation
        self.dtype = dtype
        self.transform = federation.dataset.transform
        self._channels_last = channels_last and len(federation.dataset.input_shape) == 3
        width = int(np.prod(federation.dataset.train.x.shape[1:]))
        self._keep = federation.n * width * dtype.itemsize <= CACHE_BYTES
        self._ends = np.cumsum(federation.sizes)

    def of_client(self, client: int) -> tuple[Tensor, Tensor]:
        """All inputs [n, ...] and targets [n] of a client."""
        rows = self.federation.clients[client]
        if not self._keep:
            return self._prepared(self.federation.dataset.train, rows)
        x, y = self._everybody
        stop = int(self._ends[client])
        return x[stop - len(rows) : stop], y[stop - len(rows) : stop]

    def example(self) -> tuple[Tensor, Tensor]:
        """One input [1, ...] and its target [1], before anything else is prepared."""
        return self._prepared(self.federation.dataset.train, self.federation.clients[0][:1])

    @cached_property
    def _everybody(self) -> tuple[Tensor, Tensor]:
        """All clients' samples, one client after the other, so that each has a slice and a million cost no more."""
        return self._prepared(self.federation.dataset.train, np.concatenate(self.federation.clients))

    def prepare_all(self) -> None:
        """Prepare everything that is kept now."""
        if self._keep:
            _ = self._everybody
        _ = self.test

    def _prepared(self, split: Split, rows: Indices | None = None) -> tuple[Tensor, Tensor]:
        x, y = (split.x, split.y) if rows is None else (split.x[rows], split.y[rows])
        values = self.transform.prepare(x, self.dtype)
        if self._channels_last:
            values = as_channels_last(values)
        return values, torch.from_numpy(y)

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
            rng = generator(0, Purpose.VALIDATION)
            rows = np.sort(rng.choice(everybody, size=min(ASKED, len(everybody)), replace=False))
        return self._prepared(self.federation.dataset.train, rows)

    def client_test(self, client: int) -> tuple[Tensor, Tensor]:
        """Test inputs and targets of one client, where the federation has them apart."""
        tests = self.federation.client_tests
        return self.test if tests is None else self._prepared(self.federation.dataset.test, tests[client])


class ClientBatches(Sequence[Batch]):
    """The minibatches of one client's round, gathered some at a time; augmented if the data set says so."""

    def __init__(
        self, samples: Samples, client: int, plan: list[np.ndarray], augmentation: torch.Generator | None
    ) -> None:
        self.x, self.y = samples.of_client(client)
        self.plan = plan
        """For each step the positions of its minibatch within x and y."""
        self.augmentation = augmentation
        self._transform = samples.transform
        self._augmented: dict[int, Tensor] = {}
        self._steps, self._starts = range(0), [0]
        self._block = self.x, self.y

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        if k >= len(self.plan):
            raise IndexError(k)
        if k not in self._steps:
            self._steps = block_from(k, [len(rows) for rows in self.plan], self.x)
            rows = torch.from_numpy(np.concatenate([self.plan[step] for step in self._steps]))
            self._starts = list(accumulate((len(self.plan[step]) for step in self._steps), initial=0))
            self._block = rows_of(self.x, rows), self.y.index_select(0, rows)
        here = k - self._steps.start
        start, width = self._starts[here], self._starts[here + 1] - self._starts[here]
        x, y = (block.narrow(0, start, width) for block in self._block)
        if self.augmentation is not None:
            # Kept for the round, so that an algorithm that looks at step k twice sees the same images.
            if k not in self._augmented:
                self._augmented[k] = self._transform.augmented(x, self.augmentation)
            x = self._augmented[k]
        return Batch(x.unsqueeze(0), y.unsqueeze(0))

    def __iter__(self) -> Iterator[Batch]:
        return (self[k] for k in range(len(self)))


def block_from(first: int, widths: Sequence[int], x: Tensor, clients: int = 1) -> range:
    """The steps from ``first`` on whose minibatches are gathered in one go (for some clients at once)."""
    per_sample = clients * x[0].numel() * x.element_size()
    last, gathered = first, 0
    while last < len(widths) and (last == first or gathered * per_sample < BLOCK_BYTES):
        gathered += widths[last]
        last += 1
    return range(first, last)


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Some samples of x [n, ...], laid out in memory as x is (``index_select`` alone would lose ``channels_last``)."""
    if x.dim() == 4 and x.stride(1) == 1:
        return _as_images(x.permute(0, 2, 3, 1).index_select(0, rows))
    return x.index_select(0, rows)


def as_channels_last(x: Tensor) -> Tensor:
    """The same images [n, C, H, W] with a pixel's channels side by side in memory."""
    return _as_images(x.permute(0, 2, 3, 1).contiguous())


def _as_images(pixels: Tensor) -> Tensor:
    """Images [n, H, W, C] seen as [n, C, H, W].

    The strides are spelled out because torch gives images of one channel others, in which convolutions do not
    recognise ``channels_last``.
    """
    n, height, width, channels = pixels.shape
    return pixels.as_strided((n, channels, height, width), (height * width * channels, 1, width * channels, channels))


def full_batches(samples: Samples, client: int, batch_size: int = 2048) -> list[Batch]:
    """All of a client's samples once; the weights make the sum over batches the mean over samples."""
    x, y = samples.of_client(client)
    share = torch.full((1, len(y)), 1 / len(y), dtype=samples.dtype)
    return [
        Batch(x[None, s : s + batch_size], y[None, s : s + batch_size], share[:, s : s + batch_size])
        for s in range(0, len(y), batch_size)
    ]
