"""What every kind of picture shares: its options, what was read for it, and how panels are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.errors import InputError
from fedkeel.measure.conformal import Method
from fedkeel.plots.lines import Band, Curve, curve
from fedkeel.plots.sources import Chosen, Source

WIDE, HALF = (680, 360), (380, 250)
"""Width and height of a picture alone, and of one of two beside each other."""


@dataclass(frozen=True)
class Options:
    """What a picture can be told; each kind says which of these it hears."""

    target: float | None = None
    """Test accuracy to be reached, in [0, 1]."""
    names: tuple[str, ...] = ()
    """Of noted values."""
    band: Band = "range"
    """What the seeds of a group spread over."""
    method: Method = "raps"
    """Of prediction sets."""


@dataclass(frozen=True)
class Figure:
    """Everything that is drawn, as plain numbers and words; what kind it is decides how."""

    title: str
    notes: tuple[str, ...]
    """Lines below the title."""
    rows: Any
    """Curves, or lists of dicts: what the kind's ``draw`` takes."""


@dataclass(frozen=True)
class Kind:
    """A kind of picture: ``read`` makes numbers of runs, ``draw`` a chart of numbers."""

    says: str
    read: Callable[[Chosen, Options], Figure]
    draw: Callable[[Figure], Any]
    hears: tuple[str, ...] = ()
    """Options that change something."""
    apart: bool = False
    """Runs do not share axes, so that they may be on different data."""


Series = Sequence[tuple[float, float]]


def group_curves(
    chosen: Chosen, series: Callable[[Source], Series], options: Options, missing: str
) -> tuple[list[Curve], tuple[str, ...]]:
    """A curve for each group, and a note about groups that have none; ``missing`` is the error where no group has."""
    curves, lacking = [], []
    for name, group in chosen.groups.items():
        found = curve(name, [series(source) for source in group], band=options.band)
        if found is None:
            lacking.append(name)
        else:
            curves.append(found)
    if not curves:
        raise InputError(missing.format(runs=whose(chosen)))
    return curves, absent(lacking)


def whose(chosen: Chosen) -> str:
    """``the run in runs/a`` or ``the runs in runs/a, runs/b, …``."""
    names = [source.directory for source in chosen.sources]
    if len(names) == 1:
        return f"the run in {names[0]} has"
    return f"the runs in {', '.join(names[:3])}{', …' if len(names) > 3 else ''} have"


def absent(names: Sequence[str]) -> tuple[str, ...]:
    """The note about groups that have nothing to show yet."""
    return (f"nothing to show of: {', '.join(names)}",) if names else ()


def beside(panels: Sequence[Any], columns: int = 2) -> Any:
    """Panels in rows; one alone stays as it is."""
    import altair as alt

    if len(panels) == 1:
        return panels[0]
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    return alt.vconcat(*(alt.hconcat(*row, spacing=30) for row in rows), spacing=26)


def labels_of(panels: Mapping[str, Sequence[Curve]]) -> list[str]:
    """All lines of a figure, which have the same colour in every panel."""
    return list(dict.fromkeys(one.label for curves in panels.values() for one in curves))
