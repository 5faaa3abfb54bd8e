"""What the commands print: tables, the identity line of a run, and its line of life."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from fedkeel.engine.simulation import Simulation
from fedkeel.errors import printable
from fedkeel.report.comparison import Row
from fedkeel.runs.history import Measured
from fedkeel.runs.runner import Progress as RoundProgress

BLOCKS = "▁▂▃▄▅▆▇█"
WARNINGS = 5
"""Bad updates that are told one by one; further ones only in the count at the end."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Not the end of the program, without a word, but an error like others."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = _Console(highlight=False)


def say(*parts: str | tuple[str, str], style: str = "", soft_wrap: bool = False) -> None:
    """Print text as it is, whoever it comes from; a part given as (text, style) is printed in that style.

    Nothing in it is taken for rich's markup or reaches the terminal as a command.
    """
    pieces = [part if isinstance(part, tuple) else (part, "") for part in parts]
    console.print(Text.assemble(*((plain(text), own) for text, own in pieces), style=style), soft_wrap=soft_wrap)


def plain(text: str) -> str:
    """Printable text in lines."""
    return "\n".join(map(printable, text.split("\n")))


def identity(simulation: Simulation) -> str:
    """One line that says what runs."""
    federation, training = simulation.federation, simulation.training
    rule = dict(federation.rule)
    name = str(rule.get("name", "own clients"))
    alpha = f" {rule['alpha']:g}" if isinstance(rule.get("alpha"), int | float) else ""
    share = f", {training.participation:.0%} a round" if training.participation < 1 else ", all in every round"
    parts = [
        simulation.algorithm.title,
        federation.dataset.name,
        f"{federation.N} clients, {name}{alpha}{share}",
        f"{simulation.task.d:,} parameters",
        simulation.executor.describe(),
    ]
    return " · ".join(parts)


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """The last values as a row of blocks, lowest to highest of those shown."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BLOCKS[int((value - low) / span * (len(BLOCKS) - 1))] for value in shown)


class _Life(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields.get("life", ""))


class Life:
    """Follows a run: a live line on a terminal, a plain line now and then elsewhere, nothing when quiet."""

    def __init__(self, rounds: int, done: int = 0, quiet: bool = False) -> None:
        self._curve: list[float] = []
        self._last: Measured | None = None
        self._seconds = 0.0
        self._samples = 0
        self._begun_at = done
        self._quiet = quiet
        self._faults: Counter[str] = Counter()
        self._live = None
        self._task: Any = None
        if not quiet and console.is_terminal:
            self._live = Progress(
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=30),
                _Life(),
                console=console,
                transient=False,
            )
            self._task = self._live.add_task("", total=rounds, completed=done)

    def __enter__(self) -> Life:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._faults and not self._quiet:
            counts = ", ".join(f"{count} × {kind}" for kind, count in sorted(self._faults.items()))
            say(f"faults: {counts}")

    def __call__(self, progress: RoundProgress) -> None:
        self._seconds += progress.summary.seconds
        self._samples += progress.summary.samples
        reported = next((m for m in progress.measured if m.split == "test"), None)
        if reported is not None:
            self._last = reported
            self._curve.append(reported.accuracy)
        self._warn(progress)
        line = self._line(progress)
        if self._live is not None:
            self._live.update(self._task, completed=progress.round, life=line)
        elif not self._quiet and self._is_milestone(progress):
            print(f"round {progress.round}/{progress.rounds}  {line}", flush=True)

    def _warn(self, progress: RoundProgress) -> None:
        """Say at once what a person should look into; faults that were asked for are only counted."""
        for fault in progress.faults:
            bad = fault.kind in ("skipped", "clipped")
            if bad and not self._quiet and self._faults["skipped"] + self._faults["clipped"] < WARNINGS:
                said = f"round {progress.round}: client {fault.client} {fault.kind}: {fault.detail}"
                say(f"warning: {said}", style="yellow", soft_wrap=True)
            self._faults[fault.kind] += 1

    def _is_milestone(self, progress: RoundProgress) -> bool:
        every = max(1, progress.rounds // 10)
        return progress.round % every == 0 or progress.round == progress.rounds

    def _line(self, progress: RoundProgress) -> str:
        parts = []
        if self._last is not None:
            parts.append(f"accuracy {self._last.accuracy:.1%} {sparkline(self._curve)}  loss {self._last.loss:.3f}")
        parts.append(f"drift {progress.summary.drift:.2g}")
        parts.append(f"{self._samples / max(self._seconds, 1e-9) / 1000:.1f}k samples/s")
        done = progress.round - self._begun_at
        left = self._seconds / max(done, 1) * (progress.rounds - progress.round)
        parts.append(f"{left:.0f} s left" if left >= 1 else f"{self._seconds:.1f} s")
        return "  ".join(parts)


def table(
    columns: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[object]], title: str | None = None
) -> Table:
    """A plain table; a column given as (name, "right") is right-aligned. Cells are text, not markup."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns, start=1):
        name, side = column if isinstance(column, tuple) else (column, "left")
        # Only the last column gives way on a narrow screen: it holds the sentences.
        wraps = number == len(columns)
        made.add_column(
            Text(plain(name)), justify="right" if side == "right" else "left", no_wrap=not wraps, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(plain(str(cell))) for cell in row))
    return made


def comparison_table(rows: Sequence[Row], base: str, target: float) -> Table:
    """Rounds to target, speed-up, accuracy, traffic and time of several runs."""
    columns: list[str | tuple[str, str]] = [
        "run",
        (f"rounds to {target:.0%}", "right"),
        ("speed-up", "right"),
        ("final", "right"),
        ("best", "right"),
        ("MB", "right"),
        ("time", "right"),
    ]
    return table(columns, [_cells(row, base) for row in rows])


def _cells(row: Row, base: str) -> list[str]:
    if row.rounds_to_target is None:
        rounds, speed = f">{row.budget}", "–"
    else:
        rounds = str(row.rounds_to_target)
        speed = f"{'≥ ' if row.at_least and row.run != base else ''}{row.speed_up:.1f}×"
    return [
        row.run,
        rounds,
        speed,
        f"{row.final:.1%}",
        f"{row.best:.1%}",
        f"{row.megabytes:.0f}",
        f"{row.seconds:.0f} s",
    ]
