"""The two calls of the Python interface: ``train`` for one run in memory or on disk, ``run`` for an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedkeel import __version__, arguments, build, changes, config
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import as_algorithm
from fedkeel.algorithms.row_memory import remember_within
from fedkeel.algorithms.validate import checked
from fedkeel.data import Federation
from fedkeel.effects import check_batches
from fedkeel.engine import devices
from fedkeel.engine.choice import Auto, make_executor
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Faults, Training
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.threads import torch_threads
from fedkeel.errors import FedkeelError, InputError, check_seed, shown, unknown
from fedkeel.learning.losses import Loss, as_loss
from fedkeel.notices import heard_by, notice
from fedkeel.runs import directory as run_directory
from fedkeel.runs import machine, same_data
from fedkeel.runs.fit import check_fits
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History
from fedkeel.runs.lock import RunLock
from fedkeel.runs.runner import Evaluation, Watcher, execute
from fedkeel.runs.store import Store, StoreError, holds_run


class StoppedError(FedkeelError):
    """A run ended early because it was asked to; all rounds up to ``round`` are committed."""

    def __init__(self, directory: Path, round: int, rounds: int) -> None:
        super().__init__(f"stopped after round {round} of {rounds}, which is kept in {directory}")
        self.directory, self.round, self.rounds = directory, round, rounds


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

    @property
    def notices(self) -> tuple[str, ...]:
        """What was found about the model before the first round, such as that it needs the slower way of computing."""
        return tuple(self.simulation.task.notices)

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round that reached a test accuracy; None if none did."""
        return self.history.rounds_to(accuracy)

    def state_dict(self) -> dict[str, Tensor]:
        """The global model for ``torch.nn.Module.load_state_dict``."""
        return self.simulation.task.state_dict(self.state.server.w, self.state.b)

    def save_model(self, path: str | Path) -> None:
        """Write the global model as safetensors, in the place of a file that is there already."""
        try:
            run_directory.export_model(self.simulation, self.state, arguments.path("path", path))
        except run_directory.ExportError as error:
            raise InputError(f"{error}; make room and the folder writable, or choose another path.") from None


def train(
    algorithm: str | Algorithm | type[Algorithm],
    *,
    model: str | nn.Module = "2nn",
    data: Federation,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    loss: Loss | nn.CrossEntropyLoss | None = None,
    faults: Faults | dict[str, Any] | None = None,
    evaluate_every: int = 1,
    executor: str = "auto",
    workers: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    watch: Watcher | None = None,
    **training: Any,
) -> Run:
    """Train a model over the clients of a federation.

    ``algorithm`` is a name or a class (with ``params``, its parameters) or an ``Algorithm`` object; ``model`` a name of
    the zoo or any ``torch.nn.Module``; ``training`` are the fields of ``Training``: rounds, participation, epochs or
    steps, batch_size, lr, lr_decay, momentum, weight_decay, clip, …; ``faults`` what goes wrong with clients, and what
    is done about updates that are not finite or too long, e.g. ``{"dropout": 0.1, "bad_update": "skip-client"}``.

    ``executor`` is ``auto``, ``serial``, ``pool`` or ``stacked``. ``serial`` and ``pool`` give the same bits on a
    machine; ``stacked``, which ``auto`` may take, gives the same numbers up to round-off. ``threads`` are torch's in
    this process while it trains: one, since several processes with one thread each are faster. ``device`` is where
    clients compute: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
    """
    _require_federation(data)
    seed = check_seed("seed", seed)
    chosen = as_algorithm(algorithm, params)
    settings = _training(chosen, training)
    check_batches(settings, data)
    if not isinstance(faults, Faults):
        faults = checked("faults", Faults, {} if faults is None else faults)
    evaluation = Evaluation(every=arguments.whole("evaluate_every", evaluate_every, 1))
    threads = arguments.whole("threads", threads, 1)
    workers = None if workers is None else arguments.whole("workers", workers, 1, hint="None is one per core.")
    watch = None if watch is None else arguments.function("watch", watch, "a round's progress")
    place = devices.find(device, "device")
    task = build.make_task(model, data.dataset, seed, build.DTYPES[settings.dtype], as_loss(loss), place)
    made = make_executor(executor, workers, place, "")
    with torch_threads(threads), remember_within(None), closing(made):
        simulation = Simulation(chosen, task, data, settings, seed, made, faults=faults)
        for found in task.notices:
            notice("model", found)
        state, history = execute(simulation, evaluation, watch=watch)
    return Run(chosen.name, simulation, state, history)


def _require_federation(data: object) -> None:
    hint = "Deal a data set to clients first: fedkeel.data.load('mnist5k').partition('dirichlet', clients=50)."
    arguments.instance("data", data, Federation, "a Federation", hint)


def _training(algorithm: Algorithm, given: dict[str, Any]) -> Training:
    """The settings of training among the arguments of ``train``; others are told where they belong."""
    for name, value in given.items():
        if name in Training.model_fields:
            continue
        if name in type(algorithm.params).model_fields:
            raise InputError(
                f"{name} is a parameter of {algorithm.name}: give it as params={{{name!r}: {shown(value)}}}."
            )
        raise unknown("argument of train", name, [*signature(train).parameters, *Training.model_fields])
    return checked("", Training, given)


def run(
    experiment: config.Experiment,
    directory: str | Path,
    *,
    data_dir: str | Path | None = None,
    federation: Federation | None = None,
    resume: bool = False,
    fork: Fork | str | Path | None = None,
    allow_plugins: bool = False,
    watch: Watcher | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Run an experiment in a directory of its own.

    ``resume`` goes on after the last whole round where the directory holds a run already; ``fork`` lets a new run start
    from the state of another. ``stop`` is asked after every committed round; where it says yes, ``StoppedError`` is
    raised. An algorithm named ``module:Class`` is imported only with ``allow_plugins``.

    A run keeps digests of its data, given as ``federation`` or named by the experiment, and goes on with no others. A
    fork has other data only if the experiment names others than the old run's, or with ``Fork(…, other_data=True)``.
    """
    hint = "fedkeel.config.read(path) gives the experiments of a file."
    experiment = arguments.instance("experiment", experiment, config.Experiment, "an Experiment", hint)
    directory = arguments.path("directory", directory)
    data_dir = None if data_dir is None else arguments.path("data_dir", data_dir)
    if federation is not None:
        arguments.instance("federation", federation, Federation, "a Federation")
    resume, allow_plugins = arguments.flag("resume", resume), arguments.flag("allow_plugins", allow_plugins)
    fork = Fork.of(fork)
    watch = None if watch is None else arguments.function("watch", watch, "a round's progress")
    stop = None if stop is None else arguments.function("stop", stop)
    budget = experiment.run.memory_mb
    with torch_threads(experiment.run.threads), remember_within(None if budget is None else budget << 20, directory):
        return _run(experiment, directory, data_dir, federation, resume, fork, allow_plugins, watch, stop)


def _run(
    experiment: config.Experiment,
    directory: Path,
    data_dir: Path | None,
    federation: Federation | None,
    resume: bool,
    fork: Fork | None,
    allow_plugins: bool,
    watch: Watcher | None,
    stop: Callable[[], bool] | None,
) -> Run:
    simulation = build.make_simulation(experiment, data_dir, federation, allow_plugins)
    run_directory.make(directory)
    with RunLock(directory):
        if not holds_run(directory):
            store, state, history = _started(experiment, directory, simulation, fork)
        elif resume:
            store, state, history = _resumed(experiment, directory, simulation)
        else:
            raise InputError(
                f"{directory} already holds a run; continue it with --resume, or choose another directory with --out."
            )
        try:
            with heard_by(store.event):
                for found in simulation.task.notices:
                    notice("model", found)
                _choose_executor(simulation, store, state)
                state, history = _executed(experiment, simulation, store, state, history, watch, stop)
            if state.t < experiment.training.rounds:
                store.event("stopped", f"asked to stop after round {state.t} of {experiment.training.rounds}")
                raise StoppedError(directory, state.t, experiment.training.rounds)
            store.put_meta(run_directory.MODEL, _export(simulation, state, directory))
            store.event("finished", f"round {state.t} was the last")
        finally:
            store.close()
            simulation.executor.close()
    return Run(experiment.label, simulation, state, history, directory)


def _export(simulation: Simulation, state: RunState, directory: Path) -> str:
    """Write the model of a finished run; its digest."""
    try:
        return run_directory.export_model(simulation, state, directory / run_directory.MODEL)
    except run_directory.ExportError as error:
        raise StoreError(f"{error}; all rounds are kept: make room, then --resume writes it.") from None


def _started(
    experiment: config.Experiment, directory: Path, simulation: Simulation, fork: Fork | None
) -> tuple[Store, RunState | None, History | None]:
    configuration, version = config.dump(experiment), f"fedkeel {__version__}"
    if fork is None:
        run_directory.describe(directory, configuration)
        return _with_data(Store.create(directory, configuration, text=version), simulation, None), None, None
    with closing(Store.reading(fork.directory)) as source:
        state, history = fork.read(source, simulation)
        before = changes.stored(source.configuration(), fork.directory)
        asked = fork.other_data or changes.asks_for_other_data(before, experiment)
        other = same_data.check_forked(source, simulation.federation, asked)
        run_directory.describe(directory, configuration)
        store = Store.create(directory, configuration, (source, state), version)
        return _with_data(store, simulation, other), state, history


def _with_data(store: Store, simulation: Simulation, other: str | None) -> Store:
    """Keep in a new store what its data are, and say in its diary where they are other than its parent's."""
    try:
        same_data.record(store, simulation.federation)
        if other is not None:
            store.event("changed", other)
    except FedkeelError:
        store.close()
        raise
    return store


def _resumed(
    experiment: config.Experiment, directory: Path, simulation: Simulation
) -> tuple[Store, RunState | None, History]:
    store = Store.open(directory)
    try:
        before, history = changes.stored(store.configuration(), directory), store.history()
        found = changes.allowed(before, experiment, len(history.rounds), directory)
        state = store.read_state()
        if state is not None:
            check_fits(simulation, state, history, f"the run in {directory}")
        changes.check_shadow(before, experiment, directory, known=same_data.recorded(store) is not None)
        same_data.check_resumed(store, simulation.federation)
        text = config.dump(experiment)
        if found:
            store.change_configuration(text, [str(change) for change in found])
        run_directory.describe(directory, text)
        store.event("resumed", f"fedkeel {__version__}")
    except FedkeelError:
        store.close()
        raise
    return store, state, history


def _choose_executor(simulation: Simulation, store: Store, state: RunState | None) -> None:
    """Let ``auto`` choose before the first round, and keep the choice: a resumed run must go on with the same bits.

    For the same reason clients are grouped as before, and another machine is noted and warned of.
    """
    executor = simulation.executor
    if isinstance(executor, Auto):
        kept = store.meta("executor")
        if kept is None:
            choice = executor.choose(simulation.job(state or simulation.start()).on(simulation.task.device))
            store.put_meta("executor", json.dumps(asdict(choice)))
            store.event("executor", executor.describe())
        else:
            executor.decide(machine.chosen(kept, store.directory))
    record = store.meta(machine.KEY)
    was = None if record is None else machine.recorded(record, store.directory)
    if was is not None and was.executor == machine.taken(executor):
        executor.keep(was.lanes)
    now = machine.here(executor, simulation.task.device)
    done = store.rounds_done()
    if was is not None and done > 0 and (found := machine.differences(was, now)):
        notice("machine", machine.warning(found, done))
    if now != was:
        store.put_meta(machine.KEY, now.model_dump_json())


def _executed(
    experiment: config.Experiment,
    simulation: Simulation,
    store: Store,
    state: RunState | None,
    history: History | None,
    watch: Watcher | None,
    stop: Callable[[], bool] | None,
) -> tuple[RunState, History]:
    try:
        return execute(
            simulation, experiment.evaluation, store, watch, state, history, stop, experiment.run.checkpoint_every
        )
    except Exception as error:
        with suppress(FedkeelError):  # where nothing can be written, the error itself must still come out
            store.event("fault", f"{type(error).__name__}: {error}")
        raise
