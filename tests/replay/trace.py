"""A recorded run: its arrays, and the federation, schedule, model and vectors that it implies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedkeel.data import Dataset, Federation, Split, Transform
from fedkeel.learning.losses import Loss, cross_entropy, squared_hinge
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Task


@dataclass(frozen=True)
class Trace:
    """The file ``<algorithm>__<source>__<scenario>.npz``."""

    path: Path
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, path: Path) -> Trace:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return cls(path, json.loads(str(arrays.pop("meta"))), arrays)

    @property
    def hyper(self) -> dict[str, Any]:
        hyper: dict[str, Any] = self.meta["hyper"]
        return hyper

    @property
    def algorithm(self) -> str:
        return self.path.name.split("__")[0]

    @property
    def source(self) -> str:
        return self.path.name.split("__")[1]

    @property
    def rounds(self) -> int:
        return int(self.meta["rounds"])

    def federation(self) -> Federation:
        """The clients' samples; the test set, which nothing looks at, is all of them."""
        clients = range(self.meta["n_clients"])
        x = np.concatenate([self.arrays[f"x_{i}"] for i in clients]).astype(np.float32)
        y = np.concatenate([self.arrays[f"y_{i}"] for i in clients]).astype(np.int64)
        data = Split(x, np.maximum(y, 0))  # the support-vector machine's labels are −1 and 1, here 0 and 1
        names = ("a", "b") if self.meta["model"] == "svm" else ("a", "b", "c")
        dataset = Dataset("trace", data, data, len(names), names, Transform(scale=1.0), citation="", licence="")
        ends = np.cumsum([len(self.arrays[f"y_{i}"]) for i in clients])
        parts = tuple(np.arange(end - len(self.arrays[f"y_{i}"]), end) for i, end in zip(clients, ends, strict=True))
        return Federation(dataset, parts, rule={"rule": "trace"})


class RecordedSchedule:
    """Cohorts, minibatches and learning rates of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._arrays = trace.arrays
        self._name = trace.path.name

    def lr(self, round: int) -> float:
        return float(self._arrays["lr_round"][round])

    def cohort(self, round: int, clients: int) -> list[int]:
        order = self._arrays.get("cohort_order")
        if order is not None and (order[round] >= 0).any():
            return [int(client) for client in order[round] if client >= 0]
        return [int(client) for client in np.flatnonzero(self._arrays["cohort_mask"][round])]

    def batches(self, round: int, client: int, samples: int, steps: int) -> list[np.ndarray]:
        recorded = self._recorded("batches", round, client)
        if len(recorded) < steps:
            raise AssertionError(
                f"{self._name}: round {round}, client {client} takes {steps} steps here, {len(recorded)} in the trace"
            )
        return recorded[:steps]

    def pseudo_batches(self, round: int, client: int, samples: int) -> list[np.ndarray]:
        return self._recorded("pseudo_batches", round, client)

    def _recorded(self, name: str, round: int, client: int) -> list[np.ndarray]:
        rows = [row[row >= 0].astype(np.int64) for row in self._arrays[name][round, client]]
        return [row for row in rows if len(row)]


def _mlp() -> nn.Module:
    return Staged({"fc1": nn.Sequential(nn.Linear(12, 8), nn.Tanh()), "fc2": nn.Linear(8, 3)})


def _mlb() -> nn.Module:
    return Staged(
        {
            "fc0": nn.Sequential(nn.Linear(12, 8), nn.Tanh()),
            "fc1": nn.Sequential(nn.Linear(8, 6), nn.Tanh()),
            "head": nn.Linear(6, 3),
        }
    )


def _moon() -> nn.Module:
    return Staged(
        {
            "encoder": nn.Sequential(nn.Linear(12, 8), nn.Tanh()),
            "projection": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6)),
            "head": nn.Linear(6, 3),
        }
    )


def _bn() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "mlp": (_mlp, cross_entropy),
    "linear": (lambda: nn.Linear(12, 3), cross_entropy),
    "mlb": (_mlb, cross_entropy),
    "moon": (_moon, cross_entropy),
    "bn": (_bn, cross_entropy),
    "svm": (lambda: nn.Linear(12, 1, bias=False), squared_hinge(0.1)),
}


class Vectors:
    """Turns parameters and buffers into the trace's vector, which is a whole state dict where the model has buffers.

    BatchNorm's counters are left at zero: nothing reads them, and FedBN's program lets them differ between the clients
    and the server.
    """

    def __init__(self, task: Task, layout: list[Any]) -> None:
        self.counters: list[int] = []
        parameters: list[int] = []
        buffers: list[int] = []
        place = 0
        for name, shape in layout:
            places = range(place, place + (int(np.prod(shape)) if shape else 1))
            place = places.stop
            if "num_batches" in name:
                self.counters += places
            (buffers if "running_" in name or "num_batches" in name else parameters).extend(places)
        self._of_w, self._of_b = np.array(parameters), np.array(buffers, dtype=int)
        if len(self._of_w) != task.d or len(self._of_b) != task.b0.numel():
            raise AssertionError("the trace's model and ours have different sizes")

    @property
    def length(self) -> int:
        return len(self._of_w) + len(self._of_b)

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return vector[self._of_w], vector[self._of_b]

    def join(self, w: Tensor, b: Tensor) -> np.ndarray:
        vector = np.empty(self.length)
        vector[self._of_w], vector[self._of_b] = w.numpy(), b.numpy()
        return vector
