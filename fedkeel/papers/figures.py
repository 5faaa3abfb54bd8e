"""The papers' figures from our records, laid out as in print.

A curve is the mean over seeds, with a band from the smallest to the largest. What was not run is said where it is
missing. Altair is imported only when a figure is drawn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel import theme
from fedkeel.errors import InputError
from fedkeel.papers.cells import budget, measured, runs, scales
from fedkeel.papers.current import refuse_stale
from fedkeel.papers.format import Exhibit, Line, Panel, Paper, Scale, exhibit, papers
from fedkeel.papers.measures import Summary, shown
from fedkeel.papers.plan import said
from fedkeel.papers.records import Record, Records
from fedkeel.papers.toy import averaged, optimum

SIZES = {1: (620, 340), 2: (370, 270), 3: (290, 215)}
"""Width and height of a panel by how many stand in a row."""
SMALL = (215, 190)
LABEL = 14
"""Pixels between the labels of two lines."""
MOST_POINTS = 400
"""Of a curve: about one for every pixel."""
BAR, NUMBERS = 24, 80
"""Height of a row of bars, and the width of the numbers beside them."""
ACCURACY = ("accuracy", "train_accuracy")
METRICS = {
    "accuracy": "test accuracy",
    "loss": "test loss",
    "train_accuracy": "training accuracy",
    "train_loss": "training loss",
}


def figure(name: str, records: Records, scale: Scale | None = None) -> Any:
    """A figure of a paper as an Altair chart: at ``scale``, or each panel at the best one that it has."""
    chosen = exhibit(name)
    refuse_stale(papers()[chosen.paper], records)
    return draw(papers()[chosen.paper], chosen, records, scale)


def draw(paper: Paper, chosen: Exhibit, records: Records, scale: Scale | None = None) -> Any:
    """The same for any paper."""
    if chosen.kind == "table":
        raise InputError(f"{chosen.id} is a table, not a figure; see it with: fedkeel paper verdict {chosen.id}")
    if chosen.kind == "illustration":
        raise InputError(f"{chosen.id} ({chosen.where}) was drawn by hand and shows no data: {chosen.shows}")
    if chosen.kind == "toy":
        return _toy(paper, chosen)
    rows, columns = chosen.layout or _square(len(chosen.panels))
    size = SIZES.get(columns, SMALL)
    order = _names(paper, chosen, records, scale)
    drawn = [_panel(paper, chosen, panel, records, scale, order, size, columns) for panel in chosen.panels]
    notes = dict.fromkeys(note for one in drawn for note in one.notes)
    return _together(paper, chosen, [one.chart for one in drawn], rows, columns, list(notes))


@dataclass(frozen=True)
class _Drawn:
    chart: Any
    notes: tuple[str, ...] = ()


def _names(paper: Paper, chosen: Exhibit, records: Records, scale: Scale | None) -> list[str]:
    """All lines of a figure, which have the same colour in every panel."""
    names = [line.label for panel in chosen.panels for line in panel.lines]
    if chosen.kind == "values":
        found = [(panel, _scale_of(paper, panel, records, scale)) for panel in chosen.panels]
        drawn = [_value_curves(paper, panel, records, one)[0] for panel, one in found if one is not None]
        names = [curve.label for curves in drawn for curve in curves]
    return list(dict.fromkeys(names))


def _square(count: int) -> tuple[int, int]:
    columns = min(3, count)
    return math.ceil(count / columns), columns


def _together(
    paper: Paper, chosen: Exhibit, panels: Sequence[Any], rows: int, columns: int, notes: Sequence[str]
) -> Any:
    import altair as alt

    if any(panel.title.subtitle for panel in panels):  # all frames begin at the same height
        for panel in panels:
            panel.title.subtitle = panel.title.subtitle or " "
    lines = [panels[row * columns : (row + 1) * columns] for row in range(rows)]
    chart = alt.vconcat(*(alt.hconcat(*line, spacing=28) for line in lines if line), spacing=24)
    subtitle = [f"{paper.authors}, {paper.venue}, {chosen.where}, computed by fedkeel", *notes]
    return theme.styled(chart, theme.heading(chosen.title, subtitle)).configure_legend(
        orient="bottom",
        columns=8 if columns > 1 else 6,
        labelColor=theme.INK,
        labelFontSize=12,
        symbolStrokeWidth=2.5,
        symbolSize=420,
        labelLimit=260,
        offset=16,
    )


def _scale_of(paper: Paper, panel: Panel, records: Records, scale: Scale | None) -> Scale | None:
    """The best scale at which anything of a panel is on record."""
    for one in scales(scale):
        if any(runs(paper, line.setting, line.method, records, one) for line in panel.lines):
            return one
    return None


def _panel(
    paper: Paper,
    chosen: Exhibit,
    panel: Panel,
    records: Records,
    scale: Scale | None,
    order: Sequence[str],
    size: tuple[int, int],
    columns: int,
) -> _Drawn:
    found = _scale_of(paper, panel, records, scale)
    if found is None:
        return _Drawn(_not_run(paper, panel, (size[0], _height(panel) if chosen.kind == "bars" else size[1])))
    if chosen.kind == "bars":
        return _bars(paper, panel, records, found, size)
    if chosen.kind == "sets":
        return _sets(paper, panel, records, found, order, size, columns)
    if chosen.kind == "values":
        return _values(paper, chosen, panel, records, found, order, size, columns)
    return _curves(paper, panel, records, found, order, size, columns)


def _not_run(paper: Paper, panel: Panel, size: tuple[int, int]) -> Any:
    """An empty frame of the panel's size."""
    import altair as alt

    needs = list(dict.fromkeys(need for line in panel.lines for need in paper.settings[line.setting].needs))
    below = f"needs {' and '.join(map(said, needs))}" if needs else ""
    frame = alt.Chart(alt.InlineData(values=[{}]))
    ground = frame.mark_rect(color="#f6f8fa").encode(
        x=alt.value(0), x2=alt.value(size[0]), y=alt.value(0), y2=alt.value(size[1])
    )
    words = frame.mark_text(color=theme.FAINT, fontSize=14, text="not run")
    words = words.encode(x=alt.value(size[0] / 2), y=alt.value(size[1] / 2))
    return (ground + words).properties(width=size[0], height=size[1], title=_title(panel.title, below))


def _title(title: str, below: str = "") -> Any:
    import altair as alt

    return alt.TitleParams(
        title,
        subtitle=below,
        anchor="start",
        fontSize=13,
        fontWeight="normal",
        color=theme.INK,
        subtitleColor=theme.FAINT,
        subtitleFontSize=11,
        offset=8,
    )


def _below(paper: Paper, panel: Panel, scale: Scale, missing: Sequence[str]) -> str:
    """What a reader must know about a panel: its scale, and whom it lacks."""
    said = []
    if scale == "reduced":
        reduced = [paper.settings[line.setting].reduced for line in panel.lines]
        words = list(dict.fromkeys(one.says for one in reduced if one is not None))
        said.append(f"reduced: {words[0]}" if len(words) == 1 else "reduced")
    elif scale == "smoke":
        said.append("smoke: shows that it runs, no more")
    if missing:
        named = ", ".join(missing) if len(missing) <= 3 else f"{len(missing)} of {len(panel.lines)}"
        said.append(f"not run: {named}")
    return "; ".join(said)


# -- Curves


@dataclass(frozen=True)
class _Curve:
    """Mean, smallest and largest over seeds, by round (or by another number)."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    seeds: int
    diverged: bool
    strong: bool


def _series(
    label: str, found: Iterable[Sequence[tuple[int, float]]], upto: int, diverged: bool, strong: bool
) -> _Curve | None:
    """Over the rounds that all seeds have: a mean over fewer of them would jump where one ends."""
    by_seed = [dict(one) for one in found]
    if not by_seed:
        return None
    rounds = sorted(r for r in set.intersection(*(set(one) for one in by_seed)) if r <= upto)
    every = max(1, math.ceil(len(rounds) / MOST_POINTS))
    kept = sorted({*rounds[::every], *rounds[-1:]})
    points = []
    for r in kept:
        values = [one[r] for one in by_seed]
        points.append((r, statistics.fmean(values), min(values), max(values)))
    return _Curve(label, tuple(points), len(by_seed), diverged, strong) if points else None


def _known(record: Record, metric: str) -> list[tuple[int, float]]:
    rounds, values = record.series.get(metric, ((), ()))
    return [(r, v) for r, v in zip(rounds, values, strict=True) if v is not None and math.isfinite(v)]


def _curves(
    paper: Paper,
    panel: Panel,
    records: Records,
    scale: Scale,
    order: Sequence[str],
    size: tuple[int, int],
    columns: int,
) -> _Drawn:
    curves, missing = [], []
    for line in panel.lines:
        found = runs(paper, line.setting, line.method, records, scale)
        upto = min(panel.rounds or budget(paper, line.setting, scale), budget(paper, line.setting, scale))
        curve = _series(
            line.label,
            (_known(record, panel.metric) for record in found),
            upto,
            any(record.ended == "diverged" and record.rounds < upto for record in found),
            _is_own(paper, panel, line),
        )
        if curve is None:
            missing.append(line.label)
        else:
            curves.append(curve)
    title = _title(panel.title, _below(paper, panel, scale, missing))
    named = METRICS[panel.metric]
    as_percent = panel.metric in ACCURACY
    chart = _lines(curves, order, size, columns, named, title, panel.log, as_percent, first=_own_labels(paper, panel))
    return _Drawn(chart, _notes(curves))


def _sets(
    paper: Paper,
    panel: Panel,
    records: Records,
    scale: Scale,
    order: Sequence[str],
    size: tuple[int, int],
    columns: int,
) -> _Drawn:
    """Mean size of prediction sets against their coverage; of several seeds, both are means."""
    import altair as alt

    curves, missing = [], []
    for line in panel.lines:
        found = [one.sets for one in runs(paper, line.setting, line.method, records, scale) if one.sets]
        points = [
            (
                statistics.fmean(coverage for _, coverage, _ in level),
                statistics.fmean(sizes := [mean for _, _, mean in level]),
                min(sizes),
                max(sizes),
            )
            for level in zip(*found, strict=True)
        ]
        if points:
            curves.append(_Curve(line.label, tuple(sorted(points)), len(found), False, _is_own(paper, panel, line)))
        else:
            missing.append(line.label)
    reached = [point[0] for curve in curves for point in curve.points] or [0.0, 1.0]
    across = alt.X(
        "round:Q",
        title="coverage",
        axis=alt.Axis(tickCount=5, format=".0%", grid=False, domain=True),
        scale=alt.Scale(domain=[min(reached), max(reached)], nice=False),
    )
    title = _title(panel.title, _below(paper, panel, scale, missing))
    first = _own_labels(paper, panel)
    chart = _lines(curves, order, size, columns, "mean size of sets", title, first=first, across=across)
    return _Drawn(chart, _notes(curves))


def _notes(curves: Sequence[_Curve]) -> tuple[str, ...]:
    notes = []
    if any(curve.seeds > 1 for curve in curves):
        notes.append("line: mean over seeds; band: smallest to largest")
    if any(curve.diverged for curve in curves):
        notes.append("cross: diverged")
    return tuple(notes)


def _is_own(paper: Paper, panel: Panel, line: Line) -> bool:
    """Whether a line is drawn strongly: the paper's own among others."""
    own = [paper.methods[one.method].algorithm in paper.own for one in panel.lines]
    return paper.methods[line.method].algorithm in paper.own and not all(own)


def _own_labels(paper: Paper, panel: Panel) -> set[str]:
    return {line.label for line in panel.lines if _is_own(paper, panel, line)}


def _lines(
    curves: Sequence[_Curve],
    order: Sequence[str],
    size: tuple[int, int],
    columns: int,
    y_title: str,
    title: Any,
    log: bool = False,
    percent: bool = False,
    rules: Sequence[float] = (),
    first: Collection[str] = (),
    across: Any = None,
) -> Any:
    """Lines with bands; names at their ends where there is room for all, else in a legend that all panels share.

    ``first`` are those that choose their colours first; ``across`` is the axis of what is not by round.
    """
    import altair as alt

    width, height = size
    low, high = _domain([v for c in curves for p in c.points for v in p[2:]] + list(rules), log)
    axis = alt.Axis(tickCount=5)
    if percent:
        axis = alt.Axis(tickCount=5, format=".0%" if high - low > 0.05 else ".1%")
    scale = alt.Scale(domain=[low, high], nice=False, type="log" if log else "linear")
    y = alt.Y("mean:Q", title=y_title, axis=axis, scale=scale)
    last = max((c.points[-1][0] for c in curves), default=1)
    x = across or alt.X(
        "round:Q",
        title="round",
        axis=alt.Axis(tickCount=5, tickMinStep=1, grid=False, domain=True),
        scale=alt.Scale(domain=[0, last], nice=False),
    )
    looks = theme.looks(sorted(order, key=lambda name: name not in first))
    direct = columns <= 2 and len(curves) * LABEL <= height
    legend = (
        None if direct else alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolFillColor="transparent")
    )
    domain = list(order)
    colours = alt.Scale(domain=domain, range=[looks[n][0] for n in domain])
    colour = alt.Color("line:N", legend=legend, scale=colours)
    dash = alt.StrokeDash("line:N", legend=legend, scale=alt.Scale(domain=domain, range=[looks[n][1] for n in domain]))
    points = [
        {"line": c.label, "round": r, "mean": m, "low": lo, "high": hi, "width": 1 if c.strong else 0}
        for c in curves
        for r, m, lo, hi in c.points
    ]
    data = alt.Chart(alt.InlineData(values=points))
    weight = alt.StrokeWidth(
        "width:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[theme.LINE, theme.STRONG], type="linear")
    )
    tip = ["line:N", "round:Q", alt.Tooltip("mean:Q", format=".4g"), alt.Tooltip("low:Q"), alt.Tooltip("high:Q")]
    layers = []
    if rules:
        rule = alt.Chart(alt.InlineData(values=[{"at": one} for one in rules])).mark_rule(
            strokeDash=[4, 4], color=theme.FAINT
        )
        layers.append(rule.encode(y=alt.Y("at:Q", scale=scale)))
    if any(c.seeds > 1 for c in curves):
        band = data.mark_area(opacity=0.16)
        layers.append(band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour))
    layers.append(
        data.mark_line(clip=True).encode(x=x, y=y, color=colour, strokeDash=dash, strokeWidth=weight, tooltip=tip)
    )
    broken = [{"line": c.label, "round": c.points[-1][0], "mean": c.points[-1][1]} for c in curves if c.diverged]
    if broken:
        cross = alt.Chart(alt.InlineData(values=broken)).mark_point(shape="cross", angle=45, filled=True, size=70)
        layers.append(cross.encode(x=x, y=y, color=colour))
    alone = [{"line": c.label, "round": c.points[0][0], "mean": c.points[0][1]} for c in curves if len(c.points) == 1]
    if alone:  # a line through one point cannot be seen
        dots = alt.Chart(alt.InlineData(values=alone)).mark_circle(size=40)
        layers.append(dots.encode(x=x, y=y, color=colour))
    if direct:
        layers.append(_labels(curves, colour, scale, low, high, width, height, log))
    return alt.layer(*layers).properties(width=width, height=height, title=title)


def _labels(
    curves: Sequence[_Curve], colour: Any, scale: Any, low: float, high: float, width: int, height: int, log: bool
) -> Any:
    import altair as alt

    def up(value: float) -> float:
        return math.log(value) if log else value

    wanted = {c.label: up(c.points[-1][1]) for c in curves}
    at = theme.apart(wanted, (up(high) - up(low)) * LABEL / height, up(low), up(high))
    values = [{"line": name, "at": math.exp(place) if log else place} for name, place in at.items()]
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_text(align="left", dx=6, fontSize=11)
        .encode(
            x=alt.value(width),
            y=alt.Y("at:Q", scale=scale),
            text="line:N",
            color=colour,
        )
    )


def _domain(values: Sequence[float], log: bool = False) -> tuple[float, float]:
    """From the smallest to the largest value with a little room."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        return low / 1.1, high * 1.1
    room = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return low - (room if low < 0 or low > room else low), high + room


# -- Bars


def _measure_title(panel: Panel) -> str:
    measure = panel.measure
    percent = ", %" if measure is not None and measure.kind != "rounds_to" and measure.printed_scale == 100 else ""
    return f"{measure}{percent}".replace("train ", "training ")


def _height(panel: Panel) -> int:
    return BAR * len({line.label for line in panel.lines})


def _bars(paper: Paper, panel: Panel, records: Records, scale: Scale, size: tuple[int, int]) -> _Drawn:
    """Bars from zero for rounds; dots on an axis of their own for accuracies, whose differences bars would hide."""
    import altair as alt

    assert panel.measure is not None
    order = list(dict.fromkeys(line.label for line in panel.lines))
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for line in panel.lines:
        ours = measured(paper, panel.measure, line.setting, line.method, records, scale)
        if isinstance(ours, Summary) and math.isfinite(ours.value):
            sd = ours.sd or 0.0
            rows.append(
                {"name": line.label, "value": ours.value, "low": ours.value - sd, "high": ours.value + sd}
                | {"text": str(ours), "beyond": ours.beyond}
            )
        else:
            missing.append(line.label if not isinstance(ours, Summary) else f"{line.label} (diverged)")
    printed = [
        {"name": line.label, "printed": line.published.value, "text": str(line.published)}
        for line in panel.lines
        if line.published.kind in ("value", "beyond")
    ]
    from_zero = panel.measure.kind == "rounds_to"
    shown_values = [v for row in rows for v in (row["low"], row["high"])] + [row["printed"] for row in printed]
    low, high = _domain(shown_values)
    low = 0.0 if from_zero else low
    axis = alt.Axis(tickCount=4, tickMinStep=1 if from_zero else 0, domain=False, grid=True)
    across = alt.Scale(domain=[low, high], nice=False)
    x = alt.X("value:Q", title=_measure_title(panel), axis=axis, scale=across)
    names = alt.Axis(grid=False, domain=False, labelLimit=190, labelFontSize=12)
    y = alt.Y("name:N", title=None, sort=order, axis=names, scale=alt.Scale(domain=order))
    looks = theme.looks(sorted(order, key=lambda name: name not in _own_labels(paper, panel)))
    colour = alt.Color("name:N", legend=None, scale=alt.Scale(domain=order, range=[looks[name][0] for name in order]))
    data = alt.Chart(alt.InlineData(values=rows))
    opacity = alt.condition("datum.beyond", alt.value(0.45), alt.value(1.0))
    mark = data.mark_bar(size=BAR * 0.6) if from_zero else data.mark_circle(size=90)
    layers = [mark.encode(x=x, y=y, color=colour, opacity=opacity)]
    layers.append(data.mark_rule(color=theme.INK).encode(x=alt.X("low:Q", scale=across), x2="high:Q", y=y))
    words = data.mark_text(align="left", dx=10, fontSize=11, color=theme.INK)
    layers.append(words.encode(x=alt.value(size[0] - NUMBERS), y=y, text="text:N"))
    notes = ["whiskers: one standard deviation over seeds"] if any(row["low"] < row["high"] for row in rows) else []
    if printed:
        diamond = alt.Chart(alt.InlineData(values=printed)).mark_point(
            shape="diamond", size=80, color=theme.INK, fill="white", strokeWidth=1.4
        )
        layers.append(diamond.encode(x=alt.X("printed:Q", scale=across), y=y))
        notes.append("diamond: printed")
    if any(row["beyond"] for row in rows):
        notes.append("pale: not reached")
    title = _title(panel.title, _below(paper, panel, scale, missing))
    return _Drawn(
        alt.layer(*layers).properties(width=size[0] - NUMBERS, height=_height(panel), title=title), tuple(notes)
    )


# -- What algorithms record of themselves


def _value_curves(paper: Paper, panel: Panel, records: Records, scale: Scale) -> tuple[list[_Curve], list[str]]:
    """One curve for every method, or for every client where the value is one of each (then of the first seed alone).

    Also which methods have none.
    """
    assert panel.value is not None
    curves: list[_Curve] = []
    missing = []
    for line in panel.lines:
        found = [r for r in runs(paper, line.setting, line.method, records, scale) if panel.value in r.values]
        upto = panel.rounds or budget(paper, line.setting, scale)
        by_seed = [_parts(record, panel.value) for record in found]
        clients = list(by_seed[0]) if by_seed else []
        for client in clients:
            label = line.label if client is None else f"{'client' if _all_present(found[0]) else 'place'} {client + 1}"
            seeds = by_seed if client is None else by_seed[:1]
            made = _series(label, [one.get(client, []) for one in seeds], upto, diverged=False, strong=False)
            curves += [made] if made is not None else []
        missing += [] if clients else [line.label]
    return curves, missing


def _all_present(record: Record) -> bool:
    """Whether a place in the cohort is always the same client's."""
    return bool(record.experiment.get("training", {}).get("participation", 1.0) == 1.0)


def _parts(record: Record, name: str) -> dict[int | None, list[tuple[int, float]]]:
    """A recorded value by client, in the cohort's order; None is the key of one that is nobody's."""
    found: dict[int | None, list[tuple[int, float]]] = {}
    for r, value in zip(*record.values[name], strict=True):
        of: list[tuple[int | None, float | None]] = (
            list(enumerate(value)) if isinstance(value, tuple) else [(None, value)]
        )
        for client, one in of:
            if one is not None and math.isfinite(one):
                found.setdefault(client, []).append((r, one))
    return found


def _values(
    paper: Paper,
    chosen: Exhibit,
    panel: Panel,
    records: Records,
    scale: Scale,
    order: Sequence[str],
    size: tuple[int, int],
    columns: int,
) -> _Drawn:
    curves, missing = _value_curves(paper, panel, records, scale)
    if not curves:
        return _Drawn(_not_run(paper, panel, size))
    at = chosen.panels.index(panel) + 1
    claims = [claim for claim in chosen.claims if claim.value == panel.value and claim.panel in (None, at)]
    bounds = [claim.bound for claim in claims if claim.bound is not None]
    title = _title(panel.title, _below(paper, panel, scale, missing))
    chart = _lines(curves, order, size, columns, str(panel.value), title, log=panel.log, rules=bounds)
    notes = ["dashed: the bound that is claimed"] if bounds else []
    notes += (
        ["lines of clients: the first seed"] if any(c.label.startswith(("client ", "place ")) for c in curves) else []
    )
    return _Drawn(chart, (*_notes(curves), *notes))


# -- The toy


def _toy(paper: Paper, chosen: Exhibit) -> Any:
    """The weight and its distance to what the paper calls the optimum, beside the optimum that the losses have."""
    params = chosen.params
    goal = float(params["optimum"])
    cases = [
        (
            case["title"],
            averaged(case["optima"], params["start"], params["eta"], params["steps"], params["rounds"]),
            optimum(case["optima"]),
        )
        for case in params["cases"]
    ]
    order = [title for title, _, _ in cases]
    size = SIZES[2]

    def curve(title: str, values: Sequence[float]) -> _Curve:
        return _Curve(title, tuple((t, v, v, v) for t, v in enumerate(values)), 1, False, False)

    weights = [curve(title, values) for title, values, _ in cases]
    gaps = [curve(title, [abs(v - goal) for v in values]) for title, values, _ in cases]
    truths = ", ".join(shown(truth) for _, _, truth in cases)
    panels = [
        _lines(weights, order, size, 3, "global weight", _title(f"(a) weight; dashed: {goal:g}"), rules=[goal]),
        _lines(gaps, order, size, 3, f"distance to {goal:g}", _title(f"(b) distance to {goal:g}")),
    ]
    notes = [f"the losses' own optima: {truths}; the paper calls {goal:g} the optimum of both"]
    return _together(paper, chosen, panels, 1, 2, notes)
