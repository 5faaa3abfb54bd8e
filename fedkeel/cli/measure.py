"""``fedkeel measure``: what a run comes to, on a screen or as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedkeel.api import Run, read_run
from fedkeel.cli.main import print_json, without_nan
from fedkeel.cli.screen import say, show_table, wrapped
from fedkeel.engine.names import MEASURED, Noted
from fedkeel.errors import FedkeelError
from fedkeel.measure.at_clients import Newcomers, OwnModels
from fedkeel.runs.fairness import Fairness, fairness
from fedkeel.runs.history import WINDOW, History
from fedkeel.runs.store import Store

LABEL = 16
"""Columns before the values of a line."""


@dataclass(frozen=True)
class AtClients:
    """What was measured at clients, or why nothing was."""

    why_not: str = ""
    newcomers: Newcomers | None = None
    own: tuple[OwnModels, ...] = ()

    def rows(self) -> Iterator[tuple[str, Fairness]]:
        """Every group of clients under every model, with its name."""
        if self.newcomers is not None:
            found = self.newcomers
            yield "global model", fairness({**found.seen, **found.unseen}.values())
            if found.unseen:
                yield "… at clients that took part", fairness(found.seen.values())
                yield "… at clients that never did", fairness(found.unseen.values())
        for one in self.own:
            yield one.how, fairness(one.own.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return {
            "why_not": self.why_not or None,
            "newcomers": None if self.newcomers is None else asdict(self.newcomers),
            "own_models": [one.as_dict() for one in self.own],
            "fairness": [{"of": name, **asdict(found)} for name, found in self.rows()],
        }


def show_measures(
    directory: Path, target: float | None, fine_tune: int, local_only: bool, data_dir: Path | None, as_json: bool
) -> None:
    """What the store holds, then what is measured at clients."""
    with closing(Store.reading(directory)) as store:
        history = store.history()
    clients = _at_clients(directory, fine_tune, local_only, data_dir)
    if as_json:
        print_json(without_nan(_stored(history, target) | {"clients": clients.as_dict()}))
        return
    for name, text in _lines(history, target):
        _say(name, text)
    _show_clients(clients)


def _at_clients(directory: Path, fine_tune: int, local_only: bool, data_dir: Path | None) -> AtClients:
    """Without the data nothing can be measured there; that is no reason to keep quiet about what the store holds."""
    try:
        run = read_run(directory, data_dir=data_dir)
    except FedkeelError as error:
        if fine_tune or local_only:
            raise
        return AtClients(str(error))
    return AtClients(newcomers=run.newcomers(), own=tuple(_own_models(run, fine_tune, local_only)))


def _own_models(run: Run, fine_tune: int, local_only: bool) -> Iterator[OwnModels]:
    if fine_tune:
        yield run.fine_tuned(fine_tune)
    if local_only:
        yield run.local_only()


def _stored(history: History, target: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rounds": len(history.rounds),
        "accuracy": asdict(history.reported()),
        "traffic": asdict(history.traffic()),
        "seconds": history.time_split(),
        "drift": {name: _last(history, name) for name in history.names if name.startswith(MEASURED)},
    }
    if target is not None:
        for name, window in (("raw", 1), ("smoothed", WINDOW)):
            sent = history.traffic_to(target, window=window)
            found.setdefault("to_target", {"accuracy": target})[name] = {
                "window": window,
                "rounds": history.rounds_to(target, window=window),
                "traffic": None if sent is None else asdict(sent),
            }
    return found


def _lines(history: History, target: float | None) -> Iterator[tuple[str, str]]:
    sent = history.traffic()
    yield "rounds", str(len(history.rounds))
    yield "test accuracy", str(history.reported())
    yield "sent", f"{sent.down / 1e6:,.1f} MB down, {sent.up / 1e6:,.1f} MB up"
    if target is not None:
        yield f"to {target:.4g}", _reached(history, target, 1, "first evaluation")
        yield "", _reached(history, target, WINDOW, f"mean of {WINDOW} evaluations")
    split = history.time_split()
    if split:
        yield "time", ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in split.items())
    yield from _drift(history)


def _reached(history: History, target: float, window: int, how: str) -> str:
    rounds, sent = history.rounds_to(target, window=window), history.traffic_to(target, window=window)
    if rounds is None or sent is None:
        return f"{how}: never in {len(history.rounds)} rounds"
    return f"{how}: round {rounds}, {sent.down / 1e6:,.1f} MB down, {sent.up / 1e6:,.1f} MB up"


def _drift(history: History) -> Iterator[tuple[str, str]]:
    """The last of what ``[measure]`` asked for."""
    said = {
        "gamma": ("drift degree Γ {:.3g}", 1.0),
        "angle": ("updates {:.0f}° from their mean", 1.0),
        "control_error": ("error of control variates {:.0f} %", 100.0),
    }
    values = {name: _last(history, MEASURED + name) for name in said if MEASURED + name in history.names}
    known = {name: value for name, value in values.items() if isinstance(value, float)}
    if known:
        last = max(max(history.values(MEASURED + name)) for name in known)
        parts = [said[name][0].format(said[name][1] * value) for name, value in known.items()]
        before = _last(history, f"{MEASURED}variance_before") if f"{MEASURED}variance_before" in history.names else 0.0
        if isinstance(before, float) and before > 0:
            after = _last(history, f"{MEASURED}variance_after")
            if isinstance(after, float):
                parts.append(f"variance {after / before:.2g} × that without correction")
        yield f"round {last}", ", ".join(parts)


def _last(history: History, name: str) -> Noted:
    """The value of the last round that has one."""
    return list(history.values(name).values())[-1]


def _say(name: str, text: str) -> None:
    """A name, and beside it lines of text that fit the screen."""
    wide = wrapped(text, " " * LABEL)
    say((f"{name:<{LABEL}}", "bold"), wide.removeprefix(" " * LABEL))


def _show_clients(found: AtClients) -> None:
    if found.why_not:
        _say("clients", f"not measured: {found.why_not}")
        return
    split = "" if found.newcomers is None else found.newcomers.split
    columns: list[str | tuple[str, str]] = [(name, "right") for name in ("clients", "mean", "worst 10 %", "sd", "Jain")]
    rows = [[one.clients, *_cells(one), name] for name, one in found.rows()]
    say("")
    show_table([*columns, "model"], rows)
    own = "its own test samples" if split == "test" else "its own training samples, since clients have no others"
    say(f"Accuracy at each client on {own}. Jain: 1 if all are served alike.")
    for one in found.own:
        say(f"{one.how}: {100 * one.gain:+.1f} points on average, better for {one.better_off:.0%} of the clients.")


def _cells(found: Fairness) -> list[str]:
    shares = ["–" if math.isnan(value) else f"{value:.1%}" for value in (found.mean, found.worst, found.sd)]
    return [*shares, "–" if math.isnan(found.jain) else f"{found.jain:.3f}"]
