"""What the scripts of this folder share: the work, its data, and the line in which a script reports its rounds.

Each script runs one library in that library's own environment. The data, the models and all sizes come from
``fedkeel.bench.works``, for which ``run.py`` puts the repository on the path; nothing else of fedkeel is used.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkeel.bench.works import FULL, LR, Images, find, make_images, plain_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["CORES", "EVALUATION_BATCH", "LR", "SIZE", "Clock", "IndexLoader"]

SIZE = FULL
CORES = len(os.sched_getaffinity(0))
EVALUATION_BATCH = 1000
HERE = Path(__file__).resolve().parent
ENVIRONMENTS = Path(os.environ.get("FEDKEEL_PEERS", HERE / ".envs"))
RECORDED = ("torch", "flwr", "ray", "pfl", "blazefl", "fluke-fl", "fedlab", "flgo", "fedjax", "jax", "jaxlib", "numpy")
MARK = "RESULT "
STARTED = float(os.environ.get("FEDKEEL_PEER_STARTED", time.time()))


def options(**choices: list[str]) -> argparse.Namespace:
    """The options of a script; ``choices`` are its own, with their values, the first of which is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="W1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch threads, where one process does everything")
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    return parser.parse_args()


def images() -> Images:
    """The benchmark's images, from the file that the first script wrote."""
    path = ENVIRONMENTS / "images.npz"
    if not path.exists():
        made = make_images(SIZE)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished.npz")
        np.savez(unfinished, x=made.x, y=made.y, x_test=made.x_test, y_test=made.y_test)
        unfinished.replace(path)
    with np.load(path) as stored:
        return Images(**{name: stored[name] for name in stored.files})


@functools.cache
def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clients' inputs [N, n, 1, 28, 28] and labels [N, n], test inputs and labels; once per process."""
    import torch

    made = images()
    x = (torch.from_numpy(made.x).float() / 255).view(SIZE.clients, SIZE.samples, 1, 28, 28)
    x_test = torch.from_numpy(made.x_test).float() / 255
    return x, torch.from_numpy(made.y).view(SIZE.clients, -1), x_test, torch.from_numpy(made.y_test)


def model(work: str) -> nn.Sequential:
    """The work's model in plain torch."""
    return plain_model(find(work))


class IndexLoader:
    """Batches of tensors by index from a new permutation each time: what a user writes who cares for speed."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int = SIZE.batch, shuffle: bool = True) -> None:
        self.x, self.y, self.batch_size, self.shuffle = x, y, batch_size, shuffle
        self.dataset = self  # some libraries ask a loader for it, to know its length

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        import torch

        order = torch.randperm(len(self.x)) if self.shuffle else torch.arange(len(self.x))
        for rows in order.split(self.batch_size):
            yield self.x[rows], self.y[rows]


def loader(kind: str, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Any:
    """A client's batches: ``documented`` is the DataLoader of every tutorial, ``index`` the faster one above."""
    from torch.utils.data import DataLoader, TensorDataset

    if kind == "index":
        return IndexLoader(x, y)
    return DataLoader(TensorDataset(x, y), batch_size=SIZE.batch, shuffle=True, generator=generator)


def accuracy(net: nn.Module) -> float:
    """Share of the test images that a model gets right."""
    import torch

    *_, x, y = tensors()
    net.eval()
    with torch.no_grad():
        parts = zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True)
        hits = sum(int((net(inputs).argmax(1) == targets).sum()) for inputs, targets in parts)
    net.train()
    return hits / len(y)


class Clock:
    """The times at which rounds ended, evaluation included."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.accuracies: list[float] = []

    def round_done(self, reached: float) -> None:
        self.ends.append(time.time())
        self.accuracies.append(round(float(reached), 4))

    def report(self) -> None:
        """One line for ``run.py``."""
        versions = {}
        for name in RECORDED:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        found = {
            "started": STARTED,
            "ends": self.ends,
            "accuracies": self.accuracies,
            "versions": {"python": platform.python_version(), **versions},
        }
        print(MARK + json.dumps(found), flush=True)


def without_torchvision() -> None:
    """Let a library import torchvision where it cannot be loaded; none of its parts is used here."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        import types
        from importlib.machinery import ModuleSpec

        class Absent(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for part in ("", ".datasets", ".datasets.utils", ".datasets.mnist", ".models", ".models.resnet", ".transforms"):
            module = Absent(f"torchvision{part}")
            module.__spec__ = ModuleSpec(module.__name__, None)
            module.__path__ = []
            sys.modules[module.__name__] = module
        for part in (".transforms.functional", ".utils"):
            sys.modules[f"torchvision{part}"] = Absent(f"torchvision{part}")
