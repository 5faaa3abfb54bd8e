"""The two calls of the Python interface: ``train`` for one run in memory or on disk, ``run`` for an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from fedkeel import arguments, build, config, session, stored
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import as_algorithm
from fedkeel.algorithms.validate import checked
from fedkeel.calls import call_of
from fedkeel.data import Federation
from fedkeel.effects import check_average, check_batches, check_effects, check_measured
from fedkeel.engine import devices
from fedkeel.engine.choice import make_executor
from fedkeel.engine.clock import Clock
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Faults, Robust, Training, Until
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError, as_html, check_seed, invalid, printable, shown, unknown
from fedkeel.learning.losses import Loss, as_loss
from fedkeel.learning.metrics import as_metrics
from fedkeel.learning.task import Score
from fedkeel.measure import at_clients
from fedkeel.measure.at_clients import Newcomers, OwnModels
from fedkeel.measure.conformal import Conformal, Method
from fedkeel.measure.conformal import conformal as measured_sets
from fedkeel.measure.prediction_sets import prediction_sets
from fedkeel.measure.settings import Measuring
from fedkeel.runs import directory as run_directory
from fedkeel.runs.fairness import Fairness, fairness
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History
from fedkeel.runs.runner import Enough, Evaluation, Watcher
from fedkeel.runs.watching import Several

Target = Mapping[str, float] | Until | Enough
"""What ``until`` may be: a result to be reached, or a function of a round's progress."""


@dataclass(frozen=True)
class Run:
    """A run that has ended: after its last round, when it had reached its target, or because it was stopped.

    ``read_run`` gives one of a directory as far as it has come.
    """

    label: str
    simulation: Simulation
    state: RunState
    history: History
    directory: Path | None = None
    ended: session.Why = "finished"
    """``finished``: after its last round; ``until``: that was reached before it; ``stopped``: ``stop`` said so."""

    def __repr__(self) -> str:
        return printable(
            f"Run({self.label!r}: {self.simulation.algorithm.title} on {self.simulation.federation.dataset.name}, "
            f"seed {self.simulation.seed}, {self.ended} after round {self.state.t}; test accuracy: "
            f"{self.history.reported()})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "algorithm": self.simulation.algorithm.title,
            "data": self.simulation.federation.dataset.name,
            "clients": str(self.simulation.federation.N),
            "seed": str(self.simulation.seed),
            "ended": f"{self.ended} after round {self.state.t}",
            **self.history.facts(),
            "directory": "in memory" if self.directory is None else str(self.directory),
        }
        return as_html(f"Run {self.label}", facts)

    @property
    def accuracy(self) -> float:
        """Test accuracy of the reported model after the last round, in [0, 1]; NaN where none is measured.

        ``history.reported()`` also has the mean of the last 10 % of the rounds and the best.
        """
        last = self.history.final()
        return float("nan") if last is None else last.accuracy

    @property
    def notices(self) -> tuple[str, ...]:
        """What was found about the model before the first round, such as that it needs the slower way of computing."""
        return tuple(self.simulation.task.notices)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that were asked for, of the reported model after the last round."""
        last = self.history.final()
        return {} if last is None else dict(last.metrics)

    def evaluate_clients(self) -> dict[int, Score]:
        """What each client would use, on its own test samples (its training samples where it has no test set)."""
        return self.simulation.evaluate_clients(self.state)

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round that reached a test accuracy; None if none did."""
        if math.isnan(self.accuracy):
            raise InputError(
                f"rounds_to asks for an accuracy, but none was measured: under the loss "
                f"{self.simulation.task.loss.name} no answer is right or wrong. See history.series()."
            )
        return self.history.rounds_to(accuracy)

    def conformal(self, method: Method = "raps", alpha: float = 0.1, **options: Any) -> Conformal:
        """Prediction sets of the global model that hold the right label with probability 1 − ``alpha``; measured.

        ``method`` is ``lac``, ``aps`` or ``raps``. Half of the test set (``calibration=0.5``) calibrates, the rest is
        measured; ``by="federated"`` or ``"client"`` calibrates on clients' own test samples. Further options:
        ``randomised``, ``tuning``, ``temperature``, ``levels``, ``seed`` and, of this run, ``on`` and ``model``; see
        ``fedkeel.measure.conformal``.
        """
        return _prediction_sets(self.simulation, self.state, method, alpha, options)

    def fairness(self) -> Fairness:
        """How evenly clients are served: mean, worst tenth, spread and Jain's index of ``evaluate_clients``."""
        return fairness([score.accuracy for score in self.evaluate_clients().values()])

    def newcomers(self) -> Newcomers:
        """What ``evaluate_clients`` finds at clients that never took part in the run, and at those that did."""
        return at_clients.newcomers(self.simulation, self.state)

    def fine_tuned(self, epochs: int = 1) -> OwnModels:
        """Accuracy at each client, on its own test samples, before and after some epochs on its own training samples.

        The run itself stays as it is. The learning rate is that of its last round; this costs about as much as
        ``epochs`` epochs of all clients.
        """
        return at_clients.fine_tuned(self.simulation, self.state, arguments.whole("epochs", epochs, 1))

    def local_only(self, rounds: int | None = None) -> OwnModels:
        """Accuracy at each client, on its own test samples, of the global model and of one that it trains alone.

        Each starts from the initial model and takes as many steps as in ``rounds`` rounds of the run: by default as
        many rounds as clients took part in on average, so that this costs as much as the run did.
        """
        if rounds is None:
            rounds = max(1, round(sum(one.clients for one in self.history.rounds) / self.simulation.N))
        return at_clients.local_only(self.simulation, self.state, arguments.whole("rounds", rounds, 1))

    def state_dict(self) -> dict[str, Tensor]:
        """The global model, or the average over rounds that is reported, for ``torch.nn.Module.load_state_dict``."""
        result = self.simulation.reported(self.state)
        return self.simulation.task.state_dict(result.server.w, result.b)

    def save_model(self, path: str | Path) -> None:
        """Write the model of ``state_dict`` as safetensors, in the place of a file that is there already."""
        try:
            run_directory.export_model(self.simulation, self.state, arguments.path("path", path))
        except run_directory.ExportError as error:
            raise InputError(f"{error}; make room and the folder writable, or choose another path.") from None


def conformal(
    run: Run | str | Path,
    method: Method = "raps",
    alpha: float = 0.1,
    *,
    data_dir: str | Path | None = None,
    allow_plugins: bool = False,
    **options: Any,
) -> Conformal:
    """Prediction sets of a run's global model, given the run or the directory of an experiment's: see `Run.conformal`.

    Of a directory it is the model after the last whole round, on the data that the run began with; nothing is written.
    """
    if isinstance(run, Run):
        return run.conformal(method, alpha, **options)
    folder = arguments.path("run", run)
    data_dir = None if data_dir is None else arguments.path("data_dir", data_dir)
    simulation, state, _ = stored.read_run(folder, data_dir, arguments.flag("allow_plugins", allow_plugins))
    return _prediction_sets(simulation, state, method, alpha, options)


def read_run(directory: str | Path, *, data_dir: str | Path | None = None, allow_plugins: bool = False) -> Run:
    """The run of an experiment in a directory, as far as it has come, to look at; nothing is written.

    Its data must be those that it began with. A run that is not at its last round counts as ``stopped``.
    """
    folder = arguments.path("directory", directory)
    data_dir = None if data_dir is None else arguments.path("data_dir", data_dir)
    simulation, state, history = stored.read_run(folder, data_dir, arguments.flag("allow_plugins", allow_plugins))
    return Run(folder.name, simulation, state, history, folder, session.why(simulation, state, history))


def _prediction_sets(
    simulation: Simulation, state: RunState, method: Method, alpha: float, options: dict[str, Any]
) -> Conformal:
    known = [
        name
        for function in (prediction_sets, measured_sets)
        for name, one in signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY and name not in ("clients", "method", "alpha")
    ]
    for name in options:
        if name not in known:
            raise unknown("option of conformal", name, known)
    return prediction_sets(simulation, state, method=method, alpha=alpha, **options)


def train(
    algorithm: str | Algorithm | type[Algorithm],
    *,
    model: str | nn.Module = "2nn",
    data: Federation,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    loss: str | Loss | nn.Module | Callable[[Tensor, Tensor], Tensor] | None = None,
    metrics: Sequence[str] | Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None,
    faults: Faults | dict[str, Any] | None = None,
    robust: Robust | dict[str, Any] | None = None,
    clock: Clock | dict[str, Any] | None = None,
    evaluate_every: int = 1,
    average: Literal["ema", "swa"] | None = None,
    average_decay: float | None = None,
    average_from: int | None = None,
    measure: Measuring | dict[str, Any] | None = None,
    executor: str = "auto",
    workers: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    address: str | None = None,
    watch: Watcher | Sequence[Watcher] | None = None,
    until: Target | None = None,
    stop: Callable[[], bool] | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    **training: Any,
) -> Run:
    """Train a model over the clients of a federation.

    ``algorithm`` is a name or a class (with ``params``, its parameters) or an ``Algorithm`` object; ``model`` a name of
    the zoo or any ``torch.nn.Module``; ``training`` are the fields of ``Training``: rounds, participation, epochs or
    steps, batch_size, lr, lr_schedule, optimiser, momentum, weight_decay, clip, …; ``faults`` what goes wrong with
    clients, and what is done about updates that are not finite or too long, e.g. ``{"dropout": 0.1, "bad_update":
    "skip-client"}``; ``robust`` a rule in the place of the server's mean that bears hostile uploads, e.g. ``{"rule":
    "trimmed-mean", "f": 2}``; ``clock`` how fast clients compute and send, when they are online and how long the server
    waits, in virtual seconds, e.g. ``{"speed": 200, "speed_sigma": 1, "deadline": 60}``.

    ``loss`` is one of torch's (``nn.MSELoss()``, ``nn.BCEWithLogitsLoss()``, …), a name (``"mse"``), a function of
    outputs and targets that gives one value for each sample, or a ``Loss``; by default the cross-entropy that
    classification asks for.
    ``metrics`` are measured beside accuracy and loss (``Run.metrics``, ``history.series()``): names such as ``["f1"]``
    or ``["mae", "r2"]``, or functions by name that give one value for each sample.

    ``measure`` asks for drift to be measured every so many rounds, e.g. ``{"every": 10}``, or with the gradients of 20
    clients only ``{"every": 10, "clients": 20}``; ``history.values("measure.gamma")`` and its kin hold it. It costs a
    pass over the samples of those clients each time, and changes no bit of the run.

    ``average`` reports the average of the models over rounds in the place of the last: ``"ema"``, an exponential one
    (``average_decay``, by default 0.9), or ``"swa"``, the plain mean from round ``average_from`` on. Training does not
    see it; it costs one more evaluation, and the model of the last round is evaluated beside it.

    ``executor`` is ``auto``, ``serial``, ``pool``, ``stacked`` or ``ray``. ``serial``, ``pool`` and ``ray`` give the
    same bits on machines of one kind; ``stacked``, which ``auto`` may take, gives the same numbers up to round-off.
    ``ray`` joins the Ray cluster at ``address`` (``host:port``, or ``auto``); without one it starts its own here.
    ``threads`` are torch's in this process while it trains: one, since several processes with one thread each are
    faster. ``device`` is where clients compute: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

    ``watch(progress)`` is called after every round with its number, its summary and the evaluations that were due; it
    may be a list of functions, and ``fedkeel.trackers`` has some that write for TensorBoard, MLflow or W&B.
    ``until`` ends training early: ``{"accuracy": 0.98}`` or ``{"loss": 0.1}`` after the first evaluated round whose
    test result reaches it, or a function of the progress after the round for which it returns True. ``stop()`` is asked
    after every round whether to end with it. Whatever ends training, the run so far is returned; ``run.ended`` says
    what it was.

    ``directory`` keeps the run on disk, round by round: a call that is interrupted, or that asks for more rounds, goes
    on with ``resume=True`` and gives the same bits as one that was not. It must be the same call: settings, data, model
    (layers, initial weights, answers) and algorithm are compared with those of the first start, and what differs is
    named. A module of your own has the same initial weights if ``torch.manual_seed`` comes before it is made. With
    ``resume=True`` a directory without a run starts one.
    """
    _require_federation(data)
    seed = check_seed("seed", seed)
    chosen = as_algorithm(algorithm, params)
    settings, enough = _until(_training(chosen, training), until)
    check_batches(settings, int(data.sizes.max()))
    if not isinstance(faults, Faults):
        faults = checked("faults", Faults, {} if faults is None else faults)
    if not isinstance(robust, Robust):
        robust = checked("robust", Robust, {} if robust is None else robust)
    if not isinstance(clock, Clock):
        clock = checked("clock", Clock, {} if clock is None else clock)
    if not isinstance(measure, Measuring):
        measure = checked("measure", Measuring, {} if measure is None else measure)
    check_measured(measure, data)
    measures = as_metrics(metrics)
    averages = {"average": average, "average_decay": average_decay, "average_from": average_from}
    every = arguments.whole("evaluate_every", evaluate_every, 1)
    evaluation = checked("", Evaluation, {"every": every, "metrics": tuple(measures), **averages})
    check_average(evaluation, settings, lambda name: name.rpartition(".")[2])
    threads = arguments.whole("threads", threads, 1)
    workers = None if workers is None else arguments.whole("workers", workers, 1, hint="None is one per core.")
    listeners = _listeners(watch, stop, enough)
    folder, resume = (
        None if directory is None else arguments.path("directory", directory),
        arguments.flag("resume", resume),
    )
    if resume and folder is None:
        raise InputError(
            "resume must go with directory, the one that holds the run; a run in memory is gone at its end."
        )
    place = devices.find(device, "device")
    address = None if address is None else arguments.text("address", address)
    made = make_executor(executor, workers, place, "", address)
    check_effects(type(chosen), settings, faults, executor, workers, address, lambda name: name.rpartition(".")[2])
    asked = {"executor": executor, "workers": workers, "threads": threads, "device": str(place), "address": address}
    how = checked("", config.RunConfig, asked)
    call = call_of(chosen, seed, settings, faults, robust, clock, evaluation, measure, how)
    with session.surroundings(how, folder):
        task = build.make_task(model, data.dataset, seed, build.DTYPES[settings.dtype], as_loss(loss), place)
        task.metrics = measures
        averaging = evaluation.averaging
        simulation = Simulation(
            chosen, task, data, settings, seed, made, faults=faults, robust=robust, averaging=averaging, clock=clock
        )
        end = session.conduct(call, simulation, folder, listeners, resume)
    return Run(chosen.name, simulation, end.state, end.history, folder, end.why)


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


def _until(training: Training, until: Target | None) -> tuple[Training, Enough | None]:
    """A target as a setting of training, a function as what it is."""
    if until is None or (callable(until) and not isinstance(until, Mapping | Until)):
        return training, until
    if not isinstance(until, Mapping | Until):
        raise invalid("until", 'a table such as {"accuracy": 0.98} or a function of a round\'s progress', until)
    target = until if isinstance(until, Until) else checked("until", Until, until)
    return training.model_copy(update={"until": target}), None


def _listeners(
    watch: Watcher | Sequence[Watcher] | None, stop: Callable[[], bool] | None, until: Enough | None
) -> session.Listeners:
    told: list[Watcher] = list(watch) if isinstance(watch, list | tuple) else [watch] if watch is not None else []  # type: ignore[list-item]
    for one in told:
        arguments.function("watch", one, "a round's progress")
    return session.Listeners(
        told[0] if len(told) == 1 else Several(told) if told else None,
        None if stop is None else arguments.function("stop", stop),
        until,
    )


def run(
    experiment: config.Experiment,
    directory: str | Path,
    *,
    data_dir: str | Path | None = None,
    federation: Federation | None = None,
    resume: bool = False,
    fork: Fork | str | Path | None = None,
    allow_plugins: bool = False,
    watch: Watcher | Sequence[Watcher] | None = None,
    until: Target | None = None,
    stop: Callable[[], bool] | None = None,
    built: Callable[[Simulation], None] | None = None,
) -> Run:
    """Run an experiment in a directory of its own.

    ``resume`` goes on after the last whole round where the directory holds a run already; ``fork`` lets a new run start
    from the state of another. ``watch``, ``until`` and ``stop`` are as for ``train``; a target given as ``until`` takes
    the place of ``training.until``. ``built`` is told once what will be run, before anything is written. An algorithm
    named ``module:Class`` is imported only with ``allow_plugins``.

    A run keeps digests of its data, given as ``federation`` or named by the experiment, and goes on with no others. A
    fork has other data only if the experiment names others than the old run's, or with ``Fork(…, other_data=True)``.
    With ``federation`` nothing that the experiment says of data and partition is used, or kept as if it had been.
    """
    hint = "fedkeel.config.read(path) gives the experiments of a file."
    experiment = arguments.instance("experiment", experiment, config.Experiment, "an Experiment", hint)
    directory = arguments.path("directory", directory)
    data_dir = None if data_dir is None else arguments.path("data_dir", data_dir)
    if federation is not None:
        arguments.instance("federation", federation, Federation, "a Federation")
    resume, allow_plugins = arguments.flag("resume", resume), arguments.flag("allow_plugins", allow_plugins)
    fork = Fork.of(fork)
    training, enough = _until(experiment.training, until)
    experiment = experiment.model_copy(update={"training": training})
    listeners = _listeners(watch, stop, enough)
    built = None if built is None else arguments.function("built", built, "the simulation")
    with session.surroundings(experiment.run, directory):
        simulation = build.make_simulation(experiment, data_dir, federation, allow_plugins)
        if built is not None:
            built(simulation)
        settled = experiment if federation is None else experiment.of_given_data()
        end = session.conduct(settled, simulation, directory, listeners, resume, fork)
    return Run(experiment.label, simulation, end.state, end.history, directory, end.why)
