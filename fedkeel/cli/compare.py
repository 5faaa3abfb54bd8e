"""``fedkeel compare``: runs beside each other, seeds of the same settings as one."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedkeel.cli.main import complain, print_json, without_nan
from fedkeel.cli.screen import duration, say, show_table
from fedkeel.cli.tables import as_csv_text
from fedkeel.comparison.groups import CONFIDENCE, FEWEST, WINDOW, Comparison, Difference, Group, compare_groups, read
from fedkeel.errors import InputError

_OF_A_GROUP = (
    *("reached", "rounds_to_target", "smoothed_rounds_to_target", "speed_up", "at_least"),
    *("last", "late", "best", "spread", "bytes_to_target", "virtual_seconds_to_target"),
)


def show_comparison(directories: list[Path], target: float, base: str | None, as_json: bool, as_csv: bool) -> None:
    """A table, the paired differences, and before them what a reader must know."""
    if as_json and as_csv:
        raise InputError("--json and --csv exclude each other; choose one.")
    found = compare_groups([read(directory) for directory in directories], target, base)
    if as_json:
        print_json(without_nan(asdict(found)))
        return
    for warning in found.warnings:
        complain(f"warning: {warning}")
    if as_csv:
        print(as_csv_text(*_plain(found)), end="")
    else:
        _show(found)


def _plain(found: Comparison) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of groups for a spreadsheet; differences to the base are shares of 1, as accuracies are."""
    differences = [f"{which}_over_base" for which in ("last", "late", "best")]
    rows = []
    for group in found.groups:
        row = {name: getattr(group, name) for name in _OF_A_GROUP}
        row |= {f"{which}_over_base": difference.mean for which, difference in group.over_base.items()}
        rows.append(row | {"name": group.name, "seeds": len(group.seeds), "target": found.target, "base": found.base})
    return ["name", "seeds", "target", "base", *_OF_A_GROUP, *differences], rows


def _show(found: Comparison) -> None:
    columns: list[str | tuple[str, str]] = [("seeds", "right"), (f"to {found.target:.4g}", "right")]
    columns += [(name, "right") for name in ("smoothed", "speed-up", "last", "last 10 %", "best", "MB to it")]
    timed = any(group.virtual_seconds_to_target is not None for group in found.groups)
    columns += [("time", "right")] if timed else []
    show_table([*columns, "run"], [[*_cells(group, timed), group.name] for group in found.groups])
    say(
        f"to {found.target:.4g}: first round with that test accuracy; smoothed: with that mean of {WINDOW} of them. "
        f"Speed-up over {found.base}. last, last 10 %, best: test accuracy of the last round, mean over the last 10 % "
        "of the rounds, and best. MB to it: sent in both directions until then."
        + (" time: that took by the virtual clock." if timed else "")
    )
    others = [group for group in found.groups if group.over_base]
    if not others or max(len(group.seeds) for group in others) < 2:
        return
    say(f"\nDifference to {found.base}, paired over seeds, in percentage points", style="bold")
    names: list[str | tuple[str, str]] = [("seeds", "right"), *((n, "right") for n in ("last", "last 10 %", "best"))]
    rows = [
        [group.over_base["last"].seeds, *(_difference(group.over_base[which]) for which in ("last", "late", "best"))]
        for group in others
    ]
    show_table([*names, "run"], [[*row, group.name] for row, group in zip(rows, others, strict=True)])
    say(f"In brackets: {CONFIDENCE:.0%} t interval of the mean difference; none with fewer than {FEWEST} seeds.")


def _cells(group: Group, timed: bool) -> list[str]:
    missed = "never" if not group.reached else f"{group.reached} of {len(group.seeds)}"
    speed = "–" if group.speed_up is None else f"{'≥ ' if group.at_least else ''}{group.speed_up:.2f}×"
    seconds = group.virtual_seconds_to_target
    by_the_clock = ["–" if seconds is None else duration(seconds)] if timed else []
    return [
        str(len(group.seeds)),
        missed if group.rounds_to_target is None else f"{group.rounds_to_target:.4g}",
        "–" if group.smoothed_rounds_to_target is None else f"{group.smoothed_rounds_to_target:.4g}",
        speed,
        *("–" if math.isnan(value) else f"{value:.2%}" for value in (group.last, group.late, group.best)),
        "–" if group.bytes_to_target is None else f"{group.bytes_to_target / 1e6:,.1f}",
        *by_the_clock,
    ]


def _difference(found: Difference) -> str:
    if math.isnan(found.mean):
        return "–"
    mean = f"{100 * found.mean:+.2f}"
    return (
        mean if found.low is None or found.high is None else f"{mean} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    )
