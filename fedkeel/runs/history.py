"""What a run measured, round by round, and the questions that papers ask of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import Any

from fedkeel.engine.names import TIME, TIMED, Noted
from fedkeel.errors import InputError, as_html, unknown
from fedkeel.runs.fairness import Fairness
from fedkeel.runs.reported import Reported, reported

WINDOW = 5
"""Evaluations in the running mean of a smoothed number of rounds to a target."""


@dataclass(frozen=True)
class Measured:
    """One metric of one candidate model after a round."""

    round: int
    model: str
    """``global``, ``selected``, …: a candidate that the algorithm offers."""
    split: str
    """``test``, ``train`` or ``validation``."""
    accuracy: float
    """In [0, 1]; NaN where no answer is right or wrong."""
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics by name, as asked for."""


@dataclass(frozen=True)
class RoundSummary:
    """A round in numbers that do not depend on the algorithm."""

    round: int
    lr: float
    clients: int
    steps: int
    """Local steps of all clients together."""
    samples: int
    train_loss: float
    """Mean local objective over the cohort, weighted equally."""
    drift: float
    """Mean of ‖y_i − w‖ over the cohort; NaN where clients do not upload a model."""
    bytes_down: int
    bytes_up: int
    seconds: float
    """Of training and aggregation; an evaluation that went beside the training is in it."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that travelled between server and clients."""

    down: int
    """From the server."""
    up: int

    @property
    def total(self) -> int:
        """In both directions."""
        return self.down + self.up


@dataclass
class History:
    """All rounds of a run so far."""

    rounds: list[RoundSummary] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    noted: dict[int, dict[str, Noted]] = field(default_factory=dict)
    """What the algorithm noted and what ``[measure]`` asked for, by round and name; see ``values``."""
    times: dict[int, dict[str, float]] = field(default_factory=dict, compare=False, repr=False)
    """Where the time of a round went, in seconds by round and name; see ``time_split``."""
    fairness: dict[int, Fairness] = field(default_factory=dict)
    """How evenly clients are served, by round; only where ``evaluation.clients`` was on."""

    def copy(self) -> History:
        """The rounds so far, whatever follows."""
        return History(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})

    def series(self, model: str | None = None, split: str = "test") -> list[Measured]:
        """The evaluations of one candidate, in round order (default: the algorithm's first candidate)."""
        wanted = model or self.default_model(split)
        return [m for m in self.measured if m.model == wanted and m.split == split]

    def values(self, name: str) -> dict[int, Noted]:
        """What was kept under a name, by round: a number, or the numbers of the cohort by client.

        ``names`` are those that there are: what the algorithm noted (FedVeca's ``tau``, ``tau_bar``, ``L``, …, GradMA's
        ``active`` and ``active_local``), with ``[measure]`` ``measure.gamma`` and its kin, and with ``[clock]``
        ``clock.time``, ``clock.seconds`` and, of buffered runs, ``clock.staleness``. ``time.training``,
        ``time.aggregation``, ``time.evaluation`` and ``time.commit`` are there always.
        """
        tables = self.times if name.startswith(TIMED) else self.noted
        found: dict[int, Noted] = {round: table[name] for round, table in tables.items() if name in table}
        if not found:
            timed = dict.fromkeys(name for table in self.times.values() for name in table)
            raise unknown("value", name, [*self.names, *timed] or ["(the algorithm noted none)"])
        return found

    @property
    def names(self) -> list[str]:
        """Everything that the algorithm noted and that was measured, by name."""
        return list(dict.fromkeys(name for noted in self.noted.values() for name in noted))

    @property
    def metric_names(self) -> list[str]:
        """The metrics beside accuracy and loss that were measured, by name."""
        return list(dict.fromkeys(name for m in self.measured for name in m.metrics))

    def default_model(self, split: str = "test") -> str:
        """The candidate that a run reports: the first of its last evaluation.

        Earlier rounds of a fork may have reported another, since an average over rounds can begin with it.
        """
        last = next((m.round for m in reversed(self.measured) if m.split == split), None)
        return next((m.model for m in self.measured if m.split == split and m.round == last), "global")

    def models(self, split: str = "test") -> list[str]:
        """All candidates that were evaluated."""
        return list(dict.fromkeys(m.model for m in self.measured if m.split == split))

    def rounds_to(self, accuracy: float, model: str | None = None, window: int = 1) -> int | None:
        """The first evaluated round whose accuracy (or mean over the last ``window`` evaluations) reaches a target.

        One lucky evaluation on a plateau is enough for ``window=1``, which is what papers print; ``window=WINDOW``
        (5) asks for a running mean.
        """
        seen: list[float] = []
        for point in self.series(model):
            if point.round == 0:
                continue
            seen.append(point.accuracy)
            recent = seen[-window:]
            if len(recent) == window and sum(recent) / window >= accuracy:
                return point.round
        return None

    def best(self, model: str | None = None) -> Measured | None:
        """The evaluation with the highest test accuracy (the lowest loss, if there is none), the earliest of equals."""
        return max(self.series(model), key=lambda m: -m.loss if math.isnan(m.accuracy) else m.accuracy, default=None)

    def final(self, model: str | None = None) -> Measured | None:
        """The last evaluation."""
        series = self.series(model)
        return series[-1] if series else None

    def reported(self, model: str | None = None) -> Reported:
        """Test accuracy of the last round, mean of the last 10 % of the rounds, and best."""
        return reported([(m.round, m.accuracy) for m in self.series(model)], len(self.rounds))

    def table(self, model: str | None = None) -> list[dict[str, float]]:
        """A row for each round: its summary, and test accuracy, loss and metrics of one candidate where evaluated."""
        rows: dict[int, dict[str, float]] = {summary.round: asdict(summary) for summary in self.rounds}
        for m in self.series(model):
            row = rows.setdefault(m.round, {"round": m.round})
            row |= {"accuracy": m.accuracy, "loss": m.loss} | {f"metric {name}": v for name, v in m.metrics.items()}
        return [rows[round] for round in sorted(rows)]

    def frame(self, model: str | None = None) -> Any:
        """``table`` as a pandas DataFrame, where pandas is installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError(
                "history.frame() needs pandas, which is not installed: pip install pandas, or use history.table(), a "
                "list of dicts."
            ) from None
        return pandas.DataFrame(self.table(model))

    def __repr__(self) -> str:
        return f"History({len(self.rounds)} rounds, {len(self.measured)} evaluations; test accuracy: {self.reported()})"

    def _repr_html_(self) -> str:
        return as_html("History", self.facts())

    def facts(self) -> dict[str, str]:
        """What a person asks first, by name."""
        found = self.reported()
        known = {"last round": found.last, "mean of the last 10 %": found.late, "best": found.best}
        return {
            "rounds": str(len(self.rounds)),
            **{f"test accuracy, {name}": "–" if math.isnan(v) else f"{v:.2%}" for name, v in known.items()},
            "sent in both directions": f"{self.traffic().total / 1e6:,.1f} MB",
            "time in rounds": f"{self.seconds:,.1f} s",
            **({"virtual time": f"{max(clock.values()):,.1f} s"} if (clock := self.clock()) else {}),
        }

    def bytes_to(self, round: int) -> int:
        """Bytes sent in both directions up to and including a round."""
        return self.traffic(round).total

    def traffic(self, round: int | None = None) -> Traffic:
        """Bytes sent up to and including a round (default: the last)."""
        sent = [r for r in self.rounds if round is None or r.round <= round]
        return Traffic(sum(r.bytes_down for r in sent), sum(r.bytes_up for r in sent))

    def traffic_to(self, accuracy: float, model: str | None = None, window: int = 1) -> Traffic | None:
        """Bytes sent until a test accuracy was reached, as ``rounds_to`` has it; None if it was not."""
        reached = self.rounds_to(accuracy, model, window)
        return None if reached is None else self.traffic(reached)

    def clock(self) -> dict[int, float]:
        """Virtual seconds at the end of every round; empty where the run had no ``[clock]``."""
        times = {round: noted[TIME] for round, noted in self.noted.items() if TIME in noted}
        return {round: at for round, at in times.items() if not isinstance(at, dict)}

    def virtual_seconds_to(self, accuracy: float, model: str | None = None, window: int = 1) -> float | None:
        """Virtual seconds until a test accuracy was reached, as ``rounds_to`` has it; None if it was not."""
        reached = self.rounds_to(accuracy, model, window)
        return None if reached is None else self.clock().get(reached)

    def time_split(self) -> dict[str, float]:
        """Seconds of all rounds by what they went to.

        ``training``: until the clients' answers were there. An evaluation that went beside it is in it.
        ``aggregation``: the rest of the round. ``evaluation``: after it. ``commit``: to disk; that of a round is known,
        and kept, in the next. ``measure``: what ``[measure]`` asked for.
        """
        names = dict.fromkeys(name for table in self.times.values() for name in table)
        return {
            name.removeprefix(TIMED): math.fsum(table.get(name, 0.0) for table in self.times.values()) for name in names
        }

    @property
    def seconds(self) -> float:
        """Time spent in rounds, without evaluations in between."""
        return sum(r.seconds for r in self.rounds)


def mean(values: Iterable[float]) -> float:
    """The mean, NaN of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")
