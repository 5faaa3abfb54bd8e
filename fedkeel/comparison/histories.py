"""Several runs side by side: rounds to a target, speed-up over a base, best accuracy, traffic and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedkeel.runs.history import History


@dataclass(frozen=True)
class Row:
    """One run in a comparison."""

    run: str
    budget: int
    """Rounds that were run."""
    rounds_to_target: int | None
    speed_up: float | None
    """Rounds of the base over rounds of this run; None where this run did not reach the target."""
    at_least: bool
    """The base did not reach the target either, so its budget stands in and the speed-up is a lower bound."""
    final: float
    best: float
    megabytes: float
    """Sent in both directions up to the target, or in all where it was not reached."""
    seconds: float


def compare(histories: Mapping[str, History], base: str, target: float) -> list[Row]:
    """A row for each run, with speed-ups over ``base`` at a target accuracy in [0, 1]."""
    base_rounds = histories[base].rounds_to(target)
    base_budget = base_rounds or len(histories[base].rounds)
    rows = []
    for name, history in histories.items():
        reached = history.rounds_to(target)
        last, best = history.final(), history.best()
        rows.append(
            Row(
                run=name,
                budget=len(history.rounds),
                rounds_to_target=reached,
                speed_up=base_budget / reached if reached else None,
                at_least=base_rounds is None,
                final=last.accuracy if last else float("nan"),
                best=best.accuracy if best else float("nan"),
                megabytes=history.bytes_to(reached or len(history.rounds)) / 1e6,
                seconds=history.seconds,
            )
        )
    return rows
