"""What is said of rounding beside FedGVRGM's readings follows from the runs that were measured."""

import json
from statistics import mean, stdev

import pytest

from docs.pages.data import RESULTS
from fedkeel.papers.format import papers

MEASURED = json.loads((RESULTS / "fedgvrgm_rounding.json").read_text(encoding="utf-8"))


def relative(run: dict, at: int) -> float:
    """How far the loss of the moved run is from the other's after a round."""
    plain, moved = (
        dict(zip(run[name]["round"], run[name]["loss"], strict=True)) for name in ("train loss", "one bit higher")
    )
    return abs(moved[at] - plain[at]) / plain[at]


def runs_of(setting: str, method: str) -> list[dict]:
    found = [run for run in MEASURED["runs"] if (run["setting"], run["method"]) == (setting, method)]
    assert sorted(run["seed"] for run in found) == [0, 1, 2]
    return found


def apart(setting: str, method: str) -> float:
    return max(relative(run, 30) for run in runs_of(setting, method))


def test_the_note_beside_the_readings_is_true() -> None:
    (note,) = papers()["fedgvrgm"].exhibits["variants"].open
    assert "FedAvg ends within 0.2 %" in note
    several = 0.03
    for method in ("heavy-unit", "heavy-participation"):
        assert apart("readings-slow", method) > several
    for method in ("heavy-unit", "scaffold", "fedgvrgm"):
        assert apart("readings", method) > several
    for method in ("fedgvrgm", "damp-unit"):  # at the lower rate it is full momentum that does it
        assert apart("readings-slow", method) < 0.002
    for setting in ("readings-slow", "readings"):
        assert apart(setting, "fedavg") < 0.002


def test_rows_are_those_of_the_runs() -> None:
    titles = {paper.title: name for name, paper in papers()["fedgvrgm"].methods.items()}
    rates = {0.01: "readings-slow", 0.1: "readings"}
    assert len(MEASURED["rows"]) == len(MEASURED["runs"]) / 3
    for row in MEASURED["rows"]:
        runs = runs_of(rates[row["η"]], titles[row["reading"]])
        assert row["apart after 30 rounds, %"] == pytest.approx(100 * max(relative(run, 30) for run in runs), rel=0.05)
        ends = [run["one bit higher"]["loss"][-1] for run in runs]
        assert row["one bit higher"] == f"{mean(ends):.3f} ± {stdev(ends):.3f}"
