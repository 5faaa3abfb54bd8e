"""Tables, ranks and the page from records, whether there are any or not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from docs.pages import leaderboard as pages
from docs.pages import pictures
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli.tuning_run import show_boards
from fedkeel.errors import InputError
from fedkeel.papers.format import papers
from fedkeel.papers.records import Records
from fedkeel.tuning import overall
from fedkeel.tuning import records as kept
from fedkeel.tuning.board import Board, board, cells, ranking, reach, support
from fedkeel.tuning.contest import Contest, contest, final_experiment, settings, trial_experiment
from fedkeel.tuning.pictures import difference_chart
from fedkeel.tuning.plan import budgeted
from fedkeel.tuning.records import Collected, Tried
from fedkeel.tuning.results import Leaderboard, publish
from tests.tuning.made import TINY, record, through

FIVE = replace(TINY, seeds=5)


def of(*groups: list[Tried]) -> Collected:
    return Collected({(one.algorithm, one.stage, one.number): one for group in groups for one in group})


@pytest.fixture
def three() -> tuple[Board, Collected]:
    """FedAvg 60 %, FedProx a point less on every seed but the last, and the yardstick above both."""
    found = of(
        through(FIVE, "fedavg", [0.60, 0.62, 0.64, 0.66, 0.68]),
        through(FIVE, "fedprox", [0.59, 0.61, 0.63, 0.65, 0.68]),
        through(FIVE, "centralised", [0.9] * 5),
    )
    return board(FIVE, found), found


def test_rows_are_ordered_by_the_late_accuracy_and_the_yardstick_is_not_ranked(three: tuple[Board, Collected]) -> None:
    """FedAvg wins four seeds and shares the fifth: rank (4·1 + 1.5)/5 = 1.1, FedProx 1.9."""
    found, _ = three
    assert [row.algorithm for row in found.rows] == ["centralised", "fedavg", "fedprox"]
    yardstick, first, second = found.rows
    assert math.isnan(yardstick.rank)
    assert (first.rank, second.rank) == (1.1, 1.9)
    assert first.late.mean == pytest.approx(0.64)
    assert math.isnan(first.p)
    assert second.p == pytest.approx(0.0161, abs=1e-4), "differences 1, 1, 1, 1, 0: t = 0.8/(0.447/√5) = 4, p = 0.0161"
    assert [row[0] for row in cells(found)] == ["", "1", "2"]


def test_who_is_not_in_the_table_is_named_with_the_reason(three: tuple[Board, Collected]) -> None:
    _, known = three
    begun = record(FIVE, "feddc", "trial", 0, 0.5)
    found = board(FIVE, Collected({**known.found, ("feddc", "trial", 0): begun}))
    assert found.unfinished == {"feddc": "1 of 2 trials and 0 of 5 runs are done"}
    assert found.not_run == {"vrlsgd": "it needs every client in every round"}
    named = {row.algorithm for row in found.rows} | found.unfinished.keys() | found.not_run.keys() | {*found.absent}
    assert named == set(ALGORITHMS)


def test_rounds_and_bytes_to_a_target_count_only_where_all_arrived() -> None:
    """At 50 % and 1 MB a round: the runs at 60 % are there in round 1; one at 40 % never is."""
    found = board(TINY, of(through(TINY, "fedavg", [0.6, 0.6]), through(TINY, "fedprox", [0.6, 0.4])))
    fedavg, fedprox = found.rows
    assert (fedavg.rounds_to, fedavg.bytes_to) == (1, 1e6)
    assert math.isnan(fedprox.rounds_to)
    assert cells(found)[1][4] == "1 of 2 reached"
    assert reach(record(TINY, "fedavg", "final", 1, 0.4), 0.5) is None


def test_the_support_of_the_first_is_told() -> None:
    """FedProx is a point behind on four seeds and level on one (t = 4, p = 0.016); FedDC swings around the first."""
    late = {
        "fedavg": [0.60, 0.62, 0.64, 0.66, 0.68],
        "fedprox": [0.59, 0.61, 0.63, 0.65, 0.68],
        "feddc": [0.64, 0.58, 0.68, 0.62, 0.67],
    }
    assert support(board(FIVE, of(through(FIVE, "fedavg", late["fedavg"])))) == ""
    two = of(*(through(FIVE, name, late[name]) for name in ("fedavg", "fedprox")))
    first = "FedAvg comes first over 5 seeds"
    assert support(board(FIVE, two)) == f"{first}: significantly ahead of 1 of 1 others (p < 0.05)."
    three = of(*(through(FIVE, name, values) for name, values in late.items()))
    told = support(board(FIVE, three))
    assert told == f"{first}: significantly ahead of 1 of 2 others (p < 0.05); statistically level with FedDC."
    diverged = through(FIVE, "fedprox", late["fedavg"], diverged=(2,))  # a mean of 51 with one seed at 0 is no order
    told = support(board(FIVE, of(through(FIVE, "fedavg", late["fedavg"]), diverged)))
    assert told == f"{first}: not compared with FedProx, some of whose seeds diverged."


def test_a_run_that_diverges_counts_as_nothing_and_is_told() -> None:
    found = board(TINY, of(through(TINY, "fedavg", [0.6, 0.6]), through(TINY, "fedprox", [0.9, 0.9], diverged=(2,))))
    assert [row.algorithm for row in found.rows] == ["fedavg", "fedprox"]
    assert found.rows[1].late.mean == pytest.approx(0.45)
    assert cells(found)[1][2] == "1 of 2 diverged, else 90.00"


def test_ranks_need_five_seeds_and_are_drawn(three: tuple[Board, Collected]) -> None:
    few = of(through(TINY, "fedavg", [0.6, 0.6]), through(TINY, "fedprox", [0.5, 0.5]))
    assert ranking([board(TINY, few)], [few]) is None
    one, found = three
    ranks = ranking([one], [found])
    assert ranks is not None
    assert ranks.ranks == {"fedavg": 1.1, "fedprox": 1.9}
    chart = difference_chart(ranks).to_dict()
    assert "Mean rank" in chart["title"]["text"]


def test_records_say_their_budget_and_different_ones_are_not_compared() -> None:
    """Made with 2 trials and 5 seeds, whatever the setting says now."""
    found = of(through(FIVE, "fedavg", [0.6] * 5))
    assert budgeted(replace(FIVE, trials=99, rounds=99, seeds=9), found, Path()) == FIVE
    other = replace(FIVE, trial_rounds=2)
    mixed = of(through(FIVE, "fedavg", [0.6] * 5), through(other, "fedprox", [0.6] * 5))
    with pytest.raises(InputError, match="2 and 3 rounds of a trial: budgets must be equal"):
        budgeted(FIVE, mixed, Path())


@pytest.mark.parametrize("name", settings())
def test_nothing_shipped_is_chosen_by_a_single_evaluation(name: str) -> None:
    """The last tenth of 40 rounds begins after round 36: every 2 gives rounds 38 and 40, every 5 only 40."""
    about = contest(name)
    for experiment in (trial_experiment(about, "fedavg", {}), final_experiment(about, "fedavg", {}, 1)):
        rounds, every = experiment.training.rounds, experiment.evaluation.every
        assert sum(1 for t in range(every, rounds + 1, every) if t > 0.9 * rounds) >= 2


def test_a_contest_that_was_stopped_is_not_through() -> None:
    """One run of five after tuning is no result over one seed."""
    found = of(through(FIVE, "fedavg", [0.6] * 5)[:3])
    about = budgeted(FIVE, found, Path())
    assert about.seeds == 5
    assert board(about, found).unfinished == {"fedavg": "2 of 2 trials and 1 of 5 runs are done"}


def test_values_that_are_not_those_of_the_best_trial_are_refused() -> None:
    made = through(FIVE, "fedavg", [0.6] * 5)
    better = record(FIVE, "fedavg", "trial", 1, 0.9, {**made[0].chosen, "training.lr": 0.05})
    with pytest.raises(InputError, match="does not have the values of the best trial"):
        budgeted(FIVE, of(made, [better]), Path())


def test_the_page_without_records_says_so() -> None:
    text = pages.page(Leaderboard(Path("nowhere")))
    for name, one in settings().items():
        assert f"## {name}\n\n{one.title}.\n\nNot run yet." in text
        assert f"fedkeel leaderboard run {name} --algorithms" in text
    assert "too few results for mean ranks" in text


def small(name: str = "fashion-mnist") -> Contest:
    return contest(name).with_budget(trials=2, rounds=5, seeds=5)


def test_the_page_with_records_has_every_algorithm_and_the_command_of_its_budget(tmp_path: Path) -> None:
    about = small()
    for one in through(about, "fedavg", [0.8] * 5) + through(about, "feddc", [0.81] * 5):
        kept.write(tmp_path, one)
    kept.write(tmp_path, record(about, "fedprox", "trial", 0, 0.5))
    text = pages.page(Leaderboard(tmp_path))
    assert "**Diverged:**" not in text
    for one in through(about, "scaffold", [0.79] * 5, diverged=(3,)):
        kept.write(tmp_path, one)
    text = pages.page(Leaderboard(tmp_path))
    assert "| 3 | SCAFFOLD | 1 of 5 diverged, else 79.00 |" in text
    assert "**Diverged:** SCAFFOLD. The chosen values held for the 2 rounds of a trial" in text
    assert "| 1 | FedDC | 81.00 ± 0.00 |" in text
    assert "Not finished: fedprox, 1 of 2 trials and 0 of 5 runs are done." in text
    assert "fedkeel leaderboard run fashion-mnist --algorithms feddc --trials 2 --rounds 5\n" in text
    assert "Mean ranks over 5 paired runs of fashion-mnist" in text
    assert f"Not run yet: {ALGORITHMS['feddyn'].title}" in text


def test_settings_of_a_few_do_not_cut_the_ranking_down_to_them(tmp_path: Path) -> None:
    """Three in the setting of all, two in that of the best: all three are ranked; the two by themselves if asked."""
    for name, entered in {"fashion-mnist": ["fedavg", "feddc", "fedprox"], "two-percent": ["fedavg", "feddc"]}.items():
        for algorithm in entered:
            for one in through(small(name), algorithm, [0.8] * 5):
                kept.write(tmp_path, one)
    ranks = Leaderboard(tmp_path).ranking()
    assert ranks is not None
    assert (ranks.contests, set(ranks.ranks)) == (("fashion-mnist",), {"fedavg", "feddc", "fedprox"})
    few = Leaderboard(tmp_path).ranking(["two-percent"])
    assert few is not None
    assert set(few.ranks) == {"fedavg", "feddc"}


def test_a_setting_that_has_hardly_begun_does_not_cut_the_ranking_down_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three take part; all are through with one setting, two with the other, which waits."""
    three = ["fedavg", "feddc", "fedprox"]
    monkeypatch.setattr("fedkeel.tuning.results.entrants", lambda name, ranking: three)
    for name, entered in {"fashion-mnist": three, "mnist": three[:2]}.items():
        for algorithm in entered:
            for one in through(small(name), algorithm, [0.8] * 5):
                kept.write(tmp_path, one)
    ranks = Leaderboard(tmp_path).ranking()
    assert ranks is not None
    assert (ranks.contests, set(ranks.ranks)) == (("fashion-mnist",), {*three})


def test_the_best_are_ranked_where_they_were_not_chosen(tmp_path: Path) -> None:
    """Keel is the best but for the papers' methods, all of which take part. A setting without one of them waits."""
    entered = [*(paper.own[0] for paper in papers().values()), "keel"]
    for name in ("fashion-mnist", "two-percent", "dirichlet-03"):
        for algorithm in entered if name != "dirichlet-03" else entered[1:]:
            for one in through(small(name), algorithm, [0.9 if algorithm == "keel" else 0.8] * 5):
                kept.write(tmp_path, one)
    ranks = Leaderboard(tmp_path).ranking_of_best()
    assert ranks is not None
    assert (ranks.contests, ranks.blocks) == (("two-percent",), 5)
    assert ranks.ranks["keel"] == 1.0


def test_over_all_settings_but_the_one_that_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedDC leads FedAvg by 2 points in one setting and is 1 behind in the other: half a point over both, each time
    with the same spread. FedProx has a seed that diverged, and is not compared. Fashion-MNIST, where FedAvg is far
    ahead, chose who takes part and does not count."""
    three = ["fedavg", "feddc", "fedprox"]
    monkeypatch.setattr("fedkeel.tuning.results.entrants", lambda name, ranking: three)
    won = [0.00, 0.01, 0.02, 0.03, 0.04]
    for name, lead in {"fashion-mnist": -0.2, "mnist": 0.0, "two-percent": -0.03}.items():
        values = {
            "fedavg": [0.7] * 5,
            "feddc": [0.7 + lead + own for own in won],
            "fedprox": [0.6] * 5,
        }
        for algorithm, late in values.items():
            for one in through(small(name), algorithm, late):
                broken = algorithm == "fedprox" and name == "mnist" and (one.stage, one.number) == ("final", 1)
                kept.write(tmp_path, one.model_copy(update={"ended": "diverged"}) if broken else one)
    found = Leaderboard(tmp_path).overall()
    assert found is not None
    assert found.contests == ("mnist", "two-percent")
    first, second, third = found.standings
    assert [one.algorithm for one in found.standings] == ["feddc", "fedavg", "fedprox"]
    assert (first.mean, second.lead.mean) == pytest.approx((0.705, 0.005))
    assert (first.places, second.places) == ((1, 2), (2, 1))
    assert (third.diverged, math.isnan(third.p)) == (1, True)
    assert (
        "FedDC comes first over mnist and two-percent: statistically level with FedAvg; not compared with FedProx"
        in (pages.page(Leaderboard(tmp_path)))
    )
    show_boards([], [tmp_path], None, False)
    assert "behind the first" in capsys.readouterr().out


def test_nobody_is_level_with_a_first_that_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedDC is ahead although one of its ten seeds counts as 0, 0.81 to 0.4. No test was made, so none is claimed."""
    two = ["fedavg", "feddc"]
    monkeypatch.setattr("fedkeel.tuning.results.entrants", lambda name, ranking: two)
    for name in ("fashion-mnist", "mnist", "two-percent"):
        for algorithm, late in zip(two, (0.4, 0.9), strict=True):
            for one in through(small(name), algorithm, [late] * 5):
                broken = (algorithm, name, one.stage, one.number) == ("feddc", "mnist", "final", 1)
                kept.write(tmp_path, one.model_copy(update={"ended": "diverged"}) if broken else one)
    found = Leaderboard(tmp_path).overall()
    assert found is not None
    assert found.standings[0].mean == pytest.approx(0.81)
    assert overall.support(found).endswith("not compared with anybody, since some of its own seeds diverged.")


def test_settings_whose_entrants_are_not_known_yet_are_shown_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who takes part is chosen by Fashion-MNIST, of which there is nothing."""
    for name in ("two-percent", "dirichlet-03"):
        for algorithm in ("fedavg", "feddc"):
            for one in through(small(name), algorithm, [0.8] * 5):
                kept.write(tmp_path, one)
    show_boards([], [tmp_path], None, False)
    shown = capsys.readouterr().out
    assert "two-percent" in shown
    assert "behind the first" not in shown


def test_the_published_pictures_are_those_of_the_records() -> None:
    for path, ranks in pages.rankings(pages.published()).items():
        assert ranks is not None
        expected = pictures.digest_of(difference_chart(ranks))
        assert pictures.drawing_of(path.read_bytes()) == expected, "run docs/make_pages.py"


def test_published_pages_are_those_of_the_records() -> None:
    assert pages.PATH.read_text(encoding="utf-8") == pages.page(), "run: python docs/make_pages.py"


def test_publishing_copies_who_is_through_and_keeps_what_is_there(tmp_path: Path) -> None:
    about, source, target = small(), tmp_path / "from", tmp_path / "to" / "leaderboard"
    for one in through(about, "fedavg", [0.8] * 5):
        kept.write(source / "records", one)
    kept.write(source / "records", record(about, "fedprox", "trial", 0, 0.5))
    told = list(publish(["fashion-mnist"], source, target))
    assert told == [
        "fashion-mnist fedavg: 7 records",
        "fashion-mnist fedprox: not published, 1 of 2 trials and 0 of 5 runs are done",
    ]
    assert next(publish(["fashion-mnist"], source, target)).endswith("was published already")
    for one in through(about, "fedavg", [0.9] * 5):
        kept.write(source / "records", one)
    assert "kept, other records" in next(publish(["fashion-mnist"], source, target))
    assert "7 records" in next(publish(["fashion-mnist"], source, target, replace=True))
    assert Collected.of("fashion-mnist", target).finals("fedavg")[0].value == 0.9
    assert len(Records.of(target.parent)) == 0, "records of papers and of the leaderboard lie beside each other"


def test_a_setting_of_the_best_takes_them_from_the_first(tmp_path: Path) -> None:
    about = small()
    for one in through(about, "slowmo", [0.8] * 5):
        kept.write(tmp_path, one)
    assert "slowmo" in Leaderboard(tmp_path).entrants("lenet")
    with pytest.raises(InputError, match="run that first"):
        Leaderboard(tmp_path / "nowhere").entrants("lenet")


def test_the_command_shows_tables_and_draws_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = small()
    for one in through(about, "fedavg", [0.8] * 5) + through(about, "feddc", [0.81] * 5):
        kept.write(tmp_path, one)
    show_boards(["fashion-mnist", "mnist"], [tmp_path], tmp_path / "ranks.svg", False)
    told = " ".join(capsys.readouterr().out.split())
    assert "2 trials of 2 rounds each on held-out samples, then 5 fresh seeds of 5 rounds" in told
    assert "1 FedDC 81.00 ± 0.00" in told
    assert "cannot take part: vrlsgd: it needs every client in every round" in told
    assert "mnist: MNIST, Dirichlet 0.1, 10 of 100 clients a round, 2NN nothing is run yet" in told
    assert "FedDC" in (tmp_path / "ranks.svg").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="too little to rank"):
        show_boards(["mnist"], [tmp_path], tmp_path / "none.svg", False)
    with pytest.raises(InputError, match="no setting of the leaderboard named 'fashion'"):
        show_boards(["fashion"], [tmp_path], None, False)


def test_an_order_of_some_says_who_is_missing() -> None:
    """As published: an entrant of a setting either has a row there, or is named as missing once others have one."""
    about, text = pages.published(), pages.page()
    for found in about.boards():
        ran = {row.algorithm for row in found.rows}
        wanted = {*about.entrants(found.contest.name)} - {*found.not_run}
        assert {*about.missing(found)} == (wanted - ran if ran else set())
        for name in about.missing(found):
            assert ALGORITHMS[name].title in text.partition(f"\n## {found.contest.name}\n")[2].partition("\n## ")[0]
