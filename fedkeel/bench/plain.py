"""The plain loop: the SGD steps of a round with nothing federated around them.

An ordinary ``nn.Module``, autograd and ``torch.optim.SGD`` over tensors in memory, split evenly over one
single-threaded process per core. No messages, no averaging, no client state: what a simulator adds to this is its
overhead, and what it saves is its merit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkeel.bench.crew import Crew, Seat
from fedkeel.bench.works import LR, Images, Size, Work, plain_model

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Tensors:
    """The images as a training loop wants them: float32 in [0, 1]; clients [N, n, ...], test [m, ...]."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    channels_last: bool
    """Pixels lie as [..., height, width, channel], the order that convolutions on a CPU prefer."""

    def batch(self, x: Tensor) -> Tensor:
        """Images as a model takes them, [B, channel, height, width] in whichever order they lie."""
        return x.permute(0, 3, 1, 2) if self.channels_last else x


class PlainLoop:
    """The processes; ``run`` trains and evaluates on all of them."""

    def __init__(self, work: Work, size: Size, images: Images, workers: int, channels_last: bool = False) -> None:
        self.name = "plain loop, channels last" if channels_last else "plain loop"
        tensors = make_tensors(size, images, channels_last)  # before the fork: all processes share one copy
        self._crew = Crew(workers, lambda seat: _Share(work, size, tensors, seat))
        self.losses: list[float] = []
        """Mean loss on the test set after every round so far."""

    def run(self, rounds: int) -> list[float]:
        """Seconds of each round, from the first process's start to the last one's end."""
        answers = self._crew.ask(rounds)
        self.losses += [sum(parts) for parts in zip(*(losses for _, losses in answers), strict=True)]
        seconds: list[float] = answers[0][0]
        return seconds

    def close(self) -> None:
        self._crew.close()


def make_tensors(size: Size, images: Images, channels_last: bool = False) -> Tensors:
    """Everything as float32 in memory."""

    def pixels(array: object) -> Tensor:
        values = torch.as_tensor(array).float() / 255
        return values.permute(0, 2, 3, 1).contiguous() if channels_last else values

    x = pixels(images.x)
    return Tensors(
        x.view(size.clients, size.samples, *x.shape[1:]),
        torch.from_numpy(images.y).view(size.clients, size.samples),
        pixels(images.x_test),
        torch.from_numpy(images.y_test),
        channels_last,
    )


class _Share:
    """One process's part: its steps of a round, its slice of the test set."""

    def __init__(self, work: Work, size: Size, data: Tensors, seat: Seat) -> None:
        self._size, self._data, self._barrier = size, data, seat.barrier
        self._steps = size.steps // seat.count + (seat.rank < size.steps % seat.count)
        bounds = [len(data.x_test) * k // seat.count for k in (seat.rank, seat.rank + 1)]
        self._test = slice(*bounds)
        self._generator = torch.Generator().manual_seed(seat.rank)
        self._model: nn.Module = plain_model(work)
        if data.channels_last:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=LR)
        self._loss = nn.CrossEntropyLoss()

    def __call__(self, rounds: int) -> tuple[list[float], list[float]]:
        seconds, losses = [], []
        self._barrier.wait()
        before = time.perf_counter()
        for _ in range(rounds):
            self._train()
            losses.append(self._evaluate())
            self._barrier.wait()
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
        return seconds, losses

    def _train(self) -> None:
        left = self._steps
        model, optimiser, data, size = self._model, self._optimiser, self._data, self._size
        while left:
            client = int(torch.randint(size.clients, (), generator=self._generator))
            x, y = data.x[client], data.y[client]
            for _ in range(size.epochs):
                order = torch.randperm(size.samples, generator=self._generator)
                for rows in torch.split(order, size.batch)[:left]:
                    optimiser.zero_grad()
                    self._loss(model(data.batch(x[rows])), y[rows]).backward()
                    optimiser.step()
                    left -= 1

    @torch.no_grad()
    def _evaluate(self) -> float:
        """This part's share of the mean test loss; the hits are counted too, as every evaluation does."""
        x, y = self._data.x_test[self._test], self._data.y_test[self._test]
        total, hits = 0.0, 0
        for start in range(0, len(y), EVALUATION_BATCH):
            targets = y[start : start + EVALUATION_BATCH]
            outputs = self._model(self._data.batch(x[start : start + EVALUATION_BATCH]))
            total += float(self._loss(outputs, targets)) * len(targets)
            hits += int((outputs.argmax(1) == targets).sum())
        return total / len(self._data.y_test)
