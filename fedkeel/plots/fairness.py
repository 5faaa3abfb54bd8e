"""How evenly clients are served: a histogram of their own accuracies after the last evaluated round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedkeel import theme
from fedkeel.errors import InputError
from fedkeel.plots.figure import WIDE, Figure, Options, absent, beside, whose
from fedkeel.plots.lines import panel_title
from fedkeel.plots.sources import Chosen, Source
from fedkeel.runs.fairness import Fairness
from fedkeel.runs.fairness import fairness as evenness

WIDTHS = (0.01, 0.02, 0.05)
MOST_BINS = 24
SWITCH = "evaluation.clients = true (--set evaluation.clients=true, also with --resume) keeps them"


@dataclass(frozen=True)
class Clients:
    """Accuracies of clients on their own samples, each in [0, 1]."""

    split: str
    """``test`` or ``train``."""
    accuracies: tuple[float, ...]

    @cached_property
    def evenness(self) -> Fairness:
        """Mean, worst tenth and spread."""
        return evenness(self.accuracies)


def last_scores(source: Source) -> Clients | None:
    """Of the last round after which clients were evaluated; None where none was, or nothing is right or wrong."""
    found = [score for score in source.scores() if math.isfinite(score.accuracy)]
    if not found:
        return None
    last = max(score.round for score in found)
    kept = [score for score in found if score.round == last]
    return Clients(kept[-1].split, tuple(score.accuracy for score in kept))


def by_group(chosen: Chosen) -> dict[str, Clients]:
    """The clients of each group whose every seed has them, those of all its seeds together."""
    found = {}
    for name, group in chosen.groups.items():
        parts = [last_scores(source) for source in group]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            found[name] = Clients(known[0].split, tuple(one for part in known for one in part.accuracies))
    if len({one.split for one in found.values()}) > 1:
        raise InputError(
            "the runs cannot be drawn together: clients of some were evaluated on test samples, of others on those "
            "that they train on (data.client_test)."
        )
    return found


def fairness(chosen: Chosen, options: Options) -> Figure:
    found = by_group(chosen)
    if not found:
        raise InputError(f"{whose(chosen)} no accuracies of clients: {SWITCH}.")
    rows = [
        {"name": name, "bins": bins(one.accuracies, width_for(found)), "mean": one.evenness.mean}
        | {"worst": one.evenness.worst, "spread": one.evenness.sd, "clients": len(one.accuracies)}
        for name, one in found.items()
    ]
    split = next(iter(found.values())).split
    own = "own test samples" if split == "test" else "own training samples"
    pooled = "; clients of all seeds together" if any(len(group) > 1 for group in chosen.groups.values()) else ""
    told = (chosen.setting, f"solid: mean; dashed: mean of the worst tenth{pooled}")
    lacking = absent([name for name in chosen.groups if name not in found])
    return Figure(f"Accuracy of single clients on their {own}", (*told, *lacking), rows)


def width_for(found: dict[str, Clients]) -> float:
    """A width of bins at which the whole range has not too many."""
    low = min(one for clients in found.values() for one in clients.accuracies)
    return next((width for width in WIDTHS if (1 - low) / width <= MOST_BINS), WIDTHS[-1])


def bins(accuracies: Sequence[float], width: float) -> list[dict[str, float]]:
    """Clients in [low, high), the last with its upper end; their number and their share."""
    top = round(1 / width) - 1
    counted = Counter(min(top, math.floor(one / width + 1e-9)) for one in accuracies)
    return [
        {"low": round(at * width, 6), "high": round((at + 1) * width, 6), "clients": count}
        | {"share": count / len(accuracies)}
        for at, count in sorted(counted.items())
    ]


def draw_fairness(figure: Figure) -> Any:
    import altair as alt

    rows: list[dict[str, Any]] = figure.rows
    looks = theme.looks([row["name"] for row in rows])
    low = min(one["low"] for row in rows for one in row["bins"])
    most = max(one["share"] for row in rows for one in row["bins"])
    across = alt.Scale(domain=[low, 1.0], nice=False)
    up = alt.Scale(domain=[0, most * 1.08], nice=False)
    panels = []
    for row in rows:
        colour = looks[row["name"]][0]
        last = row is rows[-1]
        axis = alt.Axis(format=".0%", tickCount=6, grid=False, domain=True, labels=last)
        x = alt.X("low:Q", title="accuracy of a client" if last else None, axis=axis, scale=across)
        y = alt.Y("share:Q", title="share", axis=alt.Axis(format=".0%", tickCount=3), scale=up)
        data = alt.Chart(alt.InlineData(values=row["bins"]))
        tip = [alt.Tooltip(f"{one}:Q", format=".0%") for one in ("low", "high", "share")]
        bars = data.mark_rect(color=colour, opacity=0.75)
        layers = [bars.encode(x=x, x2="high:Q", y=y, y2=alt.datum(0), tooltip=[*tip, "clients:Q"])]
        for field, dash in (("mean", [1, 0]), ("worst", [4, 3])):
            mark = alt.Chart(alt.InlineData(values=[{"at": row[field]}])).mark_rule(
                color=theme.INK, strokeWidth=1.6, strokeDash=dash
            )
            layers.append(mark.encode(x=alt.X("at:Q", scale=across)))
        words = f"mean {row['mean']:.1%}, worst tenth {row['worst']:.1%}, spread {row['spread']:.1%}"
        title = panel_title(row["name"], f"{words}, {row['clients']} clients")
        panels.append(alt.layer(*layers).properties(width=WIDE[0], height=110, title=title))
    return beside(panels, columns=1)
