"""``fedkeel runs``: every run below a folder, a line each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedkeel.cli.main import print_json
from fedkeel.cli.tables import as_csv_text
from fedkeel.errors import InputError, printable, unknown
from fedkeel.runs.overview import Overview, overviews

_KEYS: dict[str, Callable[[Overview], Any]] = {
    "name": lambda run: run.name,
    "algorithm": lambda run: run.algorithm,
    "data": lambda run: run.data,
    "seed": lambda run: -1 if run.seed is None else run.seed,
    "rounds": lambda run: -run.done,
    "state": lambda run: run.state,
    "last": lambda run: _falling(run.accuracy.last),
    "late": lambda run: _falling(run.accuracy.late),
    "best": lambda run: _falling(run.accuracy.best),
    "bytes": lambda run: -run.bytes,
    "time": lambda run: -run.seconds,
}
"""What the list can be sorted by; numbers but the seed begin with the largest."""


def show_runs(folder: Path, sort: str, as_json: bool, as_csv: bool) -> None:
    """A table of all runs, or the same for programs."""
    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other; choose one.")
    if sort not in _KEYS:
        raise unknown("order of runs", sort, list(_KEYS))
    found = sorted(overviews(folder), key=lambda run: (_KEYS[sort](run), run.name))
    if as_json:
        print_json([_plain(run) for run in found])
    elif as_csv:
        columns = list(_plain(Overview("", Path(), "damaged")))
        print(as_csv_text(columns, [_plain(run) for run in found]), end="")
    else:
        _show_table(found, folder)


def _falling(value: float) -> float:
    return math.inf if math.isnan(value) else -value


def _plain(run: Overview) -> dict[str, Any]:
    """A run as JSON and CSV have it; accuracies in [0, 1], or nothing."""
    values = asdict(run)
    accuracy = values.pop("accuracy")
    note = values.pop("note")
    del values["curve"]  # a picture, not a result
    values["directory"] = str(run.directory)
    for key in ("last", "late", "best"):
        values[key] = None if math.isnan(accuracy[key]) else accuracy[key]
    return values | {"best_round": accuracy["best_round"], "note": note}


def _show_table(found: Sequence[Overview], folder: Path) -> None:
    from fedkeel.cli.screen import console, say, show_table

    if not found:
        say(f"There are no runs in {folder} or below; `fedkeel run` and fedkeel.train(…, directory=…) make some.")
        return
    columns: list[str | tuple[str, str]] = ["algorithm", "data", ("seed", "right"), ("rounds", "right"), "state"]
    columns += [("last", "right"), ("best", "right"), ("MB", "right"), ("time", "right"), "run"]
    rows = [_cells(run) for run in found]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns) - 1)]
    headings = [column if isinstance(column, str) else column[0] for column in columns]
    others = sum(max(width, len(heading)) for width, heading in list(zip(widths, headings, strict=False))[2:])
    room = max(16, console.width - others - 2 * (len(columns) - 1))
    first = min(widths[0], max(room // 2, room - widths[1]))
    for row in rows:
        row[0], row[1] = _cut(row[0], max(first, 8)), _cut(row[1], max(room - first, 6))
    columns[0] = "algorithm" if first >= len("algorithm") else "method"
    show_table(columns, rows)
    say("last, best: test accuracy of the last evaluated round and of the best one. MB: sent in both directions.")


def _cells(run: Overview) -> list[str]:
    from fedkeel.cli.screen import duration

    of = "" if run.rounds is None else f"/{run.rounds}"
    damaged = run.state == "damaged"
    measured = [_share(run.accuracy.last), _share(run.accuracy.best), f"{run.bytes / 1e6:,.0f}", duration(run.seconds)]
    return [
        printable(run.algorithm),
        printable(run.data),
        "" if run.seed is None else _cut(str(run.seed), 7),
        "" if damaged else f"{run.done}{of}",
        run.state,
        *([""] * 4 if damaged else measured),
        f"{printable(run.name)}: {printable(run.note)}" if run.note else printable(run.name),
    ]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"
