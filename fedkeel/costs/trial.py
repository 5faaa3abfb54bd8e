"""Small federations of an experiment's own samples and model, on which its algorithm is watched for a few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel import build
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import algorithm_class
from fedkeel.config import Experiment
from fedkeel.data import Dataset, Federation
from fedkeel.data.dataset import Split
from fedkeel.effects import check_effects
from fedkeel.engine import devices
from fedkeel.engine.choice import make_executor
from fedkeel.engine.executors import Executor, Serial
from fedkeel.engine.faults import check_needs
from fedkeel.engine.robust import check_robust
from fedkeel.engine.rounds import RunState
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.server import RoundRecord
from fedkeel.engine.settings import Faults, Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.losses import as_loss
from fedkeel.learning.task import Task


class Called(RandomSchedule):
    """A schedule that calls whom it is told to call."""

    ids: Sequence[int] = (0,)

    def cohort(self, round: int, clients: int) -> list[int]:
        return list(self.ids)


@dataclass(frozen=True, eq=False)
class Trial:
    """An algorithm on an experiment's data and model, of which small federations can be made."""

    experiment: Experiment
    federation: Federation
    task: Task
    algorithm: Algorithm

    @property
    def training(self) -> Training:
        return self.experiment.training

    @property
    def mean_size(self) -> int:
        """Samples of an average client, at least one."""
        return max(1, round(self.federation.n / self.federation.N))

    @property
    def mean_steps(self) -> float:
        """Local steps of an average client, unless the algorithm decides them."""
        sizes, counts = np.unique(self.federation.sizes, return_counts=True)
        steps = [self.training.local_steps(int(size)) for size in sizes]
        return float(np.average(steps, weights=counts))

    def simulation(
        self, clients: int, samples: int, executor: Executor | None = None, **training: Any
    ) -> tuple[Simulation, Called]:
        """So many clients of so many samples each, and the schedule that says who is called."""
        # Who is called is said round by round; the share is only held against what a robust rule needs.
        chosen = self.training.model_copy(update={"until": None, "participation": 1.0, "sampling": "exact", **training})
        called = Called(chosen, self.experiment.seed)
        told = self.experiment.faults
        made = Simulation(
            self.algorithm,
            self.task,
            Federation(_repeated(self.federation.dataset, clients * samples), _dealt(clients, samples), {}),
            chosen,
            self.experiment.seed,
            executor or Serial(),
            schedule=called,
            faults=Faults(bad_update=told.bad_update, max_update_norm=told.max_update_norm),  # and nobody is absent
            robust=self.experiment.robust,
        )
        return made, called

    def executor(self) -> Executor:
        """What the experiment computes its clients with."""
        run = self.experiment.run
        return make_executor(run.executor, run.workers, devices.find(run.device))


def make_trial(
    experiment: Experiment, data_dir: Path | None = None, federation: Federation | None = None, plugins: bool = False
) -> Trial:
    """The parts of an experiment; its data are read unless they are given."""
    kind = algorithm_class(experiment.algorithm.name, plugins)
    check_effects(kind, experiment.training, experiment.faults, experiment.run.executor, experiment.run.workers)
    check_needs(kind, experiment.faults)
    check_robust(kind, experiment.robust, experiment.faults)
    federation = federation or build.make_federation(experiment, data_dir)
    seed = experiment.seed if experiment.model.seed is None else experiment.model.seed
    dtype = build.DTYPES[experiment.training.dtype]
    loss, device = as_loss(experiment.model.loss), devices.find(experiment.run.device)
    task = build.make_task(experiment.model.name, federation.dataset, seed, dtype, loss, device)
    return Trial(experiment, federation, task, kind(**experiment.algorithm_params()))


def stepped(simulation: Simulation, state: RunState) -> tuple[RunState, RoundRecord]:
    """One round, after the feedback that some algorithms ask for."""
    if simulation.algorithm.observes:
        state = simulation.observe(state, simulation.feedback(state))
    return simulation.step(state)


def _repeated(dataset: Dataset, samples: int) -> Dataset:
    """So many training samples, the same ones over again where there are fewer."""
    rows = np.resize(np.arange(len(dataset.train)), samples)
    return replace(dataset, train=Split(dataset.train.x[rows], dataset.train.y[rows]), partition_labels=None)


def _dealt(clients: int, samples: int) -> tuple[Any, ...]:
    return tuple(np.arange(clients * samples, dtype=np.int64).reshape(clients, samples))
