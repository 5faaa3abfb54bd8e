"""Runs a simulation to its end: rounds, evaluation, and one commit a round where there is a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from fedkeel.engine.faults import Fault
from fedkeel.engine.simulation import RoundRecord, RunState, Simulation
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


def execute(
    simulation: Simulation,
    evaluation: Evaluation,
    store: Store | None = None,
    watch: Watcher | None = None,
    state: RunState | None = None,
    history: History | None = None,
    stop_after: int | None = None,
) -> tuple[RunState, History]:
    """All rounds from a state (default: the first) to the last; ``stop_after`` ends earlier, after that round."""
    history = history or History()
    if state is None:
        state = simulation.start()
        first = _measure(simulation, state, evaluation) if evaluation.initial else []
        history.measured += first
        if store is not None:
            store.commit(state, None, None, first)
    last = min(simulation.training.rounds, stop_after or simulation.training.rounds)
    while state.t < last:
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        state, record = simulation.step(state)
        due = state.t % evaluation.every == 0 or state.t == simulation.training.rounds
        measured = _measure(simulation, state, evaluation) if due else []
        summary = _summary(record)
        history.rounds.append(summary)
        history.measured += measured
        if store is not None:
            scores = _client_scores(simulation, state) if due and evaluation.clients else []
            store.commit(state, record, summary, measured, scores)
        if watch is not None:
            watch(Progress(state.t, simulation.training.rounds, summary, measured, record.faults))
    return state, history


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
