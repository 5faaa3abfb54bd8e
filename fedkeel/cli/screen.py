"""What the commands print: sentences and tables. Nothing here needs torch: commands that only read start quickly."""

from __future__ import annotations

import errno
import os
import re
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedkeel.comparison.histories import Row
from fedkeel.errors import printable

ROOM = 32
"""Columns that sentences in a table need; with fewer they go below their rows."""


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


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 360_000:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def fitted(parts: Sequence[tuple[int, str]], width: int) -> str:
    """Parts on one line; those with the highest numbers are left out until the rest fits."""
    kept = list(parts)
    while len(kept) > 1 and cell_len("  ".join(text for _, text in kept)) > width:
        kept.remove(max(kept, key=lambda part: part[0]))
    return "  ".join(text for _, text in kept)


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
