"""Runs a simulation to its end: rounds, evaluation, and one commit a round where there is a store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field, model_validator

from fedkeel.algorithms.validate import Settings
from fedkeel.engine.averaging import Averaging, Kind
from fedkeel.engine.exchange import Fault, Model
from fedkeel.engine.names import TIMED, Noted
from fedkeel.engine.rounds import Look, Rounds, RunState
from fedkeel.engine.server import RoundRecord
from fedkeel.engine.settings import Until
from fedkeel.errors import FedkeelError, InputError
from fedkeel.learning.task import Score
from fedkeel.notices import notice
from fedkeel.runs import health
from fedkeel.runs.fairness import fairness
from fedkeel.runs.history import History, Measured, RoundSummary, mean
from fedkeel.runs.store import Store

DECAY = 0.9
"""Of an exponential average where none is given: about the last ten models count."""


class Evaluation(Settings):
    """When and on what models are evaluated."""

    every: int = Field(1, ge=1, description="evaluate after every so many rounds (and after the last)")
    train: bool = Field(False, description="also on all clients' training samples")
    clients: bool = Field(False, description="also the global model on each client's own samples")
    initial: bool = Field(False, description="also the initial model, as round 0")
    metrics: tuple[str, ...] = Field(
        (), description="what is measured beside accuracy and loss: f1 (macro); for real targets mae, mse, rmse, r2"
    )
    average: Kind | None = Field(
        None,
        description="report the average of the models over rounds in the place of the last: ema (exponential, late "
        "models count most) or swa (the plain mean from average_from on); training does not see it; absent: none",
    )
    average_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=f"β of ema: a model counts β times as much as the one after it; absent: {DECAY} with ema",
    )
    average_from: int | None = Field(
        None, ge=1, description="of swa: the first round whose model counts; until then the model itself is reported"
    )

    @model_validator(mode="after")
    def _heard(self) -> Evaluation:
        """What the chosen average does not know would have no effect."""
        owners = {"average_decay": "ema", "average_from": "swa"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.average != owner:
                raise ValueError(f"given without {name}, which has an effect with average = {owner!r} only")
        if self.average == "swa" and self.average_from is None:
            raise ValueError("given average_from, the first round whose model counts, with average = 'swa'")
        return self

    @property
    def averaging(self) -> Averaging | None:
        """The average to report, if there is to be one."""
        if self.average is None:
            return None
        if self.average == "ema":
            return Averaging("ema", decay=DECAY if self.average_decay is None else self.average_decay)
        return Averaging("swa", first=self.average_from or 1)


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every round."""

    round: int
    rounds: int
    summary: RoundSummary
    measured: list[Measured]
    """Evaluations made after this round; empty where none was due."""
    faults: tuple[Fault, ...] = ()
    """What went wrong in this round."""
    executor: str = ""
    """What computes the clients; where that is ``auto``, what it chose and why."""
    noted: Mapping[str, Noted] = field(default_factory=dict)
    """What the algorithm noted of this round, by name."""


SHORT = 5.0
"""Seconds: the model of a round that took less may be evaluated beside the next."""

ENOUGH = "until"
"""Name among the store's texts of the round after which a target was reached or a function said that it was enough."""
Watcher = Callable[[Progress], None]
"""Is told of every round, when it is committed."""
Enough = Callable[[Progress], bool]
"""Says after a round whether it is to be the last."""


class OutOfMemoryError(FedkeelError):
    """A round needed more memory than there is."""


def execute(
    simulation: Rounds,
    evaluation: Evaluation,
    store: Store | None = None,
    watch: Watcher | None = None,
    state: RunState | None = None,
    history: History | None = None,
    stop: Callable[[], bool] | None = None,
    keep_every: int = 0,
    until: Enough | None = None,
    look: Look | None = None,
) -> tuple[RunState, History]:
    """All rounds from a state (default: the first) to the last; the arguments are those of ``rounds``.

    The last is that after which ``training.until`` is reached or ``until`` says so, if they ever do. Either is asked
    when a round is committed; one that was already being trained beside its evaluation is forgotten.
    """
    if evaluation.averaging != simulation.server.averaging:
        raise InputError(
            f"the simulation must be made with the average that is to be evaluated ({evaluation.averaging}), got one "
            f"with {simulation.server.averaging}; give it averaging=evaluation.averaging."
        )
    history = history or History()
    last = begin(simulation, evaluation, store, history) if state is None else state
    seen = health.seen(history)
    target = simulation.training.until
    if reached(target, history) is not None:
        return last, history
    for after, progress in rounds(simulation, evaluation, last, history, store, stop, keep_every, look):
        last = after
        seen, concerns = seen.after(progress.summary, progress.measured)
        for concern in concerns:
            notice("health", health.advice(concern, simulation.training))
        if watch is not None:
            watch(progress)
        if (until is not None and until(progress)) or is_met(target, progress.measured):
            break
    return last, history


def reached(target: Until | None, history: History) -> int | None:
    """The first round after which the reported model met a target on the test set; None if none did."""
    if target is None:
        return None
    return next((m.round for m in history.series() if m.round > 0 and target.met(m.accuracy, m.loss)), None)


def is_met(target: Until | None, measured: Sequence[Measured]) -> bool:
    """Whether the evaluations after one round meet a target."""
    reported = next((m for m in measured if m.split == "test"), None)
    return target is not None and reported is not None and target.met(reported.accuracy, reported.loss)


def begin(simulation: Rounds, evaluation: Evaluation, store: Store | None, history: History) -> RunState:
    """The state before the first round, evaluated if that is wanted, and committed."""
    state = simulation.start()
    first = _measure(simulation, state, evaluation) if evaluation.initial else []
    history.measured += first
    if store is not None:
        store.commit(state, None, None, first)
    return state


def rounds(
    simulation: Rounds,
    evaluation: Evaluation,
    state: RunState,
    history: History,
    store: Store | None = None,
    stop: Callable[[], bool] | None = None,
    keep_every: int = 0,
    look: Look | None = None,
) -> Iterator[tuple[RunState, Progress]]:
    """Every round from a state to the last, when it is evaluated, committed and in the history.

    ``stop`` is asked after every round whether to end with it, before it is evaluated and committed; ``keep_every``
    keeps the state of every so many rounds in the store (0: only the last); ``look`` is shown every round.

    Where rounds are short and several processes work, a round's model is evaluated beside the training of the next
    round, and committed and reported then. What is computed is the same.
    """

    commit: dict[str, float] = {}

    def finished(done: Done, beside: list[Measured] | None = None) -> tuple[RunState, Progress]:
        """``beside`` is what was found beside the next round; without it, the round is evaluated now if that is due."""
        began, t = time.perf_counter(), done.state.t
        measured = (_measure(simulation, done.state, evaluation) if done.due else []) if beside is None else beside
        scores = _client_scores(simulation, done.state) if done.due and evaluation.clients else []
        evaluated = {f"{TIMED}evaluation": time.perf_counter() - began} if done.due and beside is None else {}
        record = replace(done.record, times=done.record.times | evaluated | commit)
        summary = _summary(record)
        history.rounds.append(summary)
        history.measured += measured
        history.times[t] = record.times
        if record.noted:
            history.noted[t] = record.noted
        if scores:
            history.fairness[t] = fairness([score.accuracy for _, _, score in scores])
        if store is not None:
            keep, began = keep_every > 0 and t % keep_every == 0, time.perf_counter()
            store.commit(done.state, record, summary, measured, scores, keep)
            commit[f"{TIMED}commit"] = time.perf_counter() - began  # too late for this round's own rows
        total = simulation.training.rounds
        used = simulation.executor.describe()
        return done.state, Progress(t, total, summary, measured, record.faults, used, record.noted)

    unfinished: Done | None = None
    while state.t < simulation.training.rounds:
        try:
            exam = simulation.candidates(unfinished.state) if unfinished else {}
            state, record = _next(simulation, state, exam, look)
        except Exception:
            if unfinished is not None:  # it is whole, whatever became of the one after it
                yield finished(unfinished)
            raise
        if unfinished is not None:
            yield finished(unfinished, _measured(unfinished.state.t, "test", record.scores))
            unfinished = None
        last = state.t == simulation.training.rounds
        done = Done(state, record, due=last or state.t % evaluation.every == 0)
        ends = stop is not None and stop()
        if done.due and not last and not ends and _can_wait(simulation, done, evaluation):
            unfinished = done
        else:
            yield finished(done)
        if ends:
            return


@dataclass(frozen=True)
class Done:
    """A round that is trained."""

    state: RunState
    record: RoundRecord
    due: bool
    """Whether its model is to be evaluated."""


def _can_wait(simulation: Rounds, done: Done, evaluation: Evaluation) -> bool:
    """Whether the evaluation of a round may go beside the next: nobody has to wait long, and only a test set is asked.

    A round that takes long is evaluated and committed at once, since it would be dear to lose.
    """
    test_only = not (evaluation.train or evaluation.clients)
    return test_only and simulation.can_evaluate_beside(done.state) and done.record.seconds < SHORT


def _next(
    simulation: Rounds, state: RunState, exam: dict[str, Model], look: Look | None
) -> tuple[RunState, RoundRecord]:
    try:
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        return simulation.step(state, exam, look)
    except (MemoryError, RuntimeError) as error:
        # torch has no exception of its own for this on a CPU
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemoryError(
            f"round {state.t + 1} needs more memory than there is ({_short(error)}); the last whole round is "
            f"{state.t}: try fewer workers (run.workers), a smaller model or batch, or a machine with more memory."
        ) from None


def _short(error: BaseException) -> str:
    """What an allocator says, without where in its source it says so."""
    wanted = re.search(r"tried to allocate (\d+) bytes", str(error))
    return f"no room for {int(wanted[1]):,} bytes" if wanted else type(error).__name__


def _measure(simulation: Rounds, state: RunState, evaluation: Evaluation) -> list[Measured]:
    splits = ["test", "train"] if evaluation.train else ["test"]
    return [one for split in splits for one in _measured(state.t, split, simulation.evaluate(state, split))]


def _measured(t: int, split: str, scores: dict[str, Score]) -> list[Measured]:
    return [Measured(t, name, split, score.accuracy, score.loss, score.metrics) for name, score in scores.items()]


def _client_scores(simulation: Rounds, state: RunState) -> list[tuple[int, str, Score]]:
    split = simulation.client_split(state)
    return [(i, split, score) for i, score in simulation.evaluate_clients(state).items()]


def _summary(record: RoundRecord) -> RoundSummary:
    return RoundSummary(
        round=record.t,
        lr=record.lr,
        clients=len(record.cohort),
        steps=sum(record.steps),
        samples=record.samples,
        train_loss=mean(record.losses),
        drift=mean(record.drifts),
        bytes_down=record.bytes_down,
        bytes_up=record.bytes_up,
        seconds=record.seconds,
    )
