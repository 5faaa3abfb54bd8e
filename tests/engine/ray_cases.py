"""Algorithms and models of one's own for the tests on a Ray cluster: code that actors cannot find by its name alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Local
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import Message, State


class OwnError(Exception):
    """An exception that the actors know from here only."""


class Slow(FedAvg):
    """Leaves a mark for every client, and takes its time."""

    name = "slow"

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__()
        self.folder, self.seconds = folder, seconds

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        (self.folder / f"{local.round.t}-{local.clients.ids[0]}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return super().finish(local, y)


class Deadly(FedAvg):
    """Kills its process on client 2 as long as a file is there; ``once`` it removes the file before."""

    name = "deadly"

    def __init__(self, marker: Path, once: bool) -> None:
        super().__init__()
        self.marker, self.once = marker, once

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        if local.clients.ids == (2,) and self.marker.exists():
            if self.once:
                self.marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finish(local, y)


class Failing(FedAvg):
    """Raises on client 1."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        if local.clients.ids == (1,):
            raise self.error
        return super().finish(local, y)


class Dropping(nn.Module):
    """Convolution, BatchNorm and dropout: channels last in memory, buffers that move, and draws of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.body(x)) + 0.01 * torch.randn(1))
        return out
