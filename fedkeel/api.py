"""The two calls of the Python interface: ``train`` for one run in memory or on disk, ``run`` for an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel import build, config
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.validate import checked
from fedkeel.data import Federation
from fedkeel.engine.choice import make_executor
from fedkeel.engine.settings import Faults, Training
from fedkeel.engine.simulation import RunState, Simulation
from fedkeel.errors import InputError, invalid
from fedkeel.learning.losses import Loss
from fedkeel.runs import directory as run_directory
from fedkeel.runs.history import History
from fedkeel.runs.runner import Evaluation, Watcher, execute
from fedkeel.runs.store import Store


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run."""

    label: str
    simulation: Simulation
    state: RunState
    history: History
    directory: Path | None = None

    @property
    def accuracy(self) -> float:
        """Test accuracy of the reported model after the last round, in [0, 1]."""
        last = self.history.final()
        return float("nan") if last is None else last.accuracy

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round that reached a test accuracy; None if none did."""
        return self.history.rounds_to(accuracy)

    def state_dict(self) -> dict[str, Tensor]:
        """The global model for ``torch.nn.Module.load_state_dict``."""
        return self.simulation.task.state_dict(self.state.server.w, self.state.b)

    def save_model(self, path: str | Path) -> None:
        """Write the global model as safetensors."""
        run_directory.export_model(self.simulation, self.state, Path(path))


def train(
    algorithm: str | Algorithm,
    *,
    model: str | nn.Module = "2nn",
    data: Federation,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    loss: Loss | None = None,
    faults: Faults | dict[str, Any] | None = None,
    evaluate_every: int = 1,
    executor: str = "serial",
    workers: int | None = None,
    watch: Watcher | None = None,
    **training: Any,
) -> Run:
    """Train a model over the clients of a federation.

    ``algorithm`` is a name (with ``params``, its own parameters) or an ``Algorithm`` object; ``model`` a name of the
    zoo or any ``torch.nn.Module``; ``training`` are the fields of ``Training``: rounds, participation, epochs or
    steps, batch_size, lr, lr_decay, momentum, weight_decay, clip, …; ``faults`` what goes wrong with clients, and what
    is done about updates that are not finite or too long, e.g. ``{"dropout": 0.1, "bad_update": "skip-client"}``.
    """
    _require_federation(data)
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, **(params or {}))
    elif params:
        raise InputError("params go with the name of an algorithm; an Algorithm object has its own already.")
    settings = checked("training", Training, training)
    if not isinstance(faults, Faults):
        faults = checked("faults", Faults, faults or {})
    task = build.make_task(model, data.dataset, seed, build.DTYPES[settings.dtype], loss)
    simulation = Simulation(algorithm, task, data, settings, seed, make_executor(executor, workers), faults=faults)
    try:
        state, history = execute(simulation, Evaluation(every=evaluate_every), watch=watch)
    finally:
        simulation.executor.close()
    return Run(algorithm.name, simulation, state, history)


def _require_federation(data: object) -> None:
    if not isinstance(data, Federation):
        hint = "Deal a data set to clients first: fedkeel.data.load('mnist5k').partition('dirichlet', clients=50)."
        raise invalid("data", "a Federation", type(data).__name__, hint)


def run(
    experiment: config.Experiment,
    directory: Path,
    *,
    data_dir: Path | None = None,
    federation: Federation | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
) -> Run:
    """Run an experiment in a directory of its own; with ``resume``, go on after its last whole round."""
    torch.set_num_threads(experiment.run.threads)
    simulation = build.make_simulation(experiment, data_dir, federation)
    state, history = None, None
    if resume and (directory / run_directory.CONFIGURATION).exists():
        _check_same(experiment, directory)
        store = Store.open(directory)
        state, history = store.read_state(), store.history()
    else:
        run_directory.prepare(directory, config.dump(experiment))
        store = Store.create(directory)
    try:
        state, history = execute(simulation, experiment.evaluation, store, watch, state, history)
    finally:
        store.close()
        simulation.executor.close()
    run_directory.export_model(simulation, state, directory / run_directory.MODEL)
    return Run(experiment.label, simulation, state, history, directory)


def _check_same(experiment: config.Experiment, directory: Path) -> None:
    before = (directory / run_directory.CONFIGURATION).read_text(encoding="utf-8").splitlines()
    now = config.dump(experiment).splitlines()
    if before == now:
        return
    was, wants = [line for line in before if line not in now], [line for line in now if line not in before]
    raise InputError(
        f"the run in {directory} was started with another configuration (it has {'; '.join(was) or 'less'}, "
        f"asked for: {'; '.join(wants) or 'less'}); resume it as it was, or start anew with --out."
    )
