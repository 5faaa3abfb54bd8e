"""What pictures show, derived by hand from tiny runs."""

import math
from statistics import stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.errors import InputError
from fedkeel.plots import drift, fairness, learning, rounds, values
from fedkeel.plots.figure import Options
from fedkeel.plots.kinds import draw
from fedkeel.plots.lines import MOST_POINTS, Curve, curve, lines
from fedkeel.runs.store import ClientScore
from tests.plots.made import chosen, source

SERIES = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=6)


def test_a_band_of_two_seeds() -> None:
    """0.2 and 0.4 have the mean 0.3 between 0.2 and 0.4; the second seed ends a round earlier, and so does the line."""
    figure = learning.accuracy(chosen(a=[source(0, [0.2, 0.5, 0.9]), source(1, [0.4, 0.7])]), Options())
    (found,), target = figure.rows
    assert target is None
    assert found.label == "a"
    assert found.seeds == 2
    assert found.points == ((1, pytest.approx(0.3), 0.2, 0.4), (2, 0.6, 0.5, 0.7))
    assert "line: mean over seeds; band: smallest to largest" in figure.notes


def test_a_band_of_one_standard_deviation() -> None:
    """0.2, 0.3, 0.7: mean 0.4, s = √((0.04 + 0.01 + 0.09)/2) = √0.07."""
    (found,), _ = learning.accuracy(
        chosen(a=[source(s, [v]) for s, v in enumerate((0.2, 0.3, 0.7))]), Options(band="sd")
    ).rows
    (_, mean, low, high) = found.points[0]
    assert (mean, mean - low, high - mean) == pytest.approx((0.4, math.sqrt(0.07), math.sqrt(0.07)))
    assert stdev([0.2, 0.3, 0.7]) == pytest.approx(math.sqrt(0.07))


def test_losses_are_read_as_they_are() -> None:
    (found,) = learning.loss(chosen(a=source(0, [0.25, 0.5])), Options()).rows
    assert [point[1] for point in found.points] == [0.75, 0.5]


def test_bytes_add_up_in_both_directions() -> None:
    """Half a megabyte up and down in a round: 1, 2 and 3 MB; another seed with twice of it: 1.5, 3, 4.5 on average."""
    runs = [source(0, [0.1, 0.2, 0.3], sent=500_000), source(1, [0.1, 0.2, 0.3], sent=1_000_000)]
    (one,), _ = learning.traffic(chosen(a=runs[0]), Options()).rows
    assert [point[0] for point in one.points] == [1, 2, 3]
    (both,), _ = learning.traffic(chosen(a=runs), Options()).rows
    assert [point[0] for point in both.points] == [1.5, 3, 4.5]
    assert [point[1] for point in both.points] == pytest.approx([0.1, 0.2, 0.3])


def test_rounds_to_a_target_are_means_and_bounds() -> None:
    """Seeds arrive in rounds 2 and 3: 2.5. Of the others one arrives in round 1, one not in three: above (1 + 3)/2."""
    fast = [source(0, [0.1, 0.5, 0.6]), source(1, [0.1, 0.2, 0.5])]
    slow = [source(0, [0.5, 0.1, 0.1]), source(1, [0.1, 0.1, 0.1])]
    figure = rounds.rounds(chosen(fast=fast, slow=slow), Options(target=0.5))
    first, second = figure.rows
    assert (first["value"], first["low"], first["high"], first["text"], first["reached"]) == (2.5, 2, 3, "2.5", True)
    assert (second["value"], second["text"]) == (2, "> 2 (1 of 2 seeds reached it)")
    assert not second["reached"]
    assert any("not reached" in note for note in figure.notes)
    with pytest.raises(InputError, match="--target"):
        rounds.rounds(chosen(fast=fast), Options())


def test_values_of_clients_get_a_line_each_and_many_become_a_band() -> None:
    noted = {1: {"tau": {0: 2.0, 3: 4.0}, "L": 1.0}, 2: {"tau": {3: 6.0}, "L": 2.0}}
    figure = values.values(chosen(a=source(0, [0.1, 0.2], noted=noted)), Options(names=("tau", "L")))
    assert {c.label: [(x, y) for x, y, *_ in c.points] for c in figure.rows["tau"]} == {
        "client 0": [(1, 2.0)],
        "client 3": [(1, 4.0), (2, 6.0)],
    }
    assert [point[:2] for point in figure.rows["L"][0].points] == [(1, 1.0), (2, 2.0)]
    two = values.values(chosen(a=source(0, noted=noted), b=source(0, noted=noted)), Options(names=("tau",)))
    assert [c.points for c in two.rows["tau"]] == [((1, 3.0, 2.0, 4.0), (2, 6.0, 6.0, 6.0))] * 2
    with pytest.raises(InputError, match="Did you mean 'tau'"):
        values.values(chosen(a=source(0, noted=noted)), Options(names=("tua",)))
    with pytest.raises(InputError, match=r"--name.*tau, L"):
        values.values(chosen(a=source(0, noted=noted)), Options())


def test_drift_is_what_every_run_has_and_what_was_measured() -> None:
    noted = {2: {"measure.gamma": 3.0, "measure.angle": 0.5, "measure.angle_of": {0: 0.5}}}
    plain = drift.drift(chosen(a=source(0, [0.1, 0.2], drifts=[1.0, math.nan])), Options()).rows
    assert {title: [c.points for c in curves] for title, curves in plain.items()} == {drift.DISTANCE: [((1, 1, 1, 1),)]}
    measured = drift.drift(chosen(a=source(0, [0.1, 0.2], noted=noted)), Options()).rows
    assert list(measured) == [drift.DISTANCE, *drift.MEASURED.values()]
    assert measured[drift.MEASURED["measure.gamma"]][0].points == ((2, 3.0, 3.0, 3.0),)
    with pytest.raises(InputError, match=r"measure.every=1"):
        drift.drift(chosen(a=source(0)), Options())


def test_drift_by_layer_is_the_mean_over_seeds_in_the_order_of_the_model() -> None:
    def noted(value: float) -> dict[int, dict[str, float | dict[int, float]]]:
        return {2: {"measure.drift/z.weight": value, "measure.drift/a.bias": 2 * value, "measure.gamma": 1.0}}

    figure = drift.layers(chosen(a=[source(0, noted=noted(1.0)), source(1, noted=noted(3.0))]), Options())
    assert figure.rows == [
        {"run": "a", "layer": "z.weight", "round": 2, "value": 2.0},
        {"run": "a", "layer": "a.bias", "round": 2, "value": 4.0},
    ]
    assert draw("drift-layers", figure).to_dict()["encoding"]["y"]["sort"] == ["z.weight", "a.bias"]
    with pytest.raises(InputError, match=r"measure.every=1"):
        drift.layers(chosen(a=source(0, [0.1])), Options())


def test_fairness_counts_the_clients_of_the_last_evaluated_round() -> None:
    """Of 0.5, 0.72, 0.74 and 1: mean 0.74, the worst tenth is one client, bins of 0.05 hold 1, 2 and 1 of them."""
    scores = [ClientScore(1, 0, "test", 0.1, 1.0)]
    scores += [ClientScore(3, client, "test", value, 1.0) for client, value in enumerate((0.5, 0.72, 0.74, 1.0))]
    figure = fairness.fairness(chosen(a=source(0, [0.1] * 3, scores=scores)), Options())
    (row,) = figure.rows
    assert (row["mean"], row["worst"], row["clients"]) == (pytest.approx(0.74), 0.5, 4)
    assert [(b["low"], b["high"], b["clients"]) for b in row["bins"]] == [
        (0.5, 0.55, 1),
        (0.7, 0.75, 2),
        (0.95, 1.0, 1),
    ]
    assert sum(b["share"] for b in row["bins"]) == 1
    with pytest.raises(InputError, match=r"evaluation.clients=true"):
        fairness.fairness(chosen(a=source(0, [0.1])), Options())
    other = source(0, scores=[ClientScore(3, 0, "train", 0.5, 1.0)], algorithm="feddc")
    with pytest.raises(InputError, match="cannot be drawn together"):
        fairness.fairness(chosen(a=source(0, scores=scores), b=other), Options())


@given(accuracies=st.lists(st.floats(0, 1), min_size=1, max_size=30), width=st.sampled_from(fairness.WIDTHS))
def test_every_client_is_in_the_one_bin_that_holds_it(accuracies: list[float], width: float) -> None:
    found = fairness.bins(accuracies, width)
    assert sum(one["clients"] for one in found) == len(accuracies)
    for value in accuracies:
        assert any(one["low"] - 1e-6 <= value <= one["high"] + 1e-6 for one in found)


def test_runs_without_accuracies_say_so_and_leave_the_others_drawn() -> None:
    with pytest.raises(InputError, match="--kind loss"):
        learning.accuracy(chosen(a=source(0)), Options())
    figure = learning.accuracy(chosen(a=source(0, [0.5]), b=source(0, [math.nan], algorithm="feddc")), Options())
    assert [one.label for one in figure.rows[0]] == ["a"]
    assert "nothing to show of: b" in figure.notes


@settings(max_examples=20)
@given(runs=st.dictionaries(st.sampled_from("abc"), SERIES, min_size=1), target=st.none() | st.floats(0, 1))
def test_every_stored_point_lies_inside_an_axis_that_moves_none(
    runs: dict[str, list[float]], target: float | None
) -> None:
    made = [curve(name, [list(enumerate(values))]) for name, values in runs.items()]
    curves = [one for one in made if one is not None]
    rules = [] if target is None else [target]
    drawn = lines(curves, (400, 200), "accuracy", percent=True, rules=rules).to_dict()
    stored = sorted(value for values in runs.values() for value in values if math.isfinite(value))
    points = [row for rows in drawn["datasets"].values() for row in rows if "low" in row]
    assert sorted(row["mean"] for row in points) == stored
    for layer in drawn["layer"]:
        scale = layer["encoding"]["y"]["scale"]
        assert not scale.get("clamp")
        low, high = scale["domain"]
        assert all(low <= value <= high for value in [*stored, *rules])


def test_long_curves_are_thinned_but_keep_their_end() -> None:
    found = curve("a", [[(t, t / 5000) for t in range(5000)]])
    assert found is not None
    assert len(found.points) <= MOST_POINTS + 1
    assert found.points[-1][0] == 4999


def test_a_line_that_ends_early_is_led_to_its_name() -> None:
    short = Curve("short", ((0, 0.0, 0.0, 0.0), (5, 0.5, 0.5, 0.5)))
    long = Curve("long", ((0, 0.0, 0.0, 0.0), (10, 1.0, 1.0, 1.0)))
    drawn = lines([short, long], (400, 200), "y").to_dict()
    ways = [rows for rows in drawn["datasets"].values() if rows and rows[-1].get("x") == 10 and "low" not in rows[0]]
    assert [[row["line"] for row in rows] for rows in ways] == [["short", "short"]]
