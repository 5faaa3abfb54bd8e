"""What algorithms noted of themselves by round: one line for each group, or for each client of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedkeel.errors import InputError, named, unknown
from fedkeel.plots.figure import HALF, WIDE, Figure, Options, absent, beside, group_curves, labels_of, whose
from fedkeel.plots.lines import Curve, curve, lines, notes, panel_title
from fedkeel.plots.sources import Chosen, Source

MOST_CLIENTS = 10
"""Clients that get a line each; of more, mean and extremes are drawn."""
MEASURED = "measure."
"""How the names of measured values begin; others are the algorithm's."""


def known_names(chosen: Chosen) -> list[str]:
    """Every name under which a run has values."""
    return list(dict.fromkeys(name for source in chosen.sources for name in source.run.history.names))


def values(chosen: Chosen, options: Options) -> Figure:
    """A panel for each name."""
    known = known_names(chosen)
    if not known:
        raise InputError(
            f"{whose(chosen)} no named values: algorithms such as fedveca and gradma note some, your own does with "
            "State.noting, and [measure] every = 1 measures drift."
        )
    if not options.names:
        listed = ", ".join(map(named, known[:40]))
        raise InputError(f"which values? Give --name (may be repeated); the runs have {listed}.")
    for name in options.names:
        if name not in known:
            raise unknown("value", name, known)
    panels: dict[str, list[Curve]] = {}
    told: dict[str, None] = {}
    for name in options.names:
        panels[name], said = value_curves(chosen, name, options)
        told |= dict.fromkeys(said)
    return Figure(", ".join(options.names), (chosen.setting, *told), panels)


def value_curves(chosen: Chosen, name: str, options: Options) -> tuple[list[Curve], tuple[str, ...]]:
    """The lines of one name, and what a reader must know of them."""
    by_client = any(isinstance(v, dict) for s in chosen.sources for v in _values(s, name).values())
    if not by_client:
        curves, lacking = group_curves(
            chosen, lambda source: _numbers(source, name), options, "{runs} nothing finite under that name."
        )
        return curves, (*notes(curves, options.band), *lacking)
    clients = sorted({client for s in chosen.sources for v in _values(s, name).values() for client in _of(v)})
    if len(chosen.groups) == 1 and len(clients) <= MOST_CLIENTS:
        first = chosen.sources[0]
        found = [curve(f"client {client}", [_of_client(first, name, client)]) for client in clients]
        seed = f", of seed {first.run.seed}" if len(chosen.sources) > 1 else ""
        return [one for one in found if one is not None], (f"a line for each client{seed}",)
    made = {group: _over_clients(group, sources[0], name) for group, sources in chosen.groups.items()}
    several = any(len(sources) > 1 for sources in chosen.groups.values())
    told = "line: mean over a round's clients; band: smallest to largest of them" + (
        "; first seed of each" if several else ""
    )
    return [one for one in made.values() if one is not None], (told, *absent([g for g, one in made.items() if not one]))


def _values(source: Source, name: str) -> dict[int, Any]:
    history = source.run.history
    return dict(history.values(name)) if name in history.names else {}


def _of(value: Any) -> dict[int, float]:
    return value if isinstance(value, dict) else {}


def _numbers(source: Source, name: str) -> list[tuple[float, float]]:
    return [(r, v) for r, v in _values(source, name).items() if not isinstance(v, dict)]


def _of_client(source: Source, name: str, client: int) -> list[tuple[float, float]]:
    return [(r, _of(v)[client]) for r, v in _values(source, name).items() if client in _of(v)]


def _over_clients(label: str, source: Source, name: str) -> Curve | None:
    points = []
    for r, value in _values(source, name).items():
        finite = [one for one in _of(value).values() if math.isfinite(one)]
        if finite:
            points.append((r, fmean(finite), min(finite), max(finite)))
    return Curve(label, tuple(points), seeds=2) if points else None  # more than one, so that the band is drawn


def draw_values(figure: Figure) -> Any:
    return draw_panels(figure.rows)


def draw_panels(panels: dict[str, Sequence[Curve]], log: Sequence[str] = ()) -> Any:
    """A panel with lines for each title; those in ``log`` have a logarithmic axis."""
    order = labels_of(panels)
    if len(panels) == 1:
        (name, curves) = next(iter(panels.items()))
        return lines(curves, WIDE, name, order=order, log=name in log)
    return beside(
        [lines(curves, HALF, "", panel_title(name), order=order, log=name in log) for name, curves in panels.items()]
    )
