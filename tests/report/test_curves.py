"""Curves show what is stored, at the height that it has."""

import math
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.data import save_chart
from fedkeel.report.curves import curves_chart
from fedkeel.runs.history import History, Measured

ACCURACIES = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=6)


def history(accuracies: list[float]) -> History:
    return History([], [Measured(t, "global", "test", value, 1.0) for t, value in enumerate(accuracies, start=1)])


@settings(max_examples=25, deadline=None)
@given(runs=st.dictionaries(st.sampled_from("abc"), ACCURACIES, min_size=1), target=st.none() | st.floats(0, 1))
def test_every_stored_point_lies_inside_an_axis_that_moves_none(
    runs: dict[str, list[float]], target: float | None
) -> None:
    chart = curves_chart({name: history(values) for name, values in runs.items()}, "title", target=target).to_dict()
    stored = [value for values in runs.values() for value in values if math.isfinite(value)]
    lines = chart["layer"][0]["data"]
    points = lines["values"] if "values" in lines else chart["datasets"][lines["name"]]
    shown = [point["accuracy"] for point in points]
    assert [value for value in shown if math.isfinite(value)] == stored
    for layer in chart["layer"]:
        scale = layer["encoding"]["y"]["scale"]
        assert not scale.get("clamp")
        low, high = scale["domain"]
        assert all(low <= value <= high for value in [*stored, *([] if target is None else [target])])


def test_a_run_that_was_never_evaluated_has_no_end_to_mark(tmp_path: Path) -> None:
    chart = curves_chart({"a": history([]), "b": history([0.42, 0.9])}, "title", target=0.9)
    assert save_chart(chart, tmp_path / "curves.png").stat().st_size > 1000
