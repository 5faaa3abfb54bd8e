"""Runs a simulation to its end: rounds, evaluation, and one commit a round where there is a store."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from fedkeel.engine.faults import Fault
from fedkeel.engine.simulation import RoundRecord, RunState, Simulation
from fedkeel.errors import FedkeelError
from fedkeel.runs.history import History, Measured, RoundSummary, mean
from fedkeel.runs.store import Store


class Evaluation(BaseModel):
    """When and on what models are evaluated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(1, ge=1, description="evaluate after every so many rounds (and after the last)")
    train: bool = Field(False, description="also on all clients' training samples")
    clients: bool = Field(False, description="also the global model on each client's own samples")
    initial: bool = Field(False, description="also the initial model, as round 0")


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


Watcher = Callable[[Progress], None]


class OutOfMemoryError(FedkeelError):
    """A round needed more memory than there is."""


def execute(
    simulation: Simulation,
    evaluation: Evaluation,
    store: Store | None = None,
    watch: Watcher | None = None,
    state: RunState | None = None,
    history: History | None = None,
    stop: Callable[[], bool] | None = None,
    keep_every: int = 0,
) -> tuple[RunState, History]:
    """All rounds from a state (default: the first) to the last.

    ``stop`` is asked after every committed round whether to end there; ``keep_every`` keeps the state of every so many
    rounds in the store (0: only the last).
    """
    history = history or History()
    if state is None:
        state = simulation.start()
        first = _measure(simulation, state, evaluation) if evaluation.initial else []
        history.measured += first
        if store is not None:
            store.commit(state, None, None, first)
    while state.t < simulation.training.rounds:
        state, record = _next(simulation, state)
        due = state.t % evaluation.every == 0 or state.t == simulation.training.rounds
        measured = _measure(simulation, state, evaluation) if due else []
        summary = _summary(record)
        history.rounds.append(summary)
        history.measured += measured
        if store is not None:
            scores = _client_scores(simulation, state) if due and evaluation.clients else []
            keep = keep_every > 0 and state.t % keep_every == 0
            store.commit(state, record, summary, measured, scores, keep)
        if watch is not None:
            watch(Progress(state.t, simulation.training.rounds, summary, measured, record.faults))
        if stop is not None and stop():
            break
    return state, history


def _next(simulation: Simulation, state: RunState) -> tuple[RunState, RoundRecord]:
    try:
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        return simulation.step(state)
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


def _measure(simulation: Simulation, state: RunState, evaluation: Evaluation) -> list[Measured]:
    splits = ["test", "train"] if evaluation.train else ["test"]
    return [
        Measured(state.t, name, split, score.accuracy, score.loss)
        for split in splits
        for name, score in simulation.evaluate(state, split).items()
    ]


def _client_scores(simulation: Simulation, state: RunState) -> list[tuple[int, str, float, float]]:
    split = "test" if simulation.federation.client_tests is not None else "train"
    return [(i, split, score.accuracy, score.loss) for i, score in simulation.evaluate_clients(state).items()]


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
