"""Client drift over rounds, in all and layer by layer."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from fedkeel import theme
from fedkeel.errors import InputError
from fedkeel.plots.figure import WIDE, Figure, Options, absent, beside, group_curves, whose
from fedkeel.plots.lines import notes, panel_title
from fedkeel.plots.sources import Chosen, Source
from fedkeel.plots.values import draw_panels, value_curves

DISTANCE = "distance of clients' models from the global one"
GAMMA = "Γ, drift degree: 1 if all clients' gradients are equal"
MEASURED = {"measure.gamma": GAMMA, "measure.angle": "angle of clients' updates to their mean, degrees"}
LAYER = "measure.drift/"
"""How the names of the drift of single layers begin."""
MOST_COLUMNS = 120
"""Rounds of a map, about one for every six pixels."""
SWITCH = "[measure] every = 1 in the experiment (--set measure.every=1) measures it"


def drift(chosen: Chosen, options: Options) -> Figure:
    """The mean distance ‖y_i − w‖ that every run has, and what was measured beside it."""
    panels: dict[str, Any] = {}
    told: dict[str, None] = {}
    if any(_distances(source) for source in chosen.sources):
        curves, lacking = group_curves(chosen, _distances, options, "")
        panels[DISTANCE] = curves
        told |= dict.fromkeys((*notes(curves, options.band), *lacking))
    known = {name for source in chosen.sources for name in source.run.history.names}
    for name, words in MEASURED.items():
        if name in known:
            panels[words], said = value_curves(chosen, name, options)
            short = words.partition(" ")[0].rstrip(",")
            told |= dict.fromkeys(f"{short}: {one}" if one.startswith("nothing") else one for one in said)
    if not panels:
        raise InputError(
            f"{whose(chosen)} no drift: no round was done yet, or clients upload no model; {SWITCH} with Γ and angles."
        )
    return Figure("Client drift over rounds", (chosen.setting, *told), panels)


def _distances(source: Source) -> list[tuple[float, float]]:
    return [(r.round, r.drift) for r in source.run.history.rounds if math.isfinite(r.drift)]


def draw_drift(figure: Figure) -> Any:
    return draw_panels(figure.rows, log=(GAMMA,))  # Γ grows without bound towards a stationary point


def layers(chosen: Chosen, options: Options) -> Figure:
    """Maps of layer by round, one for each group: the mean over its seeds of what was measured."""
    rows, lacking = [], []
    for name, group in chosen.groups.items():
        by_seed = [_by_layer(source) for source in group]
        common = [layer for layer in by_seed[0] if all(layer in one for one in by_seed)]
        cells = [
            {"run": name, "layer": layer, "round": r, "value": fmean(one[layer][r] for one in by_seed)}
            for layer in common
            for r in _thinned(sorted(set.intersection(*(set(one[layer]) for one in by_seed))))
        ]
        if cells:
            rows += cells
        else:
            lacking.append(name)
    if not rows:
        raise InputError(f"{whose(chosen)} no drift by layer: {SWITCH}.")
    several = ("mean over seeds",) if any(len(group) > 1 for group in chosen.groups.values()) else ()
    return Figure("Client drift by layer", (chosen.setting, *several, *absent(lacking)), rows)


def _by_layer(source: Source) -> dict[str, dict[int, float]]:
    history = source.run.history
    return {
        name.removeprefix(LAYER): {
            r: v for r, v in history.values(name).items() if not isinstance(v, dict) and math.isfinite(v)
        }
        for name in history.names
        if name.startswith(LAYER)
    }


def _thinned(rounds: list[int]) -> list[int]:
    every = max(1, math.ceil(len(rounds) / MOST_COLUMNS))
    return rounds[::every]


def draw_layers(figure: Figure) -> Any:
    import altair as alt

    rows: list[dict[str, Any]] = figure.rows
    runs = list(dict.fromkeys(row["run"] for row in rows))
    order = list(dict.fromkeys(row["layer"] for row in rows))
    top = max(row["value"] for row in rows)
    shade = alt.Color(
        "value:Q",
        scale=alt.Scale(scheme="blues", domain=[min(0.0, *(row["value"] for row in rows)), top or 1.0]),
        legend=alt.Legend(title="mean distance"),
    )
    step = 20 if len(order) <= 24 else 9
    panels = []
    for run in runs:
        own = [row for row in rows if row["run"] == run]
        chart = alt.Chart(alt.InlineData(values=own)).mark_rect(stroke=theme.GRID, strokeWidth=0.5)
        x = alt.X("round:O", axis=alt.Axis(labelOverlap="greedy", labelAngle=0, domain=False))
        y = alt.Y("layer:N", title=None, sort=order, axis=alt.Axis(domain=False, labelLimit=240, labelOverlap=True))
        tip = ["layer:N", "round:Q", alt.Tooltip("value:Q", format=".4g")]
        drawn = chart.encode(x=x, y=y.scale(domain=order), color=shade, tooltip=tip)
        panels.append(drawn.properties(width=WIDE[0] - 120, height=step * len(order), title=panel_title(run)))
    return beside(panels, columns=1)
