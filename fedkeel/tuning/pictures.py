"""Mean ranks with their critical difference, as a chart."""

from __future__ import annotations

from typing import Any

from fedkeel import theme
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.tuning.board import Ranking

ROW = 20
"""Height of a method's line."""
WIDTH = 560


def difference_chart(ranking: Ranking) -> Any:
    """A line for each method: its mean rank, and half the critical difference to either side.

    Two methods whose bars do not overlap differ by more than the critical difference, which is what Demšar's diagram
    shows by what it does not connect; with forty methods bars stay legible where connections do not.
    """
    import altair as alt

    half = ranking.difference / 2
    titles = {name: ALGORITHMS[name].title for name in ranking.ranks}
    best = min(ranking.ranks.values())
    rows: list[dict[str, Any]] = [
        {
            "name": titles[name],
            "rank": rank,
            # Ranks end at 1 and at the number of methods; whether bars overlap does not depend on what lies beyond.
            "low": max(rank - half, 1.0),
            "high": min(rank + half, float(len(titles))),
            "near": rank - best <= ranking.difference,
        }
        for name, rank in ranking.ranks.items()
    ]
    order = list(titles.values())
    data = alt.InlineData(values=rows)
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=200, grid=False, domain=False))
    scale = alt.Scale(domain=[0.5, len(rows) + 0.5], nice=False)
    colour = alt.condition("datum.near", alt.value(theme.COLOURS[0]), alt.value(theme.BAR))
    bars = (
        alt.Chart(data)
        .mark_rule(strokeWidth=2)
        .encode(y=y, x=alt.X("low:Q", scale=scale, title="mean rank (1 is best)"), x2="high:Q", color=colour)
    )
    points = alt.Chart(data).mark_point(filled=True, size=60, opacity=1).encode(y=y, x="rank:Q", color=colour)
    seeds = f"{ranking.blocks} paired runs of {', '.join(ranking.contests)}"
    notes = [
        f"{seeds}; bars are half the critical difference of {ranking.difference:.2f} to either side (Nemenyi, 5 %)",
        "methods whose bars do not overlap differ; coloured: those that overlap with the first",
    ]
    chart = (bars + points).properties(width=WIDTH, height=max(ROW * len(rows), 60))
    return theme.styled(chart, theme.heading("Mean rank on the leaderboard", notes))
