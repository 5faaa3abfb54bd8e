"""Tables and figures beside records: cells, winners, contradictions and claims."""

import json

import pytest

from fedkeel.papers.cells import Printed
from fedkeel.papers.checks import Checked
from fedkeel.papers.contradictions import bests, contradiction
from fedkeel.papers.format import Measure, Paper, papers
from fedkeel.papers.markdown import column_table
from fedkeel.papers.records import Record
from fedkeel.papers.verdicts import ExhibitVerdict, judge, total, verdict
from tests.papers.made import HEAD, paper, record, records

TABLE = """
[exhibits.t]
where = "Table 1"
kind = "table"
title = "Rounds"
shows = "FedDC is first."
methods = ["fedavg", "scaffold", "feddc"]
claims = [{ says = "FedDC wins", check = "wins", method = "feddc" }]
[[exhibits.t.columns]]
id = "c"
title = "A"
setting = "a"
measures = [{ kind = "rounds_to", target = 0.9 }, { kind = "best" }]
published = { fedavg = [">10", 80.0], scaffold = [8, 92.0], feddc = [4, 95.0] }
"""


def rising(method: str, at: int, best: float, seed: int = 0, **more: object) -> Record:
    """Ten rounds: 0.9 in round ``at``, the best in the last; never 0.9 for ``at`` beyond 10."""
    low = min(0.8, best)
    curve = [low if t < at else 0.9 for t in range(1, 10)]
    return record(method, (*curve, best), seed, **more)  # type: ignore[arg-type]


def kinds(found: ExhibitVerdict, column: int = 0) -> dict[str, str]:
    return {cell.method: cell.kind for cell in found.columns[column].cells}


@pytest.fixture
def made() -> Paper:
    return paper(TABLE)


def test_without_records_everything_is_not_run(made: Paper) -> None:
    found = judge(made, made.exhibits["t"], records())
    assert found.counts == {
        "reproduced": 0,
        "direction holds": 0,
        "not reproduced": 0,
        "not comparable": 0,
        "not run": 6,
    }
    assert [one.kind for one in found.claims] == ["not run"]
    assert found.columns[0].wins_in_print == ("FedDC",)
    assert found.columns[0].winner_holds is None
    assert found.columns[0].agreement is None


def test_a_table_with_all_its_records(made: Paper) -> None:
    runs = [rising("fedavg", 99, 0.8), rising("scaffold", 8, 0.92), rising("feddc", 4, 0.95)]
    found = judge(made, made.exhibits["t"], records(*runs))
    assert set(kinds(found).values()) == {"reproduced"}
    assert found.counts["reproduced"] == 6
    rounds = found.columns[0]
    assert (rounds.winner_holds, rounds.agreement, rounds.compared) == (True, 1.0, 3)
    assert [one.kind for one in found.claims] == ["holds"]
    assert json.loads(json.dumps(found.as_json()))["columns"][0]["cells"][0]["ours"]["text"] == ">10"


def test_speed_ups_are_over_fedavg_and_a_bound_where_it_never_got_there(made: Paper) -> None:
    """10 rounds without the target over 4 with it: at least 2.5 times."""
    runs = [rising("fedavg", 99, 0.8), rising("scaffold", 99, 0.85), rising("feddc", 4, 0.95)]
    rounds, best = judge(made, made.exhibits["t"], records(*runs)).columns
    assert [rounds.speed_up(cell) for cell in rounds.cells] == [None, None, (2.5, True)]
    assert {best.speed_up(cell) for cell in best.cells} == {None}
    assert "| ≥ 2.50× |" in column_table(rounds)
    reached = judge(made, made.exhibits["t"], records(rising("fedavg", 8, 0.9), runs[2])).columns[0]
    assert [reached.speed_up(cell) for cell in reached.cells] == [(1.0, False), None, (2.0, False)]


def test_a_winner_that_changed(made: Paper) -> None:
    runs = [rising("scaffold", 2, 0.95), rising("feddc", 9, 0.92)]
    found = judge(made, made.exhibits["t"], records(*runs))
    assert found.columns[0].winner_holds is False
    assert found.columns[0].agreement == -1.0
    assert kinds(found) == {"fedavg": "not run", "scaffold": "not reproduced", "feddc": "not reproduced"}
    (claim,) = found.claims
    assert (claim.kind, claim.because) == (
        "does not hold",
        "SCAFFOLD (2) is ahead of FedDC (9) (1 of 2 comparisons not run)",
    )


def test_a_cell_is_judged_at_its_best_scale_beside_others_of_that_scale(made: Paper) -> None:
    """FedDC has a full run that is off; at the reduced scale, where FedAvg ran too, it would be ahead."""
    reduced = [
        record("fedavg", (0.1,) * 5, scale="reduced"),
        record("feddc", (0.1, 0.9, 0.9, 0.9, 0.9), scale="reduced"),
    ]
    found = judge(made, made.exhibits["t"], records(*reduced, rising("feddc", 9, 0.95)))
    cells = {cell.method: cell for cell in found.columns[0].cells}
    assert (cells["feddc"].scale, cells["feddc"].kind) == ("full", "not reproduced")
    assert (cells["fedavg"].scale, cells["fedavg"].kind) == ("reduced", "direction holds")
    assert cells["scaffold"].scale is None
    only = judge(made, made.exhibits["t"], records(*reduced), "reduced")
    assert kinds(only) == {"fedavg": "direction holds", "scaffold": "not run", "feddc": "direction holds"}


def test_seeds_that_stopped_at_a_target_do_not_leave_the_mean_to_those_that_did_not(made: Paper) -> None:
    """Seed 0 got to 0.9 in round 3 and stopped; seed 1 never did, and its best, 0.85, is no mean over seeds."""
    quick = record("feddc", (0.8, 0.8, 0.9), ended="until")
    found = judge(made, made.exhibits["t"], records(quick, rising("feddc", 11, 0.85, seed=1)))
    rounds, best = (next(one for one in column.cells if one.method == "feddc") for column in found.columns)
    assert rounds.ours is not None
    assert rounds.ours.n == 2
    assert best.kind == "not run"
    assert "seed 0 stopped at a target" in best.says.lower()


def test_a_run_that_was_cut_short_of_its_target_gives_way_to_a_smaller_one_that_was_not(made: Paper) -> None:
    """Three of ten rounds at full scale have not got to 0.9; a reduced run had, in round 2 of its five."""
    cut = [record(name, (0.5, 0.6, 0.7)) for name in ("feddc", "fedavg")]
    small = [record("feddc", (0.8, 0.9, 0.9, 0.9, 0.9), scale="reduced"), record("fedavg", (0.5,) * 5, scale="reduced")]
    alone = judge(made, made.exhibits["t"], records(*cut))
    dc = alone.columns[0].cells[2]
    assert (str(dc.ours), dc.scale, dc.kind) == (">3", "full", "not comparable")
    assert alone.claims[0].kind == "not run"  # both are known only to need more than three rounds
    both = judge(made, made.exhibits["t"], records(*cut, *small))
    assert [(str(cell.ours), cell.scale) for cell in both.columns[0].cells if cell.ours is not None] == [
        (">5", "reduced"),
        ("2", "reduced"),
    ]
    assert both.claims[0].because.startswith("at a reduced scale, so far FedDC (2) before FedAvg (>5)")
    ahead = judge(made, made.exhibits["t"], records(cut[1], record("feddc", (0.9, 0.9, 0.9))))
    assert ahead.claims[0].because.startswith("so far FedDC (1) before FedAvg (>3)")


def test_of_two_that_did_not_get_there_nobody_can_tell() -> None:
    found = claimed('check = "fastest", method = "feddc", target = 0.97, panel = 1', FAST, LAST)
    assert (found.kind, found.because.split(" (1 of")[0]) == (
        "undecided",
        "nobody can tell FedDC (>10) from FedAvg (>10)",
    )


@pytest.mark.parametrize(
    ("check", "bound", "kind"),
    [("above", 5, "holds"), ("above", 15, "undecided"), ("below", 15, "undecided"), ("below", 5, "does not hold")],
)
def test_more_than_ten_rounds_against_a_bound(check: str, bound: float, kind: str) -> None:
    """Never at 0.9 in ten rounds: above 5 for sure, perhaps above 15; surely not below 5."""
    measure = 'measure = { kind = "rounds_to", target = 0.9 }'
    found = claimed(f'check = "{check}", method = "fedavg", bound = {bound}, panel = 1, {measure}', LAST)
    assert found.kind == kind


def test_the_best_of_some_is_said_to_be_of_those(made: Paper) -> None:
    few = judge(made, made.exhibits["t"], records(FAST))
    assert "est here" not in column_table(few.columns[0])
    more = judge(made, made.exhibits["t"], records(FAST, SLOW))
    assert "Best in print: FedDC; best here, of the 2 that were run: FedDC." in column_table(more.columns[0])
    whole = judge(made, made.exhibits["t"], records(FAST, SLOW, LAST))
    assert "Best in print: FedDC; best here: FedDC." in column_table(whole.columns[0])


def test_a_setting_that_needs_something_says_so() -> None:
    made = paper(TABLE.replace('setting = "a"', 'setting = "far"'))
    found = judge(made, made.exhibits["t"], records())
    assert found.columns[0].cells[0].says == "There is no record; it needs a GPU."


def test_readings_that_the_paper_does_not_have_are_shown_but_not_counted() -> None:
    text = TABLE.replace('"feddc"]', '"feddc", "dc2"]', 1)
    made = paper(text, HEAD + '[methods.dc2]\ntitle = "FedDC, as in its program"\nalgorithm = "feddc"\n')
    found = judge(made, made.exhibits["t"], records(rising("dc2", 4, 0.95)))
    assert kinds(found)["dc2"] == "not comparable"
    assert sum(found.counts.values()) == 6
    assert total([found, found])["not run"] == 12


NEVER = """
[exhibits.best]
where = "Table 1"
kind = "table"
title = "Best"
shows = "-"
methods = ["fedavg", "scaffold", "feddc"]
[[exhibits.best.columns]]
id = "c"
title = "A"
setting = "a"
measures = [{ kind = "best" }]
published = { fedavg = 55.08, scaffold = %s, feddc = 57.0 }
[exhibits.rounds]
where = "Table 2"
kind = "table"
title = "Rounds"
shows = "-"
methods = ["fedavg", "scaffold", "feddc"]
[[exhibits.rounds.columns]]
id = "c"
title = "A"
setting = "a"
measures = [{ kind = "rounds_to", target = %s }]
published = { fedavg = 9, scaffold = %s, feddc = 4 }
"""


@pytest.mark.parametrize(
    ("best", "target", "rounds", "contradicts"),
    [
        ("58.0", '{ best_of = "fedavg" }', '"*"', True),  # never, and yet better than FedAvg ever was
        ("55.12", '{ best_of = "fedavg" }', '"*"', False),  # 0.04 points are rounding and seeds
        ("50.0", '{ best_of = "fedavg" }', '"*"', False),
        ("50.0", '{ best_of = "fedavg" }', "7", True),  # reached what it never had
        ("58.0", '{ best_of = "fedavg" }', "7", False),
        ("58.0", "0.57", '">10"', True),
        ("58.0", "0.57", '">5"', False),  # may have come in rounds 6 to 10
        ("58.0", "0.59", "7", True),
        ('"~58.0"', '{ best_of = "fedavg" }', '"*"', False),
    ],
)
def test_two_tables_that_cannot_both_be_true(best: str, target: str, rounds: str, contradicts: bool) -> None:
    made = paper(NEVER % (best, target, rounds))
    runs = [record("fedavg", (0.5,) * 10), record("scaffold", (0.4, 0.58, *(0.4,) * 8))]
    found = judge(made, made.exhibits["rounds"], records(*runs))
    cell = found.columns[0].cells[1]
    assert cell.says.startswith("The paper contradicts itself: ") == contradicts
    assert (cell.kind == "not comparable") == contradicts
    assert not contradicts or "Table 1 prints a best of 5" in cell.says


def test_a_target_set_by_another_method_takes_only_seeds_that_both_have() -> None:
    made = paper(NEVER % ("50.0", '{ best_of = "fedavg" }', "7"))
    runs = [record("fedavg", (0.5,) * 10)]
    runs += [record("feddc", (*(0.1,) * 3, *(0.6,) * 7), seed=seed) for seed in (0, 1)]
    cell = judge(made, made.exhibits["rounds"], records(*runs)).columns[0].cells[2]
    assert cell.ours is not None
    assert (cell.ours.n, cell.ours.value, cell.kind) == (1, 4.0, "reproduced")


BARS = """
[exhibits.f]
where = "Figure 5"
kind = "bars"
title = "Rounds at two rates"
shows = "-"
[[exhibits.f.panels]]
title = "5 and 10 %"
measure = { kind = "rounds_to", target = 0.9 }
bars = [
  { label = "FedAvg 5 %", setting = "a", method = "fedavg", published = 8 },
  { label = "FedDC 5 %", setting = "a", method = "feddc", published = 4 },
  { label = "FedDC 10 %", setting = "far", method = "feddc", published = 2 },
]
"""


def test_bars_are_compared_within_their_setting() -> None:
    made = paper(BARS)
    runs = [rising("fedavg", 8, 0.9), rising("feddc", 4, 0.9), rising("feddc", 2, 0.9, setting="far")]
    found = judge(made, made.exhibits["f"], records(*runs))
    assert [column.setting for column in found.columns] == ["a", "far"]
    assert found.counts["reproduced"] == 3
    assert found.columns[0].wins_in_print == ("FedDC 5 %",)


CURVES = """
[exhibits.f]
where = "Figure 3"
kind = "curves"
title = "Curves"
shows = "-"
methods = ["fedavg", "scaffold", "feddc"]
claims = [%s]
[[exhibits.f.panels]]
title = "first"
setting = "a"
[[exhibits.f.panels]]
title = "second"
setting = "far"
"""


def claimed(claim: str, *runs: Record) -> Checked:
    made = paper(CURVES % f'{{ says = "so", {claim} }}')
    (found,) = judge(made, made.exhibits["f"], records(*runs)).claims
    return found


FAST, SLOW, LAST = rising("feddc", 2, 0.95), rising("scaffold", 6, 0.92), rising("fedavg", 99, 0.85)


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        ('check = "fastest", method = "feddc", target = 0.9, panel = 1', "holds"),
        ('check = "fastest", method = "scaffold", target = 0.9, panel = 1', "does not hold"),
        ('check = "fastest", method = "scaffold", methods = ["fedavg"], target = 0.9, panel = 1', "holds"),
        ('check = "fastest", method = "feddc", target = 0.97, panel = 1', "undecided"),  # nobody gets there
        ('check = "wins", method = "feddc", panel = 1', "holds"),
        ('check = "wins", method = "feddc", panel = 2', "not run"),
        ('check = "wins", method = "feddc"', "undecided"),  # it holds in one panel of two, and the other was not run
        ('check = "wins", method = "scaffold"', "does not hold"),  # for which one panel suffices
        ('check = "order", methods = ["feddc", "scaffold", "fedavg"], panel = 1', "holds"),
        ('check = "order", methods = ["scaffold", "feddc", "fedavg"], panel = 1', "does not hold"),
        ('check = "above", method = "feddc", bound = 0.94, panel = 1', "holds"),
        ('check = "above", method = "feddc", bound = 0.96, panel = 1', "does not hold"),
        ('check = "below", method = "fedavg", bound = 0.86, panel = 1', "holds"),
        ('check = "above", method = "feddc", than = "fedavg", panel = 1', "holds"),
        ('check = "below", method = "feddc", than = "fedavg", panel = 1', "does not hold"),
        (
            'check = "below", method = "feddc", than = "fedavg", panel = 1, '
            'measure = { kind = "rounds_to", target = 0.9 }',
            "holds",
        ),
    ],
)
def test_claims(claim: str, kind: str) -> None:
    assert claimed(claim, FAST, SLOW, LAST).kind == kind


def test_a_yardstick_such_as_training_in_one_place_is_no_rival() -> None:
    text = TABLE.replace('"scaffold", ', '"central", ').replace("scaffold = [8, 92.0]", "central = [2, 99.0]")
    made = paper(text, HEAD + '[methods.central]\ntitle = "Central"\nalgorithm = "centralised"\nrival = false\n')
    runs = [rising("fedavg", 99, 0.8), rising("central", 2, 0.99), rising("feddc", 4, 0.95)]
    found = judge(made, made.exhibits["t"], records(*runs))
    assert found.counts["reproduced"] == 6
    rounds = found.columns[0]
    assert (rounds.wins_in_print, rounds.wins_here, rounds.compared) == (("FedDC",), ("FedDC",), 2)
    assert [one.kind for one in found.claims] == ["holds"]


def test_a_claim_names_the_panels_that_were_not_run() -> None:
    found = claimed('check = "wins", method = "feddc"', FAST, SLOW, LAST)
    assert found.because.startswith("so far ")
    assert found.because.endswith("; 1 of 2 not run")


def test_methods_that_are_level_leave_a_claim_undecided() -> None:
    found = claimed('check = "wins", method = "feddc", panel = 1', FAST, rising("scaffold", 2, 0.9499), LAST)
    assert (found.kind, found.because) == ("undecided", "FedDC (95) and SCAFFOLD (94.99) are level within the noise")


def test_a_claim_about_everybody_is_not_settled_by_some() -> None:
    found = claimed('check = "wins", method = "feddc", panel = 1', FAST, SLOW)
    assert (found.kind, found.because) == (
        "undecided",
        "so far FedDC (95) before SCAFFOLD (92) (1 of 2 comparisons not run)",
    )


def test_a_reduced_run_confirms_a_claim_but_does_not_refute_it() -> None:
    runs = [one.model_copy(update={"scale": "reduced"}) for one in (FAST, SLOW, LAST)]
    assert claimed('check = "wins", method = "feddc", panel = 1', *runs).kind == "holds"
    assert claimed('check = "fastest", method = "scaffold", target = 0.9, panel = 1', *runs).kind == "undecided"


def test_a_recorded_value_against_a_bound() -> None:
    """19 of 20 rounds is what a claim for all of them takes."""
    for inside, kind in ((19, "holds"), (18, "does not hold")):
        values = {"premise": [0.5] * (20 - inside) + [1.5] * inside}
        run = record("feddc", (0.5,) * 10, values=values)
        found = claimed('check = "above", value = "premise", bound = 1.0, panel = 1', run)
        assert (found.kind, found.because) == (kind, f"premise is above 1 in {inside * 5}% of 20 values")
    clients = record("feddc", (0.5,) * 10, values={"tau": [(2.0, 3.0), (2.0, None)]})
    assert claimed('check = "above", value = "tau", bound = 1.0, panel = 1', clients).kind == "holds"


def test_a_diverged_run_in_a_table(made: Paper) -> None:
    runs = [record("feddc", (0.5, 0.6), ended="diverged"), rising("scaffold", 8, 0.92)]
    found = judge(made, made.exhibits["t"], records(*runs))
    first, second = (column.cells[2] for column in found.columns)
    assert (str(first.ours), first.kind) == (">10", "not reproduced")
    assert second.ours is not None
    assert (second.ours.value, second.ours.notes) == (60.0, ("diverged after round 2",))
    final = paper(TABLE.replace('kind = "best"', 'kind = "final"'))
    found = judge(final, final.exhibits["t"], records(*runs))
    assert str(found.columns[1].cells[2].ours) == "diverged"
    assert json.dumps(found.as_json(), allow_nan=False)


def test_the_papers_contradict_themselves_where_their_own_tables_say_so() -> None:
    """FedDC: FedAvg never has 80 % on CIFAR-10 in Table 1, and 80.42 % in Table 3."""
    cell = next(
        cell
        for column in verdict("feddc.table1", records()).columns
        for cell in column.cells
        if column.id == "cifar10-d1-all" and cell.method == "fedavg"
    )
    known = bests(papers()["feddc"])
    printed = Printed("fedavg", "FedAvg", "fedavg", "cifar10-d1-all", cell.printed, True)
    found = contradiction(papers()["feddc"], Measure(kind="rounds_to", target=0.8), printed, known)
    assert found == "never reached, it says, but Table 3 prints a best of 80.42 against the target 80"
