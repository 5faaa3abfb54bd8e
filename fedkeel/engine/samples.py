"""The samples of a federation as tensors, prepared once and handed out by client and minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset import Federation
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.learning.task import Batch

CACHE_BYTES = 1 << 30
"""Prepared clients are kept while all of them together stay below this; beyond, they are prepared when needed."""
ASKED = 2000
"""Training samples that stand in for a validation set where the server holds none."""


class Samples:
    """Normalised inputs and targets of every client and of the test set, in the run's precision."""

    def __init__(self, federation: Federation, dtype: torch.dtype) -> None:
        self.federation = federation
        self.dtype = dtype
        self.transform = federation.dataset.transform
        width = int(np.prod(federation.dataset.train.x.shape[1:]))
        self._keep = federation.n * width * dtype.itemsize <= CACHE_BYTES
        self._prepared: dict[int, tuple[Tensor, Tensor]] = {}

    def of_client(self, client: int) -> tuple[Tensor, Tensor]:
        """All inputs [n, ...] and targets [n] of a client."""
        if client in self._prepared:
            return self._prepared[client]
        train = self.federation.dataset.train
        rows = self.federation.clients[client]
        pair = self.transform.prepare(train.x[rows], self.dtype), torch.from_numpy(train.y[rows])
        if self._keep:
            self._prepared[client] = pair
        return pair

    def prepare_all(self) -> None:
        """Prepare every client now, if they are to be kept at all."""
        if self._keep:
            for client in range(self.federation.N):
                self.of_client(client)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """All test inputs and targets."""
        test = self.federation.dataset.test
        return self.transform.prepare(test.x, self.dtype), torch.from_numpy(test.y)

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        """What the server scores its model on between rounds: the samples it holds out, never the test set.

        Without held-out samples the clients are asked: a fixed draw of ``ASKED`` of all their training samples.
        """
        train, rows = self.federation.dataset.train, self.federation.validation
        if rows is None:
            everybody = np.concatenate(self.federation.clients)
            rng = generator(0, Purpose.VALIDATION)
            rows = np.sort(rng.choice(everybody, size=min(ASKED, len(everybody)), replace=False))
        return self.transform.prepare(train.x[rows], self.dtype), torch.from_numpy(train.y[rows])

    def client_test(self, client: int) -> tuple[Tensor, Tensor]:
        """Test inputs and targets of one client, where the federation has them apart."""
        tests = self.federation.client_tests
        if tests is None:
            return self.test
        test = self.federation.dataset.test
        rows = tests[client]
        return self.transform.prepare(test.x[rows], self.dtype), torch.from_numpy(test.y[rows])


class ClientBatches(Sequence[Batch]):
    """The minibatches of one client's round, gathered when asked for; augmented if the data set says so."""

    def __init__(
        self, samples: Samples, client: int, plan: list[np.ndarray], augmentation: torch.Generator | None
    ) -> None:
        self._x, self._y = samples.of_client(client)
        self._plan = plan
        self._augmentation = augmentation
        self._transform = samples.transform
        self._augmented: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        rows = torch.from_numpy(self._plan[k])
        x = self._x[rows]
        if self._augmentation is not None:
            # Kept for the round, so that an algorithm that looks at step k twice sees the same images.
            x = self._augmented.setdefault(k, self._transform.augmented(x, self._augmentation))
        return Batch(x.unsqueeze(0), self._y[rows].unsqueeze(0))

    def __iter__(self) -> Iterator[Batch]:
        return (self[k] for k in range(len(self)))


def full_batches(samples: Samples, client: int, batch_size: int = 2048) -> list[Batch]:
    """All of a client's samples once; the weights make the sum over batches the mean over samples."""
    x, y = samples.of_client(client)
    share = torch.full((1, len(y)), 1 / len(y), dtype=samples.dtype)
    return [
        Batch(x[None, s : s + batch_size], y[None, s : s + batch_size], share[:, s : s + batch_size])
        for s in range(0, len(y), batch_size)
    ]
