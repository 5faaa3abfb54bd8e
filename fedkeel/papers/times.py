"""How long runs take here, roughly: by records of their likes, else by arithmetic at the rate of a short trial."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

from fedkeel.papers.plan import Planned
from fedkeel.papers.records import Record, Records

TRIAL = 0.15
"""Seconds of training that the rate is measured on."""
LEAST = 0.05
"""Seconds that a round takes however small the model: clients are called, results evaluated, rounds committed."""
MEASURED = "from records of the same method and setting"
CALCULATED = (
    "from the model's arithmetic at the rate of a short trial, for all rounds; other methods than FedAvg take longer"
)


@dataclass(frozen=True)
class Estimate:
    """Seconds on one core, and how they were got."""

    seconds: float
    how: str


class Clock:
    """Estimates for runs, from what is known of others."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._known: dict[tuple[str, str, str, str], list[float]] = {}
        for record in records:
            self.learn(record)

    @classmethod
    def of(cls, *records: Records) -> Clock:
        """One that knows some folders."""
        return cls(one for some in records for one in some)

    def learn(self, record: Record) -> None:
        """A run that ended tells of its likes."""
        if record.rounds:
            where = (record.paper, record.setting, record.method, record.scale)
            self._known.setdefault(where, []).append(record.seconds / record.rounds)

    def estimate(self, run: Planned, done: int = 0) -> Estimate:
        """What is left of a run after so many rounds."""
        known = self._known.get((run.paper, run.setting, run.method, run.scale))
        rounds = max(0, run.rounds - done)
        if known:
            return Estimate(median(known) * rounds, MEASURED)
        return Estimate((work(run) / rate() + LEAST) * rounds, CALCULATED)


def work(run: Planned) -> float:
    """Floating-point operations of a round, evaluations included; those of algorithms beyond FedAvg left out."""
    from fedkeel.data.sources import SOURCES

    experiment = run.experiment
    source, training = SOURCES[experiment.data.name], experiment.training
    params = {**source.params, **(experiment.data.model_extra or {})}
    clients = int(params.get("clients", experiment.partition.clients))
    own = int(params.get("samples", 0)) * clients  # of a generated set
    samples = own or min(experiment.data.samples or source.train, source.train) or 1000 * clients
    test = source.test or samples
    train, evaluate = _flops(experiment.model.name, experiment.data.name)
    cohort = max(1.0, training.participation * clients)
    if run.like is not None:
        seen = 10.0 * cohort * training.batch_size  # ten steps for each client: nobody knows before
    elif training.steps is not None:
        seen = float(cohort * training.steps * training.batch_size)
    else:
        seen = float(training.participation * samples * (training.epochs or 1))
    looked = test + (samples if experiment.evaluation.train else 0)
    return seen * train + looked * evaluate / experiment.evaluation.every


@cache
def _flops(model: str, data: str) -> tuple[float, float]:
    """Of a training step and of an answer, for one sample, from the sizes of layers."""
    import torch
    from torch import Tensor, nn

    from fedkeel.data.sources import SOURCES
    from fedkeel.learning import models

    source = SOURCES[data]
    shape = _SHAPES.get(data, (1, 28, 28)) if not source.params else (int(source.params["features"]),)
    classes = source.classes or int(source.params["classes"])
    products: list[int] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        products.append(output.numel() * layer.weight[0].numel())

    with torch.device("meta"):  # shapes are enough: nothing is computed, and large models take no memory
        module, x = models.build(model, shape, classes).eval(), torch.zeros(2, *shape)
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        module(x)
    total = sum(products) / 2 or shape[0]
    return 6.0 * total, 2.0 * total


_SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "tiny_imagenet": (3, 64, 64)}


@cache
def rate() -> float:
    """Floating-point operations a second of training two hidden layers of 200 on one core, as measured now."""
    import torch

    from fedkeel.engine.threads import one_thread

    with one_thread():
        layers = torch.nn.Sequential(torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
        x, y = torch.zeros(50, 784), torch.zeros(50, dtype=torch.int64)
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < TRIAL or steps < 3:
            torch.nn.functional.cross_entropy(layers(x), y).backward()  # type: ignore[no-untyped-call]
            steps += 1
        return steps * 50 * 6 * (784 * 200 + 200 * 10) / (time.perf_counter() - began)
