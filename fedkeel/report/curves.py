"""Accuracy over rounds of several runs, as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedkeel import theme
from fedkeel.runs.history import History

WIDTH, HEIGHT = 720, 380
LINE_HEIGHT = 15
"""Pixels that a label at the end of a line needs."""


def curves_chart(histories: Mapping[str, History], title: str, subtitle: str = "", target: float | None = None) -> Any:
    """Test accuracy of each run's reported model; ``target`` in [0, 1] draws a line to reach."""
    import altair as alt

    points: list[dict[str, Any]] = [
        {"run": name, "round": point.round, "accuracy": point.accuracy}
        for name, history in histories.items()
        for point in history.series()
    ]
    order = list(histories)
    drawn = [point["accuracy"] for point in points if math.isfinite(point["accuracy"])]
    low = max(0.0, min([*drawn, 1.0 if target is None else target]) - 0.02)
    last = [(name, history.final()) for name, history in histories.items()]
    ends: list[dict[str, Any]] = [
        {"run": name, "round": end.round, "accuracy": end.accuracy} for name, end in last if end is not None
    ]
    looks = theme.looks(order)
    colour = alt.Color("run:N", legend=None, scale=alt.Scale(domain=order, range=[looks[name][0] for name in order]))
    dash = alt.StrokeDash("run:N", legend=None, scale=alt.Scale(domain=order, range=[looks[n][1] for n in order]))
    # Every point lies inside: a scale that clamps would draw those below it at another height than they have.
    scale = alt.Scale(domain=[low, 1.0], nice=False)
    y = alt.Y("accuracy:Q", title="test accuracy", axis=alt.Axis(format=".0%", tickCount=6), scale=scale)
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    lines = alt.Chart(alt.InlineData(values=points)).mark_line(strokeWidth=2)
    dots = alt.Chart(alt.InlineData(values=ends)).mark_circle(size=45).encode(x=x, y=y, color=colour)
    heights = {end["run"]: end["accuracy"] for end in ends if math.isfinite(end["accuracy"])}
    at = theme.apart(heights, (1 - low) * LINE_HEIGHT / HEIGHT, low, 1.0)
    names = alt.Chart(alt.InlineData(values=[{"run": name, "at": height} for name, height in at.items()]))
    labels = names.mark_text(align="left", dx=10, fontSize=12).encode(
        x=alt.value(WIDTH), y=alt.Y("at:Q", scale=scale, title="test accuracy"), text="run:N", color=colour
    )
    layers = [lines.encode(x=x, y=y, color=colour, strokeDash=dash), dots, labels]
    if target is not None:
        rule = alt.Chart(alt.InlineData(values=[{"target": target}])).mark_rule(strokeDash=[4, 4], color=theme.FAINT)
        layers.append(rule.encode(y=alt.Y("target:Q", scale=scale)))
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    return theme.styled(chart, theme.heading(title, subtitle), domain=False)


def panels_chart(panels: Mapping[str, Mapping[str, History]], title: str, columns: int = 3) -> Any:
    """Test accuracy of a few runs in each of several panels, by title."""
    import altair as alt

    charts = []
    for heading, histories in panels.items():
        points = [
            {"run": name, "round": point.round, "accuracy": point.accuracy}
            for name, history in histories.items()
            for point in history.series()
        ]
        order = list(histories)
        looks = theme.looks(order)
        colour = alt.Scale(domain=order, range=[looks[name][0] for name in order])
        dash = alt.Scale(domain=order, range=[looks[name][1] for name in order])
        legend = alt.Legend(orient="bottom")
        encoded = (
            alt.Chart(alt.InlineData(values=points))
            .mark_line(strokeWidth=2)
            .encode(
                x=alt.X("round:Q", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False)),
                y=alt.Y("accuracy:Q", title=None, axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1])),
                color=alt.Color("run:N", scale=colour, title=None, legend=legend),
                strokeDash=alt.StrokeDash("run:N", scale=dash, title=None, legend=legend),
            )
        )
        charts.append(encoded.properties(width=220, height=150, title=alt.TitleParams(heading, anchor="start")))
    chart = alt.concat(*charts, columns=columns).resolve_scale(color="independent", strokeDash="independent")
    return theme.styled(chart, theme.heading(title, "Test accuracy over rounds"), domain=False)
