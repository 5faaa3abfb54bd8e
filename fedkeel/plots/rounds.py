"""How many rounds runs need to reach a test accuracy, as bars."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from fedkeel import theme
from fedkeel.errors import InputError
from fedkeel.plots.figure import WIDE, Figure, Options, absent, whose
from fedkeel.plots.learning import NO_ACCURACY, accuracies
from fedkeel.plots.sources import Chosen

BAR = 30
"""Height of a row."""


def rounds(chosen: Chosen, options: Options) -> Figure:
    """A row for each group: mean, fewest and most rounds over its seeds.

    A run that did not arrive counts with the rounds that it has done: its group's bar is a lower bound, and says so.
    """
    if options.target is None:
        raise InputError("rounds to which test accuracy? Give a target in [0, 1], such as --target 0.9.")
    rows: list[dict[str, Any]] = []
    lacking: list[str] = []
    for name, group in chosen.groups.items():
        if not all(accuracies(source) for source in group):
            lacking.append(name)
            continue
        found = [source.run.history.rounds_to(options.target) for source in group]
        done = [len(source.run.history.rounds) for source in group]
        counted = [budget if need is None else need for need, budget in zip(found, done, strict=True)]
        reached = sum(need is not None for need in found)
        mean, all_of_them = fmean(counted), reached == len(group)
        text = f"{'' if all_of_them else '> '}{mean:.1f}".removesuffix(".0")
        if not all_of_them and len(group) > 1:
            text += f" ({reached} of {len(group)} seeds reached it)"
        rows.append(
            {"name": name, "value": mean, "low": min(counted), "high": max(counted), "text": text}
            | {"reached": all_of_them, "seeds": len(group)}
        )
    if not rows:
        raise InputError(NO_ACCURACY.format(runs=whose(chosen)))
    told = [chosen.setting]
    if any(row["seeds"] > 1 for row in rows):
        told.append("bar: mean over seeds; line: fewest to most rounds")
    if not all(row["reached"] for row in rows):
        told.append("pale: not reached, so the bar is the rounds done")
    return Figure(f"Rounds to a test accuracy of {100 * options.target:.4g} %", (*told, *absent(lacking)), rows)


def draw_rounds(figure: Figure) -> Any:
    import altair as alt

    rows: list[dict[str, Any]] = figure.rows
    order = [row["name"] for row in rows]
    scale = alt.Scale(domain=[0, max(row["high"] for row in rows) * 1.02 or 1], nice=False)
    x = alt.X("value:Q", title="rounds", axis=alt.Axis(tickCount=6, tickMinStep=1, domain=False), scale=scale)
    names = alt.Axis(grid=False, domain=False, labelLimit=260, labelFontSize=12)
    y = alt.Y("name:N", title=None, sort=order, axis=names, scale=alt.Scale(domain=order))
    looks = theme.looks(order)
    colour = alt.Color("name:N", legend=None, scale=alt.Scale(domain=order, range=[looks[name][0] for name in order]))
    data = alt.Chart(alt.InlineData(values=rows))
    opacity = alt.condition("datum.reached", alt.value(1.0), alt.value(0.4))
    tip = ["name:N", alt.Tooltip("text:N", title="rounds"), "low:Q", "high:Q", "seeds:Q"]
    layers = [data.mark_bar(size=BAR * 0.55).encode(x=x, y=y, color=colour, opacity=opacity, tooltip=tip)]
    if any(row["low"] < row["high"] for row in rows):
        layers.append(data.mark_rule(color=theme.INK).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y))
    words = data.mark_text(align="left", dx=8, fontSize=12, color=theme.INK)
    layers.append(words.encode(x=alt.X("high:Q", scale=scale), y=y, text="text:N"))
    return alt.layer(*layers).properties(width=WIDE[0] - 140, height=BAR * len(rows))
