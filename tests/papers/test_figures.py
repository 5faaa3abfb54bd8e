"""The papers' figures show what is on record, and say what is not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedkeel.errors import InputError
from fedkeel.papers.figures import draw
from fedkeel.papers.format import Paper, papers
from fedkeel.papers.records import Record, Records
from fedkeel.papers.toy import averaged, optimum
from fedkeel.papers.verdicts import judge
from fedkeel.plots.lines import MOST_POINTS
from fedkeel.theme import save_chart
from tests.papers.made import paper, record, records

FIGURES = """
[exhibits.curves]
where = "Figure 3"
kind = "curves"
title = "Curves"
shows = "-"
methods = ["fedavg", "scaffold", "feddc"]
layout = [1, 2]
[[exhibits.curves.panels]]
title = "near"
setting = "a"
[[exhibits.curves.panels]]
title = "far away"
setting = "far"
[exhibits.bars]
where = "Figure 5"
kind = "bars"
title = "Bars"
shows = "-"
[[exhibits.bars.panels]]
title = "rounds"
measure = { kind = "rounds_to", target = 0.9 }
bars = [
  { setting = "a", method = "fedavg", published = ">10" },
  { setting = "a", method = "feddc", published = 4 },
  { setting = "far", method = "feddc", label = "far" },
]
[[exhibits.bars.panels]]
title = "best"
setting = "a"
methods = ["fedavg", "feddc"]
measure = { kind = "best" }
[exhibits.values]
where = "Figure 8"
kind = "values"
title = "Values"
shows = "-"
claims = [{ says = "so", check = "above", value = "premise", bound = 1.0 }]
[[exhibits.values.panels]]
title = "First: τ_i"
setting = "a"
method = "feddc"
value = "tau"
[[exhibits.values.panels]]
title = "premise"
setting = "a"
method = "feddc"
value = "premise"
[exhibits.sets]
where = "Figure 6"
kind = "sets"
title = "Sets"
shows = "-"
methods = ["fedavg", "feddc"]
claims = [
  { says = "smallest", check = "wins", method = "feddc", measure = { kind = "set_size", coverage = 0.9 } },
]
[[exhibits.sets.panels]]
title = "all"
setting = "a"
[exhibits.toy]
where = "Figure 1"
kind = "toy"
title = "Toy"
shows = "-"
[exhibits.toy.params]
optimum = 3.0
start = 0.0
eta = 0.1
steps = 2
rounds = 20
cases = [{ title = "15 and 2", optima = [15.0, 2.0] }, { title = "3 and 3.5", optima = [3.0, 3.5] }]
[exhibits.drawn]
where = "Figure 2"
kind = "illustration"
title = "Arrows"
shows = "Arrows."
[exhibits.table]
where = "Table 1"
kind = "table"
title = "Table"
shows = "-"
methods = ["feddc"]
[[exhibits.table.columns]]
id = "c"
title = "A"
setting = "a"
measures = [{ kind = "best" }]
"""


@pytest.fixture(scope="module")
def made() -> Paper:
    return paper(FIGURES)


def spec(made: Paper, name: str, *runs: Record) -> dict[str, Any]:
    return draw(made, made.exhibits[name], records(*runs)).to_dict()  # type: ignore[no-any-return]


def drawn(found: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """All rows of data that have a field."""
    return [row for rows in found["datasets"].values() for row in rows if field in row]


def words(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False)


CURVE = tuple(0.1 * t for t in range(1, 11))


def test_a_curve_is_the_mean_of_its_seeds_between_the_smallest_and_the_largest(made: Paper) -> None:
    found = spec(made, "curves", record("feddc", CURVE), record("feddc", [v / 2 for v in CURVE], seed=1))
    fifth = next(row for row in drawn(found, "mean") if row["x"] == 5)
    assert [fifth[key] for key in ("line", "mean", "low", "high")] == ["FedDC", pytest.approx(0.375), 0.25, 0.5]
    assert "band: smallest to largest" in words(found)


def with_sets(method: str, sets: tuple[tuple[float, float, float], ...], seed: int = 0) -> Record:
    return record(method, CURVE, seed=seed).model_copy(update={"sets": sets})


def test_sizes_of_sets_are_drawn_against_the_coverage_that_was_found(made: Paper) -> None:
    """Two seeds asked for 80 %: coverages 0.78 and 0.82, sizes 2 and 3."""
    runs = [
        with_sets("feddc", ((0.9, 0.91, 4.0), (0.8, 0.78, 2.0))),
        with_sets("feddc", ((0.9, 0.91, 4.0), (0.8, 0.82, 3.0)), seed=1),
        record("fedavg", CURVE),
    ]
    found = spec(made, "sets", *runs)
    first, second = drawn(found, "mean")
    assert [first[key] for key in ("line", "low", "high")] == ["FedDC", 2.0, 3.0]
    assert (first["x"], first["mean"]) == pytest.approx((0.8, 2.5))
    assert (second["x"], second["mean"]) == pytest.approx((0.91, 4.0))
    assert "not run: FedAvg" in words(found)


def test_whose_sets_are_smallest_can_be_claimed(made: Paper) -> None:
    small, large = ((0.9, 0.9, 2.0),), ((0.9, 0.9, 3.0),)
    for own, other, fate in ((small, large, "holds"), (large, small, "does not hold")):
        runs = [with_sets(name, sets, seed) for seed in (0, 1) for name, sets in (("feddc", own), ("fedavg", other))]
        (claim,) = judge(made, made.exhibits["sets"], records(*runs)).claims
        assert claim.kind == fate, claim.because


def test_what_was_not_run_is_said_where_it_is_missing(made: Paper) -> None:
    found = words(spec(made, "curves", record("feddc", CURVE)))
    assert "not run: FedAvg, SCAFFOLD" in found
    assert '"text": "not run"' in found
    assert "needs a GPU" in found


def test_rounds_that_belong_to_another_exhibit_are_not_drawn(made: Paper) -> None:
    found = spec(made, "curves", record("feddc", (0.5,) * 30))
    assert max(row["x"] for row in drawn(found, "mean")) == 10


def test_a_seed_that_ends_early_ends_the_mean(made: Paper) -> None:
    short = record("feddc", CURVE[:4], seed=1, ended="diverged")
    found = spec(made, "curves", record("feddc", CURVE), short)
    assert max(row["x"] for row in drawn(found, "low")) == 4
    assert "cross: diverged" in words(found)


def test_runs_that_were_cut_are_said_to_be_and_give_way_to_whole_ones(made: Paper) -> None:
    """Three of ten rounds; at the reduced scale, five of five."""
    cut, small = record("feddc", CURVE[:3]), record("feddc", CURVE[:5], scale="reduced")
    assert "3 of 10 rounds so far" in words(spec(made, "curves", cut))
    both = words(spec(made, "curves", cut, small))
    assert "so far" not in both
    assert "reduced: 5 instead of 10 rounds" in both
    assert "so far" not in words(spec(made, "curves", record("feddc", CURVE[:3], ended="diverged")))


def test_small_print_is_no_wider_than_its_panel() -> None:
    """Three panels of 290 pixels stand in a row: 58 characters a line, and frames begin below as many lines."""
    gvrgm = papers()["fedgvrgm"]
    found = draw(gvrgm, gvrgm.exhibits["figure3"], Records.of(Path(__file__).parents[2] / "results")).to_dict()
    small, columns = [panel["title"]["subtitle"] for panel in found["concat"]], found["columns"]
    rows = [small[first : first + columns] for first in range(0, len(small), columns)]
    assert (len(rows), columns) == (3, 3)
    assert max(len(line) for row in rows for lines in row for line in lines) in range(40, 59)
    assert all(len({len(lines) for lines in row}) == 1 for row in rows)


def test_the_reduced_scale_is_said(made: Paper) -> None:
    found = spec(made, "curves", record("feddc", CURVE[:5], scale="reduced"))
    assert "reduced: 5 instead of 10 rounds" in words(found)


def test_a_long_curve_is_thinned_to_its_pixels_and_keeps_its_end(made: Paper) -> None:
    long = paper(FIGURES, made_head(rounds=3001))
    found = draw(long, long.exhibits["curves"], records(record("feddc", (0.5,) * 3001))).to_dict()
    rounds = sorted({row["x"] for row in drawn(found, "mean")})
    assert len(rounds) <= MOST_POINTS + 1
    assert (rounds[0], rounds[-1]) == (1, 3001)


def made_head(rounds: int) -> str:
    from tests.papers.made import HEAD

    return HEAD.replace("rounds = 10,", f"rounds = {rounds},")


def test_bars_show_ours_beside_what_is_printed(made: Paper) -> None:
    found = spec(made, "bars", record("feddc", (*(0.1,) * 4, *(0.9,) * 6)), record("fedavg", (0.1,) * 10))
    by_name = {(row["name"], row["text"]) for row in drawn(found, "value")}
    assert by_name == {("FedDC", "5"), ("FedAvg", ">10"), ("FedDC", "90"), ("FedAvg", "10")}
    assert {(row["name"], row["printed"]) for row in drawn(found, "printed")} == {("FedAvg", 10.0), ("FedDC", 4.0)}
    assert "not run: far" in words(found)
    assert "pale: not reached" in words(found)


def test_values_of_clients_are_lines_of_their_own(made: Paper) -> None:
    values = {"tau": [(2.0, 3.0)] * 10, "premise": [None] + [1.5] * 9}
    found = spec(made, "values", record("feddc", CURVE, values=values), record("feddc", CURVE, seed=1, values=values))
    assert {row["line"] for row in drawn(found, "mean")} == {"client 1", "client 2", "FedDC"}
    assert [row["at"] for row in drawn(found, "at") if "line" not in row] == [1.0]  # the claimed bound
    assert min(row["x"] for row in drawn(found, "mean") if row["line"] == "FedDC") == 2
    assert '"title": "τ_i"' in words(found)  # the axis has the symbol that ends the panel's title, "First: τ_i"


def test_a_value_that_nobody_recorded_is_not_run(made: Paper) -> None:
    found = words(spec(made, "values", record("feddc", CURVE, values={"tau": [2.0] * 10})))
    assert found.count('"text": "not run"') == 1


def test_the_toy_goes_to_the_mean_of_the_optima(made: Paper) -> None:
    """Each step shrinks the distance to o_i by 1 − 2η, so the mean of K steps is ō + (1 − 2η)^K (w − ō)."""
    weights = averaged([15.0, 2.0], 0.0, 0.1, 2, 20)
    assert weights == pytest.approx([8.5 - 8.5 * 0.64**t for t in range(21)])
    assert optimum([15.0, 2.0]) == 8.5
    assert averaged([15.0, 2.0], 0.0, 0.01, 1, 1)[1] == pytest.approx(0.17)  # the paper's 17 η
    assert "8.5, 3.25" in words(spec(made, "toy"))


@pytest.mark.parametrize("name", ["curves", "bars", "values", "toy"])
@pytest.mark.parametrize("empty", [True, False])
def test_every_kind_is_drawn_with_and_without_records(made: Paper, name: str, empty: bool, tmp_path: Path) -> None:
    values = {"tau": [(2.0, 3.0)] * 10, "premise": [1.5] * 10}
    runs = (
        [] if empty else [record("feddc", CURVE, values=values), record("fedavg", (math.nan,) * 10, ended="diverged")]
    )
    chart = draw(made, made.exhibits[name], records(*runs))
    assert save_chart(chart, tmp_path / "figure.png").stat().st_size > 1000


def test_what_cannot_be_drawn_says_what_to_do(made: Paper) -> None:
    with pytest.raises(InputError, match=r"is a table, not a figure; see it with: fedkeel paper verdict made\.table"):
        spec(made, "table")
    with pytest.raises(InputError, match=r"made\.drawn \(Figure 2\) was drawn by hand and shows no data"):
        spec(made, "drawn")
