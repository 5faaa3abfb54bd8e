"""The kinds of pictures by name, and the one call that draws them."""

from __future__ import annotations

import os
import warnings
from typing import Any, get_args

from fedkeel import arguments, theme
from fedkeel.errors import InputError, invalid, unknown
from fedkeel.measure.conformal import Method
from fedkeel.notices import FedkeelWarning
from fedkeel.plots import drift, fairness, learning, partition, rounds, sets, values
from fedkeel.plots.figure import Figure, Kind, Options
from fedkeel.plots.lines import BANDS
from fedkeel.plots.sources import Chosen, Given, choose

KINDS = {
    "accuracy": Kind("test accuracy over rounds", learning.accuracy, learning.draw_accuracy, ("target", "band")),
    "loss": Kind("test loss over rounds", learning.loss, learning.draw_loss, ("band",)),
    "rounds": Kind("rounds to a target accuracy", rounds.rounds, rounds.draw_rounds, ("target",)),
    "bytes": Kind("test accuracy against bytes sent", learning.traffic, learning.draw_traffic, ("target", "band")),
    "clock": Kind(
        "test accuracy over virtual time", learning.virtual_time, learning.draw_virtual_time, ("target", "band")
    ),
    "time": Kind("test accuracy over time in rounds", learning.real_time, learning.draw_real_time, ("target", "band")),
    "drift": Kind("client drift over rounds", drift.drift, drift.draw_drift, ("band",), apart=True),
    "drift-layers": Kind("client drift by layer and round", drift.layers, drift.draw_layers, apart=True),
    "values": Kind(
        "named values over rounds, such as FedVeca's tau",
        values.values,
        values.draw_values,
        ("names", "band"),
        apart=True,
    ),
    "fairness": Kind("histogram of the clients' own accuracies", fairness.fairness, fairness.draw_fairness, apart=True),
    "conformal": Kind("coverage and size of prediction sets", sets.conformal, sets.draw_conformal, ("method", "band")),
    "partition": Kind(
        "samples of each class at each client", partition.partition, partition.draw_partition, apart=True
    ),
}
"""In the order in which a report has them."""


def kinds() -> dict[str, str]:
    """Every kind of picture, with what it shows."""
    return {name: kind.says for name, kind in KINDS.items()}


def chart(
    runs: Given,
    kind: str = "accuracy",
    *,
    target: float | None = None,
    names: str | tuple[str, ...] | list[str] = (),
    band: str | None = None,
    method: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    allow_plugins: bool = False,
) -> Any:
    """A picture of runs as an Altair chart, for a notebook, ``.save(path)`` or ``.to_dict()``.

    ``runs``: a run, its directory, a folder of runs, a list of these, or a dict of these by the names that lines shall
    have. Runs that differ in their seed alone are one line: the mean, with a ``band`` from the smallest to the largest
    (``"range"``) or one standard deviation (``"sd"``) around it. ``kind`` is one of ``kinds()``; ``target`` is a test
    accuracy, ``names`` are those of noted values (``history.names``), ``method`` is that of ``fedkeel.conformal``.
    """
    folder = None if data_dir is None else arguments.path("data_dir", data_dir)
    made = _options(kind, target, names, band, method)
    chosen = choose(runs, folder, arguments.flag("allow_plugins", allow_plugins))
    figure, told = read(chosen, kind, made)
    for one in told:
        warnings.warn(one, FedkeelWarning, stacklevel=2)
    return draw(kind, figure)


plot = chart


def read(chosen: Chosen, kind: str, options: Options) -> tuple[Figure, list[str]]:
    """What a picture shows, as plain numbers, and what a reader must know of the runs beside it."""
    told = chosen.left_out if KINDS[kind].apart else chosen.check()
    return KINDS[kind].read(chosen, options), told


def draw(kind: str, figure: Figure) -> Any:
    """The picture in the common look."""
    drawn = KINDS[kind].draw(figure)
    if kind == "partition":  # which has a title of its own
        return drawn
    return theme.styled(drawn, theme.heading(figure.title, [note for note in figure.notes if note]))


def _options(kind: object, target: object, names: object, band: object, method: object) -> Options:
    if kind not in KINDS:
        raise unknown("kind of picture", kind, list(KINDS))
    listed = [names] if isinstance(names, str) else arguments.listed("names", names, "a list of names")
    given = {
        "target": target,
        "names": tuple(arguments.text("names", name) for name in listed) or None,
        "band": band,
        "method": method,
    }
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in known:
        if name not in KINDS[str(kind)].hears:
            raise InputError(f"{name} changes nothing in a picture of kind {kind}; leave it out.")
    if "target" in known and not (_is_number(target) and 0 <= target <= 1):  # type: ignore[operator]
        raise invalid("target", "a test accuracy in [0, 1]", target)
    if "band" in known and band not in BANDS:
        raise unknown("band", band, list(BANDS))
    if "method" in known and method not in get_args(Method):
        raise unknown("method", method, list(get_args(Method)))
    return Options(**known)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
