"""The life of a run in its directory: lock, store, start, fork or resume, rounds, and the model at the end.

What is run is built before, and only once; what it was built from is an ``Experiment`` or, where data and model are
objects of a program, a ``Call``. Either is kept in the directory and compared when the run goes on, as are the data,
the model and the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from fedkeel import __version__, calls, changes, config
from fedkeel.calls import Call
from fedkeel.config import Experiment
from fedkeel.effects import not_heard
from fedkeel.engine.choice import Auto
from fedkeel.engine.robust import counts_equally
from fedkeel.engine.rounds import Rounds, RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.threads import torch_threads
from fedkeel.errors import FedkeelError, InputError
from fedkeel.measure.drift import DriftWatch
from fedkeel.notices import heard_by, notice
from fedkeel.runs import directory as run_directory
from fedkeel.runs import machine, same_data, same_model
from fedkeel.runs.fit import check_fits
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History
from fedkeel.runs.lock import RunLock
from fedkeel.runs.runner import ENOUGH, Enough, Progress, Watcher, execute, reached
from fedkeel.runs.store import Beginning, Store, StoreError, holds_run
from fedkeel.runs.watching import About, followed
from fedkeel.state.row_memory import remember_within

Why = Literal["finished", "until", "stopped"]
"""Why a run ended: its last round was done, it had reached what it was to reach, or it was asked to stop."""


@dataclass(frozen=True)
class Ending:
    """Where a run ended, and why."""

    state: RunState
    history: History
    why: Why


@dataclass(frozen=True)
class Listeners:
    """Who is told of rounds, and who may end a run."""

    watch: Watcher | None = None
    stop: Callable[[], bool] | None = None
    until: Enough | None = None


@contextmanager
def surroundings(run: config.RunConfig, directory: Path | None) -> Iterator[None]:
    """Threads and memory as a run wants them, from building it to its end."""
    budget = None if run.memory_mb is None else run.memory_mb << 20
    with torch_threads(run.threads), remember_within(budget, directory):
        yield


def conduct(
    settled: Experiment | Call,
    simulation: Rounds,
    directory: Path | None,
    listeners: Listeners,
    resume: bool = False,
    fork: Fork | None = None,
) -> Ending:
    """All rounds of what was built from ``settled``, in a directory or in memory; its executor is closed at the end."""
    with closing(simulation.executor):
        if directory is None:
            _tell(simulation)
            return _executed(settled, simulation, None, None, None, listeners)
        run_directory.make(directory)
        with RunLock(directory), closing(_opened(settled, simulation, directory, resume, fork)) as session:
            return session.to_its_end(listeners)


def _tell(simulation: Rounds) -> None:
    for found in simulation.task.notices:
        notice("model", found)
    for found in not_heard(type(simulation.algorithm), simulation.training):
        notice("settings", found)
    for found in counts_equally(simulation.server.robust, simulation.problem.sizes):
        notice("settings", found)
    if simulation.algorithm.partial and simulation.training.participation < 1:
        notice("algorithm", simulation.algorithm.partial)


@dataclass(frozen=True)
class _Session:
    """A run whose directory is locked, with its store open and everything compared."""

    settled: Experiment | Call
    simulation: Rounds
    store: Store
    state: RunState | None
    history: History | None

    def close(self) -> None:
        self.store.close()

    def to_its_end(self, listeners: Listeners) -> Ending:
        store = self.store
        if not isinstance(self.simulation, Simulation):
            store.force_to_disk()
        with heard_by(store.event):
            _tell(self.simulation)
            _choose_executor(self.simulation, store, self.state)
            before = self._enough_already(listeners)
            if before is not None and self.state is not None:
                notice("until", before)
                end = Ending(self.state, self.history or History(), "until")
            else:
                end = self._rounds(listeners)
        t, rounds = end.state.t, self.settled.training.rounds
        if end.why == "stopped":
            store.event("stopped", f"asked to stop after round {t} of {rounds}")
            return end
        store.put_meta(run_directory.MODEL, self._export(end.state))
        store.event("finished", f"round {t} was the last" + (f" of {rounds}: enough" if end.why == "until" else ""))
        return end

    def _rounds(self, listeners: Listeners) -> Ending:
        try:
            end = _executed(self.settled, self.simulation, self.store, self.state, self.history, listeners)
        except Exception as error:
            with suppress(FedkeelError):  # where nothing can be written, the error itself must still come out
                self.store.event("fault", f"{type(error).__name__}: {error}")
            raise
        if end.why == "until":
            target, t = self.settled.training.until, end.state.t
            met = reached(target, end.history) is not None
            self.store.event("until", f"round {t} reached {target}" if met else f"`until` said yes after round {t}")
            self.store.put_meta(ENOUGH, str(t))
        return end

    def _enough_already(self, listeners: Listeners) -> str | None:
        """Why nothing is left to do in a run that goes on, although not all rounds were done; None if there is."""
        if self.state is None or self.history is None:
            return None
        t, target, whose = self.state.t, self.settled.training.until, f"the run in {self.store.directory}"
        met = reached(target, self.history)
        if met is not None:
            return f"{whose} had reached {target} after round {met}: no further rounds are run"
        if listeners.until is not None and self.store.meta(ENOUGH) == str(t) and t < self.settled.training.rounds:
            return f"`until` had ended {whose} after round {t}: no further rounds are run; leave it out to go on"
        return None

    def _export(self, state: RunState) -> str:
        """Write the model of a finished run; its digest."""
        try:
            return run_directory.export_model(self.simulation, state, self.store.directory / run_directory.MODEL)
        except run_directory.ExportError as error:
            raise StoreError(f"{error}; all rounds are kept: make room, then --resume writes it.") from None


def _executed(
    settled: Experiment | Call,
    simulation: Rounds,
    store: Store | None,
    state: RunState | None,
    history: History | None,
    listeners: Listeners,
) -> Ending:
    said = False

    def until(progress: Progress) -> bool:
        nonlocal said
        said = listeners.until is not None and bool(listeners.until(progress))
        return said

    watch, stop, keep = listeners.watch, listeners.stop, settled.run.checkpoint_every
    look = None
    if settled.measure.every:
        if not isinstance(simulation, Simulation):
            raise InputError("measure.every must be 0 over sites: gradients of all clients are not to be had there.")
        look = DriftWatch(simulation, settled.measure)
    place = None if store is None else store.directory
    about = About(settled.label, place, changes.fields(settled), (history or History()).copy())
    with followed(watch, about) as outcome:
        state, history = execute(simulation, settled.evaluation, store, watch, state, history, stop, keep, until, look)
        outcome.how = ended = "until" if said else why(simulation, state, history)
    return Ending(state, history, ended)


def why(simulation: Rounds, state: RunState, history: History) -> Why:
    """Why a run is where it is, unless a function ended it."""
    if reached(simulation.training.until, history) is not None:
        return "until"
    return "finished" if state.t >= simulation.training.rounds else "stopped"


def _opened(
    settled: Experiment | Call, simulation: Rounds, directory: Path, resume: bool, fork: Fork | None
) -> _Session:
    if not holds_run(directory):
        return _started(settled, directory, simulation, fork)
    if resume:
        return _resumed(settled, directory, simulation)
    ways = "continue it with --resume, or choose another directory with --out."
    if isinstance(settled, Call):
        ways = "continue it with resume=True, or choose another directory."
    raise InputError(f"{directory} already holds a run; {ways}")


def _text(settled: Experiment | Call) -> str:
    return calls.write(settled) if isinstance(settled, Call) else config.dump(settled)


def _started(settled: Experiment | Call, directory: Path, simulation: Rounds, fork: Fork | None) -> _Session:
    first = Beginning(
        _text(settled),
        f"fedkeel {__version__}",
        {same_data.KEY: same_data.text_of(simulation.data()), same_model.KEY: same_model.text_of(simulation)}
        | simulation.records(),
    )
    if fork is None:
        run_directory.describe(directory, first.configuration)
        return _Session(settled, simulation, Store.create(directory, first), None, None)
    with closing(Store.reading(fork.directory)) as source:
        state, history = fork.read(source, simulation)
        asked = fork.other_data
        if isinstance(settled, Experiment):
            before = changes.stored(source.configuration(), fork.directory)
            asked = asked or changes.asks_for_other_data(before, settled)
        other = same_data.check_forked(source, simulation.data(), asked)
        run_directory.describe(directory, first.configuration)
        store = Store.create(directory, replace(first, changed=other), (source, state))
        return _Session(settled, simulation, store, state, history)


def _resumed(settled: Experiment | Call, directory: Path, simulation: Rounds) -> _Session:
    store = Store.open(directory)
    try:
        text, history = store.configuration(), store.history()
        if isinstance(settled, Call):
            call = changes.stored_call(text, directory)
            found = changes.allowed(call, settled, len(history.rounds), directory)
        else:
            before = changes.stored(text, directory)
            found = changes.allowed(before, settled, len(history.rounds), directory)
        state = store.read_state()
        if state is not None:
            check_fits(simulation, state, history, f"the run in {directory}")
        if isinstance(settled, Experiment):
            changes.check_shadow(before, settled, directory, known=same_data.recorded(store) is not None)
        same_data.check_resumed(store, simulation.data())
        same_model.check_resumed(store, simulation)
        for name, kept in simulation.records().items():
            if store.meta(name) is None:
                store.put_meta(name, kept)
        asked = _text(settled)
        if found:
            store.change_configuration(asked, [str(change) for change in found])
        run_directory.describe(directory, asked)
        store.event("resumed", f"fedkeel {__version__}")
    except FedkeelError:
        store.close()
        raise
    return _Session(settled, simulation, store, state, history)


def _choose_executor(simulation: Rounds, store: Store, state: RunState | None) -> None:
    """Let ``auto`` choose before the first round, and keep the choice: a resumed run must go on with the same bits.

    For the same reason clients are grouped as before, and another machine is noted and warned of.
    """
    executor = simulation.executor
    if isinstance(executor, Auto) and isinstance(simulation, Simulation):
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
