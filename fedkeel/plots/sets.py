"""Prediction sets of runs' models: how often they hold the right label and how large they are, over what was asked."""

from __future__ import annotations

from typing import Any

from fedkeel.measure.conformal import Conformal
from fedkeel.measure.prediction_sets import prediction_sets
from fedkeel.plots.figure import HALF, Figure, Options, beside
from fedkeel.plots.lines import curve, lines, notes, panel_title
from fedkeel.plots.sources import Chosen, Source


def conformal(chosen: Chosen, options: Options) -> Figure:
    found = {name: [_sets(source, options) for source in group] for name, group in chosen.groups.items()}
    coverage = [
        curve(name, [[(1 - level.alpha, level.coverage) for level in one.curve] for one in by_seed], band=options.band)
        for name, by_seed in found.items()
    ]
    size = [
        curve(name, [[(1 - level.alpha, level.size) for level in one.curve] for one in by_seed], band=options.band)
        for name, by_seed in found.items()
    ]
    drawn = [one for one in coverage if one is not None]
    first = next(iter(found.values()))[0]
    on = f"{options.method.upper()}, calibrated on {first.samples['calibration']:,} test samples and measured on "
    told = (chosen.setting, f"{on}{first.samples['evaluation']:,}; dashed: as asked", *notes(drawn, options.band))
    return Figure("Prediction sets", told, {"coverage": drawn, "size": [one for one in size if one is not None]})


def _sets(source: Source, options: Options) -> Conformal:
    simulation, state = source.model()
    return prediction_sets(simulation, state, method=options.method)


def draw_conformal(figure: Figure) -> Any:
    coverage, size = figure.rows["coverage"], figure.rows["size"]
    asked = [point[0] for one in coverage for point in one.points]
    extent = (min(asked), max(asked))
    order = [one.label for one in coverage]
    left = panel_title("how often a set has the right label")
    right = panel_title("mean number of labels in a set")
    common: dict[str, Any] = {"order": order, "x_title": "coverage asked for", "x_format": ".0%", "extent": extent}
    return beside(
        [
            lines(coverage, HALF, "coverage", left, percent=True, diagonal=True, **common),
            lines(size, HALF, "labels", right, **common),
        ]
    )
