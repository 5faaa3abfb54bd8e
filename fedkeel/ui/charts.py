"""The charts of a page as Altair makes them, in the common look; ``pictures`` draws them.

Each takes what was read of runs and gives a chart, or None where there is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel import theme
from fedkeel.plots.figure import Options
from fedkeel.plots.kinds import draw, read
from fedkeel.plots.sources import choose
from fedkeel.runs.history import History
from fedkeel.runs.store import ClientRound

WIDTH, HEIGHT = 430, 220
WIDE = 860
MOST_POINTS = 1500
"""Of one line; beyond, every so many rounds are drawn, and the chart says so."""
MOST_CELLS = 60
"""Columns and rows of a map; beyond, neighbours are one cell with their mean, and the chart says so."""


SCHEME = {"name": "viridis", "extent": [0.15, 0.97]}
"""Without its ends, of which one would be lost on a dark ground and the other on a light one."""


@dataclass(frozen=True)
class Point:
    """A value of a line."""

    line: str
    round: int
    value: float


def accuracy(history: History) -> Any:
    """Test accuracy of every candidate model, and on the training samples where that was measured."""
    return _lines(_measured(history, "accuracy"), "accuracy", ".0%")


def loss(history: History) -> Any:
    """Test loss of every candidate, and the mean local objective."""
    local = [Point("local objective", r.round, r.train_loss) for r in history.rounds]
    return _lines([*_measured(history, "loss"), *local], "loss", ".4~g")


def drift(history: History) -> Any:
    """Mean distance that a client's model moves away from the global one in a round."""
    return _lines([Point("drift", r.round, r.drift) for r in history.rounds], "mean ‖y − w‖", ".4~g")


def traffic(history: History) -> Any:
    """Megabytes sent so far."""
    points, total = [], 0
    for summary in history.rounds:
        total += summary.bytes_down + summary.bytes_up
        points.append(Point("both directions", summary.round, total / 1e6))
    return _lines(points, "MB sent so far", ".4~g")


def drift_map(did: Sequence[ClientRound]) -> Any:
    """How far each client's model moved in each round in which it took part."""
    return _map({(one.client, one.round): one.drift for one in did}, "‖y − w‖")


def noted(history: History, name: str) -> Any:
    """What was noted under a name: a line of numbers, or a map of clients by rounds."""
    by_round = history.values(name)
    cells: dict[tuple[int, int], float] = {}
    points: list[Point] = []
    for round, value in by_round.items():
        if isinstance(value, dict):
            cells |= {(int(client), round): float(one) for client, one in value.items()}
        else:
            points.append(Point(name, round, float(value)))
    return _map(cells, name) if cells else _lines(points, name, ".4~g")


def together(directories: Sequence[Path]) -> Any:
    """Test accuracy of several runs, or loss where none has one, as ``fedkeel plot`` draws it.

    What must be known beside it, the page says.
    """
    if not directories:
        return None
    chosen = choose(list(directories))
    judged = any(not math.isnan(source.run.history.reported().last) for source in chosen.sources)
    kind = "accuracy" if judged else "loss"
    figure, _ = read(chosen, kind, Options())
    return draw(kind, figure)


def _measured(history: History, what: str) -> list[Point]:
    several = len({(m.model, m.split) for m in history.measured}) > 1
    return [Point(f"{m.split}, {m.model}" if several else m.split, m.round, getattr(m, what)) for m in history.measured]


def _lines(points: Iterable[Point], title: str, form: str) -> Any:
    import altair as alt

    known = [point for point in points if math.isfinite(point.value)]
    if not known:
        return None
    names = list(dict.fromkeys(point.line for point in known))
    rounds = sorted({point.round for point in known})
    every = -(-len(rounds) // MOST_POINTS)
    drawn = {*rounds[::every], rounds[-1]}
    rows = [{"line": p.line, "round": p.round, "value": p.value} for p in known if p.round in drawn]
    looks = theme.looks(names)
    colours = alt.Scale(domain=names, range=[looks[name][0] for name in names])
    dashes = alt.Scale(domain=names, range=[looks[name][1] for name in names])
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=WIDTH // 2 - 30) if len(names) > 1 else None
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2, point={"size": 30} if len(drawn) == 1 else False)
        .encode(
            x=alt.X("round:Q", title=_title("round", every), axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False)),
            y=alt.Y("value:Q", title=title, axis=alt.Axis(format=form, tickCount=5), scale=alt.Scale(zero=False)),
            color=alt.Color("line:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=legend),
        )
    )
    return theme.styled(chart.properties(width=WIDTH, height=HEIGHT), alt.TitleParams(""), domain=False)


def _title(what: str, every: int) -> str:
    return what if every == 1 else f"{what} (every {every}th is drawn)"


def _map(cells: Mapping[tuple[int, int], float], title: str) -> Any:
    """A value for each client and round; neighbours become one cell where there are too many."""
    import altair as alt

    known = {key: value for key, value in cells.items() if math.isfinite(value)}
    if not known:
        return None
    down = 1 + max(client for client, _ in known) // MOST_CELLS
    across = 1 + max(round for _, round in known) // MOST_CELLS
    binned: dict[tuple[int, int], list[float]] = {}
    for (client, round), value in known.items():
        binned.setdefault((client // down * down, round // across * across), []).append(value)
    rows = [{"client": c, "round": r, "value": sum(v) / len(v)} for (c, r), v in binned.items()]
    clients = list(range(0, max(c for c, _ in binned) + 1, down))
    rounds = list(range(min(r for _, r in binned), max(r for _, r in binned) + 1, across))
    height = min(420, max(90, 11 * len(clients)))
    quiet: dict[str, Any] = {"ticks": False, "domain": False, "labelAngle": 0, "labelOverlap": True}
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("round:O", title=_cell("round", across), scale=alt.Scale(domain=rounds), axis=alt.Axis(**quiet)),
            y=alt.Y("client:O", title=_cell("client", down), scale=alt.Scale(domain=clients), axis=alt.Axis(**quiet)),
            color=alt.Color("value:Q", title=title, scale=alt.Scale(scheme=SCHEME), legend=alt.Legend(format=".4~g")),
        )
    )
    return theme.styled(chart.properties(width=WIDE - 70, height=height), alt.TitleParams(""), grid=False)


def _cell(what: str, many: int) -> str:
    return what if many == 1 else f"{what} (a cell is the mean of {many})"
