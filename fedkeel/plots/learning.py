"""How runs learn: test accuracy and loss over rounds, and accuracy over what was sent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedkeel import theme
from fedkeel.plots.figure import WIDE, Figure, Options, beside, group_curves
from fedkeel.plots.lines import Curve, lines, notes, panel_title
from fedkeel.plots.sources import Chosen, Given, Source, choose
from fedkeel.runs.history import History

NO_ACCURACY = (
    "{runs} no test accuracy: no round was evaluated yet, or under its loss no answer is right or wrong; wait for a "
    "round, or draw --kind loss."
)
NO_LOSS = "{runs} no test loss, because no round was evaluated yet; wait for one."


def accuracy(chosen: Chosen, options: Options) -> Figure:
    curves, lacking = group_curves(chosen, accuracies, options, NO_ACCURACY)
    marked = () if options.target is None else (f"dashed: {100 * options.target:.4g} %",)
    told = (chosen.setting, *notes(curves, options.band), *marked, *lacking)
    return Figure("Test accuracy over rounds", told, (curves, options.target))


def loss(chosen: Chosen, options: Options) -> Figure:
    curves, lacking = group_curves(chosen, _losses, options, NO_LOSS)
    told = (chosen.setting, *notes(curves, options.band), *lacking)
    return Figure("Test loss over rounds", told, curves)


def traffic(chosen: Chosen, options: Options) -> Figure:
    """Accuracy against megabytes sent in both directions; where seeds sent different amounts, against their mean."""
    curves, lacking = group_curves(chosen, accuracies, options, NO_ACCURACY)
    moved = [_against_bytes(one, [sent(s.run.history) for s in chosen.groups[one.label]]) for one in curves]
    marked = () if options.target is None else (f"dashed: {100 * options.target:.4g} %",)
    told = (chosen.setting, *notes(moved, options.band), *marked, *lacking)
    return Figure("Test accuracy against what was sent", told, (moved, options.target))


def accuracies(source: Source) -> list[tuple[float, float]]:
    """Finite test accuracies of the model that a run reports, by round."""
    return [(m.round, m.accuracy) for m in source.run.history.series() if math.isfinite(m.accuracy)]


def _losses(source: Source) -> list[tuple[float, float]]:
    return [(m.round, m.loss) for m in source.run.history.series() if math.isfinite(m.loss)]


def sent(history: History) -> dict[int, int]:
    """Bytes in both directions up to and including each round."""
    sums = itertools.accumulate(r.bytes_down + r.bytes_up for r in history.rounds)
    return {0: 0} | {r.round: total for r, total in zip(history.rounds, sums, strict=True)}


def _against_bytes(found: Curve, sums: list[dict[int, int]]) -> Curve:
    points = tuple((fmean(one[int(r)] for one in sums) / 1e6, m, low, high) for r, m, low, high in found.points)
    return replace(found, points=points)


def panels(shown: Mapping[str, Given], title: str, columns: int = 3) -> Any:
    """Test accuracy of a few runs in each of several panels, by title."""
    found = {name: group_curves(choose(runs), accuracies, Options(), NO_ACCURACY)[0] for name, runs in shown.items()}
    size = (215, 150)
    drawn = [lines(curves, size, "", panel_title(name), percent=True) for name, curves in found.items()]
    subtitle = ["test accuracy over rounds", *dict.fromkeys(n for curves in found.values() for n in notes(curves))]
    return theme.styled(
        beside(drawn, columns).resolve_scale(color="independent", strokeDash="independent"),
        theme.heading(title, subtitle),
    )


def draw_accuracy(figure: Figure) -> Any:
    curves, target = figure.rows
    return lines(curves, WIDE, "test accuracy", percent=True, rules=[] if target is None else [target])


def draw_loss(figure: Figure) -> Any:
    return lines(figure.rows, WIDE, "test loss")


def draw_traffic(figure: Figure) -> Any:
    curves, target = figure.rows
    rules = [] if target is None else [target]
    return lines(curves, WIDE, "test accuracy", x_title="MB sent in both directions", percent=True, rules=rules)
