"""How runs learn: test accuracy and loss over rounds, and accuracy over what was sent and over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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
NO_CLOCK = (
    "{runs} no virtual time with a test accuracy: give the experiment a [clock], wait for an evaluated round, or draw "
    "--kind time, which is the time that rounds took here."
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
    curves, told = _against(chosen, accuracies, sent, options, NO_ACCURACY)
    return Figure("Test accuracy against what was sent", told, (_scaled(curves, 1e6), options.target))


def virtual_time(chosen: Chosen, options: Options) -> Figure:
    """Accuracy against the virtual clock; where seeds took different times, against their mean."""
    curves, told = _against(chosen, _by_the_clock, lambda history: {0: 0.0} | history.clock(), options, NO_CLOCK)
    unit, seconds = time_unit(max(one.points[-1][0] for one in curves))
    return Figure("Test accuracy over virtual time", told, (_scaled(curves, seconds), options.target, unit))


def real_time(chosen: Chosen, options: Options) -> Figure:
    """Accuracy against the time that rounds took here; where seeds took different times, against their mean."""
    curves, told = _against(chosen, accuracies, spent, options, NO_ACCURACY)
    unit, seconds = time_unit(max(one.points[-1][0] for one in curves))
    return Figure("Test accuracy over time spent in rounds", told, (_scaled(curves, seconds), options.target, unit))


def time_unit(longest: float) -> tuple[str, float]:
    """The unit in which a time of so many seconds is read most easily, and its length in seconds."""
    units = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0}
    return next(((name, length) for name, length in units.items() if longest >= 2 * length), ("seconds", 1.0))


def accuracies(source: Source) -> list[tuple[float, float]]:
    """Finite test accuracies of the model that a run reports, by round."""
    return [(m.round, m.accuracy) for m in source.run.history.series() if math.isfinite(m.accuracy)]


def _losses(source: Source) -> list[tuple[float, float]]:
    return [(m.round, m.loss) for m in source.run.history.series() if math.isfinite(m.loss)]


def sent(history: History) -> dict[int, int]:
    """Bytes in both directions up to and including each round."""
    sums = itertools.accumulate(r.bytes_down + r.bytes_up for r in history.rounds)
    return {0: 0} | {r.round: total for r, total in zip(history.rounds, sums, strict=True)}


def spent(history: History) -> dict[int, float]:
    """Seconds spent in rounds up to and including each."""
    sums = itertools.accumulate(r.seconds for r in history.rounds)
    return {0: 0.0} | {r.round: total for r, total in zip(history.rounds, sums, strict=True)}


def _by_the_clock(source: Source) -> list[tuple[float, float]]:
    """Accuracies of a run that had a virtual clock."""
    return accuracies(source) if source.run.history.clock() else []


def _against(
    chosen: Chosen,
    series: Callable[[Source], list[tuple[float, float]]],
    along: Callable[[History], Mapping[int, float]],
    options: Options,
    missing: str,
) -> tuple[list[Curve], tuple[str, ...]]:
    """Curves over what ``along`` gives for each round, in the mean over seeds, and what a reader is told of them."""
    curves, lacking = group_curves(chosen, series, options, missing)
    moved = []
    for found in curves:
        places = [along(source.run.history) for source in chosen.groups[found.label]]
        points = tuple((fmean(one[int(r)] for one in places), m, low, high) for r, m, low, high in found.points)
        moved.append(replace(found, points=points))
    marked = () if options.target is None else (f"dashed: {100 * options.target:.4g} %",)
    return moved, (chosen.setting, *notes(moved, options.band), *marked, *lacking)


def _scaled(curves: Sequence[Curve], unit: float) -> list[Curve]:
    """Curves whose x are counted in another unit."""
    return [replace(one, points=tuple((x / unit, *rest) for x, *rest in one.points)) for one in curves]  # type: ignore[misc]


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


def draw_virtual_time(figure: Figure) -> Any:
    curves, target, unit = figure.rows
    rules = [] if target is None else [target]
    return lines(curves, WIDE, "test accuracy", x_title=f"virtual time, {unit}", percent=True, rules=rules)


def draw_real_time(figure: Figure) -> Any:
    curves, target, unit = figure.rows
    rules = [] if target is None else [target]
    return lines(curves, WIDE, "test accuracy", x_title=f"time in rounds, {unit}", percent=True, rules=rules)


def draw_traffic(figure: Figure) -> Any:
    curves, target = figure.rows
    rules = [] if target is None else [target]
    return lines(curves, WIDE, "test accuracy", x_title="MB sent in both directions", percent=True, rules=rules)
