"""fedkeel itself as it is measured: a real simulation, run and evaluated as ``fedkeel run`` does it."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedkeel import build
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.bench.works import LR, Images, Size, Work, make_model
from fedkeel.data import Federation, from_arrays
from fedkeel.engine.choice import Auto, make_executor
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.runs.history import History
from fedkeel.runs.runner import Evaluation, begin, rounds
from fedkeel.runs.store import Store

DEFAULT_EXECUTOR = "auto"
TRAINED_ONLY = ", not evaluated"
UNLIMITED = 1_000_000
"""Rounds of the experiment; a measurement stops long before."""


def make_federation(size: Size, images: Images) -> Federation:
    """The images dealt to clients in the order in which they lie."""
    dataset = from_arrays(images.x, images.y, images.x_test, images.y_test, name="benchmark images")
    parts = np.arange(size.clients * size.samples, dtype=np.int64).reshape(size.clients, size.samples)
    return Federation(dataset, tuple(parts), {"name": "in order", "clients": size.clients})


class Simulator:
    """One algorithm with one executor; with a directory, every round is committed to a store there.

    Rounds follow each other as in a run, each evaluated beside the training of the next where the runner does so.
    """

    def __init__(
        self,
        work: Work,
        size: Size,
        federation: Federation,
        algorithm: str,
        executor: str,
        workers: int,
        directory: Path | None = None,
        evaluate: bool = True,
    ) -> None:
        self.name = algorithm + (", durable" if directory is not None else "" if evaluate else TRAINED_ONLY)
        training = Training(
            rounds=UNLIMITED,
            participation=size.cohort / size.clients,
            epochs=size.epochs,
            batch_size=size.batch,
            lr=LR,
        )
        task = build.make_task(make_model(work), federation.dataset, 0, build.DTYPES[training.dtype])
        made = make_algorithm(algorithm)
        self.simulation = Simulation(made, task, federation, training, 0, make_executor(executor, workers))
        evaluation = Evaluation(every=1 if evaluate else UNLIMITED)
        self.history = History()
        self._store = Store.create(directory) if directory is not None else None
        first = begin(self.simulation, evaluation, self._store, self.history)
        self._rounds = rounds(self.simulation, evaluation, first, self.history, self._store)

    def run(self, count: int) -> list[float]:
        """Seconds of each of some rounds: training, aggregation, evaluation and, if durable, the commit."""
        ends = [time.perf_counter()]
        for _ in range(count):
            next(self._rounds)
            ends.append(time.perf_counter())
        return [after - before for before, after in pairwise(ends)]

    @property
    def executor(self) -> str:
        """What computes the clients, by name; where ``auto`` was asked for, what that took in the first round."""
        executor = self.simulation.executor
        chosen = executor.choice if isinstance(executor, Auto) else None
        return executor.name if chosen is None else chosen.executor

    @property
    def choice(self) -> str:
        """What computes the clients, and why."""
        return self.simulation.executor.describe()

    def close(self) -> None:
        self.simulation.executor.close()
        if self._store is not None:
            self._store.close()
