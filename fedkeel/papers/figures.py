"""The papers' figures from our records, laid out as in print.

A curve is the mean over seeds, with a band from the smallest to the largest. What was not run is said where it is
missing. Altair is imported only when a figure is drawn.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
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
from fedkeel.plots.lines import Curve, domain, lines, panel_title
from fedkeel.plots.lines import curve as curve_of
from fedkeel.plots.lines import notes as notes_of

SIZES = {1: (620, 340), 2: (370, 270), 3: (290, 215)}
"""Width and height of a panel by how many stand in a row."""
SMALL = (215, 190)
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


@dataclass(frozen=True)
class _Frame:
    """A panel, the scale at which it is on record, and what it is drawn in."""

    paper: Paper
    panel: Panel
    records: Records
    scale: Scale
    order: Sequence[str]
    """All lines of the figure."""
    size: tuple[int, int]
    columns: int
    """Panels that stand in a row."""

    def runs(self, line: Line) -> list[Record]:
        return runs(self.paper, line.setting, line.method, self.records, self.scale)

    def budget(self, line: Line) -> int:
        """The last round of a line that the panel shows."""
        return _last_round(self.paper, self.panel, line, self.scale)

    def is_own(self, line: Line) -> bool:
        """Whether a line is drawn strongly: the paper's own among others."""
        own = [self.paper.methods[one.method].algorithm in self.paper.own for one in self.panel.lines]
        return self.paper.methods[line.method].algorithm in self.paper.own and not all(own)

    @property
    def own_labels(self) -> set[str]:
        return {line.label for line in self.panel.lines if self.is_own(line)}

    def title(self, missing: Sequence[str]) -> Any:
        """The panel's, above what a reader must know: its scale, and whom it lacks."""
        said = []
        if self.scale == "reduced":
            reduced = [self.paper.settings[line.setting].reduced for line in self.panel.lines]
            words = list(dict.fromkeys(one.says for one in reduced if one is not None))
            said.append(f"reduced: {words[0]}" if len(words) == 1 else "reduced")
        elif self.scale == "smoke":
            said.append("smoke: shows that it runs, no more")
        cut = [
            (record.rounds, rounds)
            for line in self.panel.lines
            for rounds in (self.budget(line),)
            for record in self.runs(line)
            if _is_cut(record, rounds)
        ]
        if cut:
            done, rounds = max(cut)
            said.append(f"{done} of {rounds} rounds so far")
        if missing:
            named = ", ".join(missing) if len(missing) <= 3 else f"{len(missing)} of {len(self.panel.lines)}"
            said.append(f"not run: {named}")
        return panel_title(self.panel.title, _wrapped("; ".join(said), self.size[0]))

    def lines(self, curves: Sequence[Curve], shows: str, missing: Sequence[str], **options: Any) -> Any:
        """Curves of what the panel shows; ``options`` are those of ``plots.lines``."""
        title = self.title(missing)
        return lines(curves, self.size, shows, title, order=self.order, direct=self.columns <= 2, **options)


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

    lines = [panels[row * columns : (row + 1) * columns] for row in range(rows)]
    for line in lines:  # all frames of a row begin at the same height
        most = max((len(panel.title.subtitle) for panel in line), default=0)
        for panel in line:
            panel.title.subtitle = [*panel.title.subtitle, *[" "] * (most - len(panel.title.subtitle))]
    chart = alt.concat(*panels, columns=columns, align="each", spacing={"row": 24, "column": 28})
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


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of small print that are no wider than a panel: one of its characters takes some five pixels."""
    return textwrap.wrap(text, max(24, width // 5))


def _scale_of(paper: Paper, panel: Panel, records: Records, scale: Scale | None) -> Scale | None:
    """The best scale at which anything of a panel is on record, to its last round if that can be had."""
    there: dict[Scale, bool] = {}
    for one in scales(scale):
        for line in panel.lines:
            if found := runs(paper, line.setting, line.method, records, one):
                rounds = _last_round(paper, panel, line, one)
                there[one] = there.get(one, False) or not all(_is_cut(record, rounds) for record in found)
    return next((one for one, is_whole in there.items() if is_whole), next(iter(there), None))


def _last_round(paper: Paper, panel: Panel, line: Line, scale: Scale) -> int:
    rounds = budget(paper, line.setting, scale)
    return min(panel.rounds or rounds, rounds)


def _is_cut(record: Record, rounds: int) -> bool:
    """Whether a run can still go on."""
    return record.rounds < rounds and record.ended != "diverged"


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
    frame = _Frame(paper, panel, records, found, order, size, columns)
    if chosen.kind == "bars":
        return _bars(frame)
    if chosen.kind == "sets":
        return _sets(frame)
    if chosen.kind == "values":
        return _values(frame, chosen)
    return _curves(frame)


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
    return (ground + words).properties(
        width=size[0], height=size[1], title=panel_title(panel.title, _wrapped(below, size[0]))
    )


# -- Curves


def _known(record: Record, metric: str) -> list[tuple[int, float]]:
    rounds, values = record.series.get(metric, ((), ()))
    return [(r, v) for r, v in zip(rounds, values, strict=True) if v is not None and math.isfinite(v)]


def _curves(frame: _Frame) -> _Drawn:
    panel = frame.panel
    curves, missing = [], []
    for line in panel.lines:
        found, upto = frame.runs(line), frame.budget(line)
        curve = curve_of(
            line.label,
            (_known(record, panel.metric) for record in found),
            upto,
            diverged=any(record.ended == "diverged" and record.rounds < upto for record in found),
            strong=frame.is_own(line),
        )
        if curve is None:
            missing.append(line.label)
        else:
            curves.append(curve)
    as_percent = panel.metric in ACCURACY
    chart = frame.lines(
        curves, METRICS[panel.metric], missing, log=panel.log, percent=as_percent, first=frame.own_labels
    )
    return _Drawn(chart, notes_of(curves))


def _sets(frame: _Frame) -> _Drawn:
    """Mean size of prediction sets against their coverage; of several seeds, both are means."""
    curves, missing = [], []
    for line in frame.panel.lines:
        found = [one.sets for one in frame.runs(line) if one.sets]
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
            curves.append(Curve(line.label, tuple(sorted(points)), len(found), strong=frame.is_own(line)))
        else:
            missing.append(line.label)
    reached = [point[0] for curve in curves for point in curve.points] or [0.0, 1.0]
    chart = frame.lines(
        curves,
        "mean size of sets",
        missing,
        x_title="coverage",
        x_format=".0%",
        first=frame.own_labels,
        extent=(min(reached), max(reached)),
    )
    return _Drawn(chart, notes_of(curves))


# -- Bars


def _measure_title(panel: Panel) -> str:
    measure = panel.measure
    percent = ", %" if measure is not None and measure.kind != "rounds_to" and measure.printed_scale == 100 else ""
    return f"{measure}{percent}".replace("train ", "training ")


def _height(panel: Panel) -> int:
    return BAR * len({line.label for line in panel.lines})


def _bars(frame: _Frame) -> _Drawn:
    """Bars from zero for rounds; dots on an axis of their own for accuracies, whose differences bars would hide."""
    import altair as alt

    panel, width = frame.panel, frame.size[0] - NUMBERS
    assert panel.measure is not None
    order = list(dict.fromkeys(line.label for line in panel.lines))
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for line in panel.lines:
        ours = measured(frame.paper, panel.measure, line.setting, line.method, frame.records, frame.scale)
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
    low, high = domain(shown_values)
    low = 0.0 if from_zero else low
    axis = alt.Axis(tickCount=4, tickMinStep=1 if from_zero else 0, domain=False, grid=True)
    across = alt.Scale(domain=[low, high], nice=False)
    x = alt.X("value:Q", title=_measure_title(panel), axis=axis, scale=across)
    names = alt.Axis(grid=False, domain=False, labelLimit=190, labelFontSize=12)
    y = alt.Y("name:N", title=None, sort=order, axis=names, scale=alt.Scale(domain=order))
    looks = theme.looks(sorted(order, key=lambda name: name not in frame.own_labels))
    colour = alt.Color("name:N", legend=None, scale=alt.Scale(domain=order, range=[looks[name][0] for name in order]))
    data = alt.Chart(alt.InlineData(values=rows))
    opacity = alt.condition("datum.beyond", alt.value(0.45), alt.value(1.0))
    mark = data.mark_bar(size=BAR * 0.6) if from_zero else data.mark_circle(size=90)
    layers = [mark.encode(x=x, y=y, color=colour, opacity=opacity)]
    layers.append(data.mark_rule(color=theme.INK).encode(x=alt.X("low:Q", scale=across), x2="high:Q", y=y))
    words = data.mark_text(align="left", dx=10, fontSize=11, color=theme.INK)
    layers.append(words.encode(x=alt.value(width), y=y, text="text:N"))
    notes = ["whiskers: one standard deviation over seeds"] if any(row["low"] < row["high"] for row in rows) else []
    if printed:
        diamond = alt.Chart(alt.InlineData(values=printed)).mark_point(
            shape="diamond", size=80, color=theme.INK, fill="white", strokeWidth=1.4
        )
        layers.append(diamond.encode(x=alt.X("printed:Q", scale=across), y=y))
        notes.append("diamond: printed")
    if any(row["beyond"] for row in rows):
        notes.append("pale: not reached")
    chart = alt.layer(*layers).properties(width=width, height=_height(panel), title=frame.title(missing))
    return _Drawn(chart, tuple(notes))


# -- What algorithms record of themselves


def _value_curves(paper: Paper, panel: Panel, records: Records, scale: Scale) -> tuple[list[Curve], list[str]]:
    """One curve for every method, or for every client where the value is one of each (then of the first seed alone).

    Also which methods have none.
    """
    assert panel.value is not None
    curves: list[Curve] = []
    missing = []
    for line in panel.lines:
        found = [r for r in runs(paper, line.setting, line.method, records, scale) if panel.value in r.values]
        upto = panel.rounds or budget(paper, line.setting, scale)
        by_seed = [_parts(record, panel.value) for record in found]
        clients = list(by_seed[0]) if by_seed else []
        for client in clients:
            label = line.label if client is None else f"{'client' if _all_present(found[0]) else 'place'} {client + 1}"
            seeds = by_seed if client is None else by_seed[:1]
            made = curve_of(label, [one.get(client, []) for one in seeds], upto)
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


def _values(frame: _Frame, chosen: Exhibit) -> _Drawn:
    panel = frame.panel
    curves, missing = _value_curves(frame.paper, panel, frame.records, frame.scale)
    if not curves:
        return _Drawn(_not_run(frame.paper, panel, frame.size))
    at = chosen.panels.index(panel) + 1
    claims = [claim for claim in chosen.claims if claim.value == panel.value and claim.panel in (None, at)]
    bounds = [claim.bound for claim in claims if claim.bound is not None]
    symbol = panel.title.rpartition(": ")[2]  # "CNN, MNIST: η τ̄ L", or the symbol alone
    chart = frame.lines(curves, symbol, missing, log=panel.log, rules=bounds)
    notes = ["dashed: the bound that is claimed"] if bounds else []
    notes += (
        ["lines of clients: the first seed"] if any(c.label.startswith(("client ", "place ")) for c in curves) else []
    )
    return _Drawn(chart, (*notes_of(curves), *notes))


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

    def curve(title: str, values: Sequence[float]) -> Curve:
        return Curve(title, tuple((t, v, v, v) for t, v in enumerate(values)), 1, False, False)

    weights = [curve(title, values) for title, values, _ in cases]
    gaps = [curve(title, [abs(v - goal) for v in values]) for title, values, _ in cases]
    truths = ", ".join(shown(truth) for _, _, truth in cases)
    panels = [
        lines(
            weights,
            size,
            "global weight",
            panel_title(f"(a) weight; dashed: {goal:g}"),
            order=order,
            direct=False,
            rules=[goal],
        ),
        lines(gaps, size, f"distance to {goal:g}", panel_title(f"(b) distance to {goal:g}"), order=order, direct=False),
    ]
    notes = [f"the losses' own optima: {truths}; the paper calls {goal:g} the optimum of both"]
    return _together(paper, chosen, panels, 1, 2, notes)
