"""What the commands print: tables, the identity line of a run, and its line of life."""

from __future__ import annotations

import errno
import math
import os
import re
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedkeel.comparison.histories import Row
from fedkeel.engine.noted import TIME
from fedkeel.engine.rounds import Rounds
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import printable
from fedkeel.learning.losses import Loss, cross_entropy, known_as
from fedkeel.runs.history import Measured
from fedkeel.runs.runner import Progress as RoundProgress

BLOCKS = "▁▂▃▄▅▆▇█"
LEAST_SPAN = 0.1
"""Of accuracy, from the lowest block to the highest: within it, ups and downs are drawn as small as they are."""
ROOM = 32
"""Columns that sentences in a table need; with fewer they go below their rows."""
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


def a_few(names: Sequence[str], most: int = 4) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def headline(parts: Sequence[str]) -> None:
    """What runs, on one line or, where that is too narrow, on several that break between the parts."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and cell_len(longer) <= console.width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}" if lines else part)
    say("\n".join(lines), style="bold")


def identity(simulation: Simulation) -> list[str]:
    """What runs, in a few words each."""
    federation, training = simulation.federation, simulation.training
    rule = dict(federation.rule)
    name = str(rule.get("name", "own clients"))
    alpha = f" {rule['alpha']:g}" if isinstance(rule.get("alpha"), int | float) else ""
    share = f", {training.participation:.0%} a round" if training.participation < 1 else ", all in every round"
    return [
        simulation.algorithm.title,
        federation.dataset.name,
        f"{federation.N} clients, {name}{alpha}{share}",
        f"{simulation.task.d:,} parameters{_minimised(simulation.task.loss)}",
        *reports(simulation),
        simulation.executor.describe(),
    ]


def reports(rounds: Rounds) -> list[str]:
    """Which model a run reports, where it is not the last one."""
    averaging = rounds.server.averaging
    return [] if averaging is None else [f"reports {averaging.kind.upper()}: {averaging}"]


def _minimised(loss: Loss) -> str:
    """The loss, where it is not the usual one."""
    return "" if loss.name.startswith(cross_entropy.name) else f", {known_as(loss) or loss.name}"


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """The last accuracies as a row of blocks; a span of less than ``LEAST_SPAN`` does not fill the height."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = max(high - low, LEAST_SPAN)
    low = max(0.0, (low + high - span) / 2) if high - low < LEAST_SPAN else low
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[min(top, int((value - low) / span * top + 0.5))] for value in shown)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 360_000:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


class Clock:
    """How long a whole sweep still takes, judged by its rounds so far."""

    def __init__(self, rounds: int) -> None:
        self._to_go = rounds
        self._done = 0
        self._began = time.monotonic()

    def tick(self) -> None:
        """One more round is done."""
        self._done += 1
        self._to_go = max(0, self._to_go - 1)

    def skip(self, rounds: int) -> None:
        """So many rounds will not be run."""
        self._to_go = max(0, self._to_go - rounds)

    def left(self) -> float:
        """Seconds."""
        return (time.monotonic() - self._began) / max(1, self._done) * self._to_go


class _Life(ProgressColumn):
    """One line that fits: first the bar gives way, then what matters least."""

    def render(self, task: Task) -> Text:
        width = console.width - 1
        head = f"{task.fields.get('name', '')}round {task.completed:.0f}/{task.total or 0:.0f}"
        bar = min(30, max(6, width - 71))
        line = fitted(task.fields.get("life", []), width - len(head) - bar - 3)
        made = Text(f"{head} ")
        for segment in ProgressBar(task.total, task.completed, width=bar).__rich_console__(console, console.options):
            made.append(segment.text, segment.style)  # type: ignore[union-attr]
        return made.append(f"  {line}")


def fitted(parts: Sequence[tuple[int, str]], width: int) -> str:
    """Parts on one line; those with the highest numbers are left out until the rest fits."""
    kept = list(parts)
    while len(kept) > 1 and cell_len("  ".join(text for _, text in kept)) > width:
        kept.remove(max(kept, key=lambda part: part[0]))
    return "  ".join(text for _, text in kept)


class Life:
    """Follows a run: a live line on a terminal, a plain line now and then elsewhere, nothing when quiet."""

    def __init__(
        self, rounds: int, done: int = 0, quiet: bool = False, sweep: Clock | None = None, name: str = ""
    ) -> None:
        self._name = f"  {name:<9} " if name else ""
        self._curve: list[float] = []
        self._last: Measured | None = None
        self._seconds = 0.0
        self._samples = 0
        self._begun_at = done
        self._to_go = rounds - done
        self._quiet = quiet
        self._sweep = sweep
        self._faults: Counter[str] = Counter()
        self._executor = ""
        self._live = None
        self._task: Any = None
        if not quiet and console.is_terminal:
            self._live = Progress(_Life(), console=console, transient=False)
            self._task = self._live.add_task("", total=rounds, completed=done, name=self._name)

    def __enter__(self) -> Life:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._sweep is not None:
            self._sweep.skip(self._to_go)
        if self._faults and not self._quiet:
            counts = ", ".join(f"{count} × {kind}" for kind, count in sorted(self._faults.items()))
            say(f"faults: {counts}")

    def __call__(self, progress: RoundProgress) -> None:
        self._seconds += progress.summary.seconds
        self._samples += progress.summary.samples
        reported = next((m for m in progress.measured if m.split == "test"), None)
        if reported is not None:
            self._last = reported
            if not math.isnan(reported.accuracy):
                self._curve.append(reported.accuracy)
        self._to_go -= 1
        if self._sweep is not None:
            self._sweep.tick()
        self._say_executor(progress.executor)
        self._warn(progress)
        parts = self._parts(progress)
        if self._live is not None:
            self._live.update(self._task, completed=progress.round, life=parts)
        elif not self._quiet and self._is_milestone(progress):
            head = f"{self._name}round {progress.round}/{progress.rounds}"
            print(f"{head}  {fitted(parts, console.width - len(head) - 2)}", flush=True)

    def _say_executor(self, described: str) -> None:
        """What ``auto`` chose, which is known only when the run has begun."""
        if described.startswith("auto: ") and described != self._executor and not self._quiet:
            say(f"executor {described}", style="dim")
        self._executor = described

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

    def _parts(self, progress: RoundProgress) -> list[tuple[int, str]]:
        """The line of life in parts, each with how soon it may be left out."""
        done = progress.round - self._begun_at
        left = self._seconds / max(done, 1) * (progress.rounds - progress.round)
        parts = []
        if self._last is not None:
            judged = not math.isnan(self._last.accuracy)  # under some losses no answer is right or wrong
            if judged:
                parts += [(1, f"accuracy {self._last.accuracy:.1%}"), (4, sparkline(self._curve))]
            parts.append((5 if judged else 1, f"loss {self._last.loss:.3f}"))
            parts += [(8, f"{name} {value:.3g}") for name, value in self._last.metrics.items()]
        at = progress.noted.get(TIME)
        if at is not None and not isinstance(at, dict):
            parts.append((3, f"virtual {duration(at)}"))
        parts.append((6, f"drift {progress.summary.drift:.2g}"))
        parts.append((7, f"{self._samples / max(self._seconds, 1e-9) / 1000:.1f}k samples/s"))
        parts.append((2, f"{duration(left)} left" if left >= 1 else f"{self._seconds:.1f} s"))
        if self._sweep is not None:
            parts.append((3, f"sweep {duration(self._sweep.left())} left"))
        return parts


def show_table(columns: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; where its last column would be squeezed, that text stands indented below each row.

    Rows that are wider than the screen even so break between their cells: half a number is worse than a ragged table.
    """
    cells = [[_heading(column) for column in columns], *([plain(str(cell)) for cell in row] for row in rows)]
    widths = [
        max(cell_len(line) for text in column for line in text.split("\n")) for column in zip(*cells, strict=True)
    ]
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if console.width - before >= min(widths[-1], ROOM):
        console.print(table(columns, rows))
        return
    for number, row in enumerate(cells):
        line = "  ".join(
            " " * (width - cell_len(text)) + text
            if isinstance(column, tuple)
            else text + " " * (width - cell_len(text))
            for text, width, column in zip(row[:-1], widths, columns, strict=False)
        )
        if cell_len(line.rstrip()) > console.width:
            line = _broken(row[:-1])
        say(line.rstrip(), style="" if number else "bold", soft_wrap=True)
        if number and row[-1]:
            say(wrapped(row[-1]))


def _broken(cells: Sequence[str]) -> str:
    """The cells of a row in as many lines as it takes, all but the first indented."""
    lines = [""]
    for cell in filter(None, cells):
        longer = f"{lines[-1]}  {cell}" if lines[-1].strip() else f"{lines[-1]}{cell}"
        if lines[-1].strip() and cell_len(longer) > console.width:
            lines.append(f"    {cell}")
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _heading(column: str | tuple[str, str]) -> str:
    return column[0] if isinstance(column, tuple) else column


def hanging(box: str) -> str:
    """Pseudo-code in lines that fit the screen; what goes on stands further in than what it belongs to."""
    lines = []
    for line in plain(box).split("\n"):
        head = re.match(r"\s*(?:(?:client|worker|server|before|both)\s+)?", line)
        indent = " " * ((head.end() if head else 0) + 4)
        lines.append(
            textwrap.fill(
                line,
                max(console.width, 40),
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
                replace_whitespace=False,
                drop_whitespace=True,
            )
        )
    return "\n".join(lines)


def wrapped(text: str, indent: str = "    ") -> str:
    """Text in lines that fit the screen, each indented."""
    return "\n".join(
        textwrap.fill(line, max(console.width, 40), initial_indent=indent, subsequent_indent=indent)
        for line in plain(text).split("\n")
    )


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
