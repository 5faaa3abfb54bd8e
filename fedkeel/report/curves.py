"""Accuracy over rounds of several runs, as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedkeel.runs.history import History

INK, FAINT = "#1f2933", "#8a94a0"
WIDTH, HEIGHT = 720, 380


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
    low = min([*drawn, 1.0 if target is None else target])
    last = [(name, history.final()) for name, history in histories.items()]
    ends = [{"run": name, "round": end.round, "accuracy": end.accuracy} for name, end in last if end is not None]
    colour = alt.Color("run:N", sort=order, title=None, scale=alt.Scale(scheme="tableau10", domain=order))
    # Every point lies inside: a scale that clamps would draw those below it at another height than they have.
    scale = alt.Scale(domain=[max(0.0, low - 0.02), 1.0], nice=False)
    y = alt.Y("accuracy:Q", title="test accuracy", axis=alt.Axis(format=".0%", tickCount=6), scale=scale)
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1))
    lines = alt.Chart(alt.InlineData(values=points)).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    dots = alt.Chart(alt.InlineData(values=ends)).mark_circle(size=45).encode(x=x, y=y, color=colour)
    layers = [lines, dots]
    if target is not None:
        rule = alt.Chart(alt.InlineData(values=[{"target": target}])).mark_rule(strokeDash=[4, 4], color=FAINT)
        layers.append(rule.encode(y=alt.Y("target:Q", scale=scale)))
    heading = alt.TitleParams(
        title,
        subtitle=subtitle,
        anchor="start",
        fontSize=16,
        color=INK,
        subtitleColor=FAINT,
        subtitlePadding=5,
        offset=14,
    )
    return (
        alt.layer(*layers)
        .properties(width=WIDTH, height=HEIGHT, title=heading, padding=18, background="white")
        .configure_view(stroke=None)
        .configure_axis(labelColor=INK, titleColor=FAINT, titleFontWeight="normal", gridColor="#eef1f4", domain=False)
        .configure_legend(labelColor=INK, labelFontSize=12, symbolStrokeWidth=3)
    )
