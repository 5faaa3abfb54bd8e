"""Runs made by hand, as pictures read them."""

from typing import Any

from fedkeel.comparison.groups import Read
from fedkeel.engine.names import Noted
from fedkeel.errors import DataError
from fedkeel.plots.sources import Chosen, Source
from fedkeel.runs.history import History, Measured, RoundSummary
from fedkeel.runs.store import ClientScore


def source(
    seed: int = 0,
    accuracies: list[float] | None = None,
    *,
    algorithm: str = "fedavg",
    noted: dict[int, dict[str, Noted]] | None = None,
    scores: list[ClientScore] | None = None,
    drifts: list[float] | None = None,
    sent: int = 10,
    **settings: Any,
) -> Source:
    """A run of as many rounds as it has accuracies; ``sent`` bytes go up and down in each."""
    accuracies = accuracies or []
    drifts = drifts or [1.0] * len(accuracies)
    history = History(
        [RoundSummary(t, 0.1, 1, 1, 1, 0.0, drift, sent, sent, 1.0) for t, drift in enumerate(drifts, start=1)],
        [Measured(t, "global", "test", value, 1 - value) for t, value in enumerate(accuracies, start=1)],
        noted or {},
    )
    fields = {"algorithm.name": algorithm, **settings}
    run = Read(f"runs/{algorithm}-{seed}", seed, fields, len(accuracies), {"samples": "a"}, "layers", history)

    def none() -> Any:
        raise DataError("runs made by hand have no data")

    return Source(run, None, lambda: scores or [], none, none)


def chosen(**groups: Source | list[Source]) -> Chosen:
    return Chosen({name: tuple(g) if isinstance(g, list) else (g,) for name, g in groups.items()})
