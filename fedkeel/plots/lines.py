"""Curves with bands, from numbers to a picture: what every figure with lines is made of.

A curve is the mean over seeds, its band what they spread over. Names stand at the ends of lines; where there is no
room for all of them, in a legend. Altair is imported only when something is drawn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedkeel import theme

Band = Literal["range", "sd"]
BANDS: dict[Band, str] = {"range": "smallest to largest", "sd": "one standard deviation to either side"}
LABEL = 14
"""Pixels between the labels of two lines."""
MOST_POINTS = 400
"""Of a curve: about one for every pixel."""


@dataclass(frozen=True)
class Curve:
    """Mean and both ends of the band over seeds, as (x, mean, low, high)."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    seeds: int = 1
    diverged: bool = False
    """Ended by a number that is not finite: a cross marks the end."""
    strong: bool = False
    """What the picture is about."""


def curve(
    label: str,
    found: Iterable[Sequence[tuple[float, float]]],
    upto: float = math.inf,
    band: Band = "range",
    *,
    diverged: bool = False,
    strong: bool = False,
) -> Curve | None:
    """From the finite (x, value) of every seed, over the x that all seeds have; None where there is none.

    A mean over fewer seeds would jump where one of them ends.
    """
    by_seed = [{x: value for x, value in one if math.isfinite(value)} for one in found]
    if not by_seed:
        return None
    common = sorted(x for x in set.intersection(*(set(one) for one in by_seed)) if x <= upto)
    every = max(1, math.ceil(len(common) / MOST_POINTS))
    points = []
    for x in sorted({*common[::every], *common[-1:]}):
        values = [one[x] for one in by_seed]
        mean = statistics.fmean(values)
        low, high = min(values), max(values)
        if band == "sd":
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            low, high = mean - sd, mean + sd
        points.append((x, mean, low, high))
    return Curve(label, tuple(points), len(by_seed), diverged, strong) if points else None


def notes(curves: Sequence[Curve], band: Band = "range") -> tuple[str, ...]:
    """What a reader must be told about lines, bands and crosses."""
    found = []
    if any(one.seeds > 1 for one in curves):
        found.append(f"line: mean over seeds; band: {BANDS[band]}")
    if any(one.diverged for one in curves):
        found.append("cross: diverged")
    return tuple(found)


def lines(
    curves: Sequence[Curve],
    size: tuple[int, int],
    y_title: str,
    title: Any = None,
    *,
    order: Sequence[str] | None = None,
    x_title: str = "round",
    x_format: str | None = None,
    direct: bool = True,
    log: bool = False,
    percent: bool = False,
    rules: Sequence[float] = (),
    first: Collection[str] = (),
    extent: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Any:
    """Lines with bands.

    ``order`` are all names that panels of one figure share, so that each keeps its colour; ``first`` those that choose
    theirs first. ``rules`` are heights that are marked, ``diagonal`` marks y = x. ``direct``: names at the ends of
    lines where there is room, else in a legend. ``extent`` are the ends of the x axis, by default 0 and the last x.
    """
    import altair as alt

    order = [one.label for one in curves] if order is None else order
    width, height = size
    low, high = domain([v for c in curves for p in c.points for v in p[2:]] + list(rules), log)
    axis = alt.Axis(tickCount=5)
    if percent:
        axis = alt.Axis(tickCount=5, format=".0%" if high - low > 0.05 else ".1%")
    scale = alt.Scale(domain=[low, high], nice=False, type="log" if log else "linear")
    y = alt.Y("mean:Q", title=y_title, axis=axis, scale=scale)
    start, end = extent or (0, max((c.points[-1][0] for c in curves), default=1) or 1)
    told = {"tickMinStep": 1} if x_title == "round" else {"format": x_format} if x_format else {}
    across = alt.Axis(tickCount=5, grid=False, domain=True, **told)
    x = alt.X("x:Q", title=x_title, axis=across).scale(alt.Scale(domain=[start, end], nice=False))
    looks = theme.looks(sorted(order, key=lambda name: name not in first))
    direct = direct and len(curves) * LABEL <= height
    legend = (
        None if direct else alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolFillColor="transparent")
    )
    names = list(order)
    colour = alt.Color("line:N", legend=legend, scale=alt.Scale(domain=names, range=[looks[n][0] for n in names]))
    dash = alt.StrokeDash("line:N", legend=legend, scale=alt.Scale(domain=names, range=[looks[n][1] for n in names]))
    points = [
        {"line": c.label, "x": x, "mean": m, "low": lo, "high": hi, "width": 1 if c.strong else 0}
        for c in curves
        for x, m, lo, hi in c.points
    ]
    data = alt.Chart(alt.InlineData(values=points))
    weight = alt.StrokeWidth(
        "width:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[theme.LINE, theme.STRONG], type="linear")
    )
    tip = [
        "line:N",
        alt.Tooltip("x:Q", title=x_title),
        *(alt.Tooltip(f"{field}:Q", format=".4g") for field in ("mean", "low", "high")),
    ]
    layers = []
    if rules:
        layers.append(_marked([{"at": one} for one in rules]).mark_rule(**_FAINT).encode(y=alt.Y("at:Q", scale=scale)))
    if diagonal:
        ends = _marked([{"x": max(start, low), "mean": max(start, low)}, {"x": min(end, high), "mean": min(end, high)}])
        layers.append(ends.mark_line(**_FAINT).encode(x=x, y=y))
    if any(c.seeds > 1 for c in curves):
        band = data.mark_area(opacity=0.16)
        layers.append(band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour))
    layers.append(
        data.mark_line(clip=True).encode(x=x, y=y, color=colour, strokeDash=dash, strokeWidth=weight, tooltip=tip)
    )
    broken = [{"line": c.label, "x": c.points[-1][0], "mean": c.points[-1][1]} for c in curves if c.diverged]
    if broken:
        cross = _marked(broken).mark_point(shape="cross", angle=45, filled=True, size=70)
        layers.append(cross.encode(x=x, y=y, color=colour))
    alone = [{"line": c.label, "x": c.points[0][0], "mean": c.points[0][1]} for c in curves if len(c.points) == 1]
    if alone:  # a line through one point cannot be seen
        layers.append(_marked(alone).mark_circle(size=40).encode(x=x, y=y, color=colour))
    if direct:
        inks = {name: theme.legible(looks[name][0]) for name in names}
        layers += _labels(curves, inks, colour, x, scale, low, high, end, size[1], log)
    drawn = alt.layer(*layers).properties(width=width, height=height)
    return drawn if title is None else drawn.properties(title=title)


_FAINT = {"strokeDash": [4, 4], "color": theme.FAINT, "strokeWidth": 1}


def _marked(values: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(values)))


def _labels(
    curves: Sequence[Curve],
    inks: Mapping[str, str],
    colour: Any,
    x: Any,
    scale: Any,
    low: float,
    high: float,
    end: float,
    height: int,
    log: bool,
) -> list[Any]:
    """Names at the right edge; a line that ends before it is led there. ``inks`` are what words are written in."""
    import altair as alt

    def up(value: float) -> float:
        return math.log(value) if log else value

    wanted = {c.label: up(c.points[-1][1]) for c in curves}
    least = (up(high) - up(low)) * LABEL / height
    at = theme.apart(wanted, least, up(low) + least / 2, up(high) - least / 2)  # so that titles beside keep their line
    heights = {name: math.exp(place) if log else place for name, place in at.items()}
    layers = []
    short = [c for c in curves if c.points[-1][0] < 0.98 * end]
    if short:
        ways = [
            {"line": c.label, "x": place, "mean": value}
            for c in short
            for place, value in ((c.points[-1][0], c.points[-1][1]), (end, heights[c.label]))
        ]
        led = _marked(ways).mark_line(strokeDash=[1, 3], strokeWidth=1, opacity=0.8)
        layers.append(led.encode(x=x, y=alt.Y("mean:Q", scale=scale), color=colour))
    names = _marked([{"line": name, "at": height, "ink": inks[name]} for name, height in heights.items()])
    ink = alt.Color("ink:N", scale=None)
    text = names.mark_text(align="left", dx=6, fontSize=11)
    layers.append(text.encode(x=alt.value("width"), y=alt.Y("at:Q", scale=scale), text="line:N", color=ink))
    return layers


def domain(values: Sequence[float], log: bool = False) -> tuple[float, float]:
    """From the smallest to the largest value with a little room."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        return low / 1.1, high * 1.1
    room = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return low - (room if low < 0 or low > room else low), high + room


def panel_title(title: str, below: str | Sequence[str] = "") -> Any:
    """The title of one of several panels, above a line or several."""
    import altair as alt

    return alt.TitleParams(
        title,
        subtitle=below,
        anchor="start",
        frame="group",
        fontSize=13,
        fontWeight="normal",
        color=theme.INK,
        subtitleColor=theme.FAINT,
        subtitleFontSize=11,
        offset=8,
    )
