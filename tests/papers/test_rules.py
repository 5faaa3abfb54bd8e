"""The rules by which a printed number counts as reproduced, each on numbers that can be followed by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.papers.format import Measure, Scale
from fedkeel.papers.measures import Summary
from fedkeel.papers.published import Published, parsed
from fedkeel.papers.rules import Column, Entry, Point, Verdict, ahead, kendall

ROUNDS = Measure(kind="rounds_to", target=0.98)
ACCURACY = Measure(kind="best")
FINAL = Measure(kind="final")
LOSS = Measure(kind="final", metric="loss", scale=100)
LEVEL_600 = Point(600.0, beyond=True)


def ours(value: float, sd: float | None = None, n: int = 1, failed: int = 0, beyond: bool = False) -> Summary:
    return Summary(value=value, beyond=beyond, sd=sd, n=n, failed=failed, smoothed=None)


def printed(given: object) -> Published:
    return parsed("test", given)


def entry(given: object, here: Summary | float | None, own: bool = False, contradiction: str = "") -> Entry:
    found = ours(here) if isinstance(here, int | float) else here
    return Entry("Own" if own else "Base", own, printed(given), found, contradiction=contradiction)


def column(measure: Measure, entries: dict[str, Entry], scale: Scale = "full", budget: int = 600) -> Column:
    return Column(measure, entries, budget, scale)


def judged(
    measure: Measure, mine: Entry, other: Entry | None = None, scale: Scale = "full", budget: int = 600
) -> Verdict:
    """The verdict on ``mine``, in a column with another method, of which the paper proposed one."""
    entries = {"mine": mine} | ({"other": other} if other is not None else {})
    return column(measure, entries, scale, budget).verdict("mine")


# -- How far apart


def test_the_tolerance_is_two_standard_errors_of_the_difference() -> None:
    """s = 1.2 from 4 seeds, nothing printed: P is one more draw, so 2·sqrt(1.44/4 + 1.44) = 2·sqrt(1.8) = 2.683."""
    mine = entry(80.0, ours(81.0, sd=1.2, n=4))
    assert column(ACCURACY, {"mine": mine}).tolerance(mine) == pytest.approx(2 * math.sqrt(1.8))


def test_a_printed_spread_takes_the_place_of_ours_for_the_printed_value() -> None:
    """2·sqrt(1.44/4 + 0.25) = 2·0.781."""
    mine = entry("80 ± 0.5", ours(81.0, sd=1.2, n=4))
    assert column(ACCURACY, {"mine": mine}).tolerance(mine) == pytest.approx(2 * math.sqrt(0.61))


@pytest.mark.parametrize(
    ("measure", "value", "others", "floor"),
    [
        (ACCURACY, 90.0, [80.0], 0.3),
        (ACCURACY, 98.47, [98.11], 0.18),  # half of the 0.36 points that the column shows
        (ACCURACY, 98.47, [98.46], 0.1),  # but not less than 0.1
        (ACCURACY, 90.0, [], 0.3),
        (LOSS, 23.0, [46.0], 0.69),
        (LOSS, 23.0, [23.1], 0.23),
        (ROUNDS, 100.0, [">600"], 15.0),
        (ROUNDS, 129.0, [129.0], 6.45),
        (ROUNDS, 3.0, [3.0], 1.0),  # a round is the least that there is
    ],
)
def test_two_programs_may_differ_a_little_but_not_by_what_the_column_shows(
    measure: Measure, value: float, others: list[object], floor: float
) -> None:
    entries = {"mine": entry(value, value)} | {str(at): entry(one, None) for at, one in enumerate(others)}
    assert column(measure, entries).floor(value) == pytest.approx(floor)


def test_one_seed_borrows_the_columns_spread() -> None:
    """The other method's accuracy varies by 1 over 3 seeds: 2·sqrt(1/1 + 1) = 2.83 instead of the floor, 0.3."""
    mine = entry(80.0, 82.5)
    entries = {"mine": mine, "other": entry(70.0, ours(70.0, sd=1.0, n=3))}
    assert column(ACCURACY, entries).tolerance(mine) == pytest.approx(math.sqrt(8))
    assert column(ACCURACY, entries).verdict("mine").kind == "reproduced"
    assert judged(ACCURACY, mine).kind == "not reproduced"


def test_one_seed_borrows_the_spread_that_is_printed() -> None:
    """65.7 and 66.0 with one seed each are no order where the paper's own seeds scatter by 3.8 and 7.5.

    2·√(3.8² + 7.5²) = 16.8. With three seeds of our own, 2·√(0.1²/3 + 0.1²/3) = 0.16 is less than the difference.
    """
    mine, other = entry("63.3 ± 3.8", 65.7, own=True), entry("50.9 ± 7.5", 66.0)
    assert column(ACCURACY, {"mine": mine, "other": other}).relations("mine").level == ("Base",)
    bare = column(ACCURACY, {"mine": entry(63.3, 65.7, own=True), "other": entry(50.9, 66.0)})
    assert bare.relations("mine").reversed == ("Base",)
    three = {"mine": replace(mine, ours=ours(65.7, 0.1, 3)), "other": replace(other, ours=ours(66.0, 0.1, 3))}
    assert column(ACCURACY, three).relations("mine").reversed == ("Base",)


def test_a_swinging_curve_that_happens_to_end_high_shows_nothing() -> None:
    """One seed each: 87 against 85 in the last round, 90 against 88 in print. Level curves have an order; with a swing
    of 2 points the difference of 2 is below 2·2. Three seeds tell more of the last round than one curve does.
    """
    base = entry(88.0, ours(85.0))
    steady, swinging = ours(87.0), replace(ours(87.0), swing=2.0)
    assert judged(FINAL, entry(90.0, steady, own=True), base, "reduced").kind == "direction holds"
    assert judged(FINAL, entry(90.0, swinging, own=True), base, "reduced").kind == "not comparable"
    three = replace(ours(87.0, sd=0.2, n=3), swing=2.0)
    assert column(FINAL, {"mine": entry(90.0, three)}).spread(entry(90.0, three)) == 0.2


def test_rounds_borrow_a_share_because_methods_differ_by_factors() -> None:
    """10 % of 400 rounds is 40; of 60 rounds it is 6, and 2·sqrt(36 + 36) = 16.97."""
    mine = entry(60.0, 60.0)
    entries = {"mine": mine, "other": entry(400.0, ours(400.0, sd=40.0, n=3))}
    assert column(ROUNDS, entries).tolerance(mine) == pytest.approx(2 * math.sqrt(72))


def test_two_seeds_that_happen_to_agree_do_not_make_it_exact() -> None:
    mine = entry(80.0, ours(80.0, sd=0.0, n=2))
    entries = {"mine": mine, "other": entry(70.0, ours(70.0, sd=1.0, n=4))}
    pooled = math.sqrt(3 / 4)  # one degree of freedom with 0, three with 1
    assert column(ACCURACY, entries).tolerance(mine) == pytest.approx(2 * math.sqrt(pooled**2 * 1.5))


# -- Values


def test_near_is_reproduced_and_the_sentence_says_how_near() -> None:
    found = judged(ROUNDS, entry(62, ours(63.0, sd=1.0, n=3)))
    assert found == Verdict("reproduced", "Ours 63 ± 1, printed 62: 1 apart, 9.3 allowed.")


def test_far_without_anybody_to_compare_with_is_not_reproduced() -> None:
    found = judged(ROUNDS, entry(62, 120.0))
    assert found.kind == "not reproduced"
    assert found.says.endswith("no printed difference to other methods can be compared.")


def test_far_but_in_the_printed_order_is_a_direction() -> None:
    found = judged(ROUNDS, entry(62, 120.0, own=True), entry(158, 300.0))
    assert found.kind == "direction holds"
    assert found.says.endswith("the printed order against Base shows here.")


@pytest.mark.parametrize(
    ("measure", "print_", "near", "far"),
    [(ACCURACY, 90.0, 60.1, 59.9), (LOSS, 20.0, 49.9, 50.1), (ROUNDS, 50.0, 249.0, 251.0)],
)
def test_ten_caps_away_is_another_problem(measure: Measure, print_: float, near: float, far: float) -> None:
    """Caps are 3 points, 15 % and 40 %: 30 points, 2.5 times the loss, five times the rounds. The baseline is behind in
    print and here."""
    lower = measure is not ACCURACY
    for here, kind in ((near, "direction holds"), (far, "not reproduced")):
        base = entry(2 * print_ if lower else print_ / 2, 3 * here if lower else here / 3)
        found = judged(measure, entry(print_, here, own=True), base)
        assert found.kind == kind
        assert ("another problem" in found.says) == (here == far)


def test_far_and_in_another_order_is_not_reproduced() -> None:
    found = judged(ROUNDS, entry(62, 320.0, own=True), entry(158, 300.0))
    assert found == Verdict(
        "not reproduced",
        "Ours 320, printed 62: 258 apart, 9.3 allowed, and the printed order against Base is reversed here.",
    )


def test_far_and_level_is_not_reproduced() -> None:
    found = judged(ROUNDS, entry(62, 298.0, own=True), entry(158, 300.0))
    assert found.kind == "not reproduced"
    assert found.says.endswith("no difference to Base shows here beyond the noise.")


def test_most_printed_differences_must_show_and_none_may_turn() -> None:
    mine = entry(95.0, 80.0, own=True)
    far, near = entry(70.0, 60.0), entry(71.0, 79.95)
    assert column(ACCURACY, {"mine": mine, "a": far, "b": far, "c": near}).verdict("mine").kind == "direction holds"
    assert column(ACCURACY, {"mine": mine, "a": far, "c": near}).verdict("mine").kind == "not reproduced"
    turned = entry(71.0, 85.0)
    assert column(ACCURACY, {"mine": mine, **dict.fromkeys("abc", far), "d": turned}).verdict("mine").kind == (
        "not reproduced"
    )


def test_a_baseline_is_compared_with_the_papers_methods_alone() -> None:
    """The other baseline is reversed, which is not what the paper is about."""
    entries = {"mine": entry(70.0, 60.0), "base": entry(65.0, 65.0), "own": entry(95.0, 95.0, own=True)}
    assert column(ACCURACY, entries).relations("mine").held == ("Own",)
    assert column(ACCURACY, entries).verdict("mine").kind == "direction holds"


def test_where_all_methods_are_the_papers_own_they_are_compared_with_each_other() -> None:
    entries = {"mine": entry(70.0, 60.0, own=True), "other": entry(95.0, 95.0, own=True)}
    assert column(ACCURACY, entries).relations("mine").held == ("Own",)


def test_a_near_value_in_the_wrong_order_is_reproduced_but_says_so() -> None:
    found = judged(ACCURACY, entry(80.4, 80.2, own=True), entry(80.0, 80.6))
    assert found.kind == "reproduced"
    assert found.says.endswith("though the printed order against Base is reversed here.")


def test_printed_ties_are_no_order() -> None:
    tie = column(ACCURACY, {"mine": entry(98.39, 90.0, own=True), "other": entry(98.38, 95.0)})
    assert tie.relations("mine") == column(ACCURACY, {"mine": entry(1, 1)}).relations("mine")
    spread = column(ACCURACY, {"mine": entry("81 ± 1", 90.0, own=True), "other": entry("80 ± 1", 95.0)})
    assert spread.relations("mine").reversed == ()  # 1 apart, sqrt(1 + 1) = 1.41 printed


def test_seeds_that_scatter_too_much_decide_nothing() -> None:
    """s = 10 over 3 seeds allows 23 points, but nobody would call 5 points apart reproduced: 3 is the cap."""
    scattered = entry(80.0, ours(85.0, sd=10.0, n=3))
    found = judged(ACCURACY, scattered)
    assert found.kind == "not comparable"
    assert "the spread of seeds leaves open" in found.says
    assert judged(ACCURACY, entry(80.0, ours(82.9, sd=10.0, n=3))).kind == "reproduced"
    assert judged(ACCURACY, entry(80.0, ours(40.0, sd=10.0, n=3))).kind == "not reproduced"


# -- Bounds


@pytest.mark.parametrize(
    ("here", "kind"),
    [
        (ours(600.0, beyond=True, failed=1), "reproduced"),
        (ours(600.0, beyond=True, n=3, failed=3), "reproduced"),
        (560.0, "reproduced"),  # 15 % of 600 is 90
        (510.0, "reproduced"),
        (509.0, "not reproduced"),
        (62.0, "not reproduced"),
        (ours(300.0, beyond=True, failed=1), "not comparable"),  # stopped long before 600
    ],
)
def test_not_within_600_in_print(here: Summary | float, kind: str) -> None:
    entries = {"mine": entry(">600", here), "other": entry(60, None, own=True)}
    assert column(ROUNDS, entries).verdict("mine").kind == kind
    entries["mine"] = entry("*", here)
    assert column(ROUNDS, entries).verdict("mine").kind == kind


@pytest.mark.parametrize(
    ("given", "kind"),
    [(62, "not reproduced"), (418, "not reproduced"), (590, "not comparable"), (800, "not comparable")],
)
def test_not_within_600_here(given: float, kind: str) -> None:
    """More than 600 is further than 15 % from 418 (480), not surely so from 590."""
    assert judged(ROUNDS, entry(given, ours(600.0, beyond=True, failed=1)), entry(">600", None)).kind == kind


def test_bounds_on_both_sides_have_no_order_but_a_bound_and_a_number_have() -> None:
    never = ours(600.0, beyond=True, failed=1)
    both = column(ROUNDS, {"mine": entry(">600", never), "other": entry(">600", never, own=True)})
    assert both.relations("mine").held == ()
    assert both.verdict("mine").kind == "reproduced"
    one = column(ROUNDS, {"mine": entry(300, never), "other": entry(62, 500.0, own=True)})
    assert one.relations("mine").held == ("Own",)
    assert one.verdict("mine").kind == "direction holds"


def test_a_run_that_diverged_is_worse_than_any() -> None:
    diverged = ours(-math.inf, beyond=True, failed=1)
    assert judged(ACCURACY, entry(80.0, diverged)).says.startswith("Ours diverged; 80 is printed")
    assert judged(ACCURACY, entry(80.0, diverged), entry(90.0, 90.0, own=True)).kind == "direction holds"
    assert judged(ACCURACY, entry(90.0, diverged, own=True), entry(80.0, 80.0)).kind == "not reproduced"
    assert judged(ACCURACY, entry(90.0, 70.0, own=True), entry(80.0, diverged)).kind == "direction holds"


# -- Doubt, contradiction, scale


def test_a_doubtful_digit_can_confirm_but_not_refute() -> None:
    found = judged(ACCURACY, entry("~77.07", 77.2))
    assert found.kind == "reproduced"
    assert "a printed digit is uncertain" in found.says
    assert judged(ACCURACY, entry("~77.07", 90.0)).kind == "not comparable"
    assert judged(ACCURACY, entry("~77.07", ours(-math.inf, beyond=True, failed=1))).kind == "not comparable"
    assert judged(ROUNDS, entry("~77", ours(600.0, beyond=True, failed=1))).kind == "not comparable"


def test_a_doubtful_number_is_no_part_of_an_order() -> None:
    assert column(ACCURACY, {"mine": entry(46.0, 86.0), "other": entry("~77.07", 90.0, own=True)}).relations(
        "mine"
    ) == column(ACCURACY, {"mine": entry(1, 1)}).relations("mine")


def test_what_the_paper_does_not_print_or_contradicts_is_not_compared() -> None:
    assert judged(ACCURACY, entry("?", 90.0)) == Verdict("not comparable", "The paper prints no legible value.")
    found = judged(ROUNDS, entry("*", 40.0, contradiction="a best above the target"))
    assert found == Verdict("not comparable", "The paper contradicts itself: a best above the target.")
    other = column(ROUNDS, {"mine": entry(40, 90.0, own=True), "other": entry("*", 200.0, contradiction="so")})
    assert other.verdict("mine").kind == "not reproduced"  # the contradictory neighbour is no witness


def test_a_reduced_run_shows_a_direction_at_best_and_refutes_nothing() -> None:
    assert judged(ACCURACY, entry(90.0, 90.0, own=True), entry(80.0, 80.0), "reduced").kind == "direction holds"
    found = judged(ACCURACY, entry(90.0, 70.0, own=True), entry(80.0, 80.0), "reduced")
    assert found.kind == "not comparable"
    assert found.says.endswith("that does not refute the paper.")
    assert judged(ACCURACY, entry(90.0, 90.0), scale="reduced").kind == "not comparable"


def test_a_smoke_run_says_nothing_about_the_paper() -> None:
    assert judged(ACCURACY, entry(90.0, 90.0, own=True), entry(80.0, 80.0), "smoke").kind == "not comparable"


def test_no_record_is_not_run_whatever_is_printed() -> None:
    for one in (90.0, "?", "*", ">600", "~5"):
        assert judged(ACCURACY, Entry("x", False, printed(one), None, "it needs a GPU")) == Verdict(
            "not run", "It needs a GPU."
        )


# -- Order


@pytest.mark.parametrize(
    ("a", "b", "lower", "slack", "sign"),
    [
        (Point(50), Point(60), True, 5, 1),
        (Point(50), Point(60), False, 5, -1),
        (Point(50), Point(54), True, 5, 0),
        (LEVEL_600, LEVEL_600, True, 0, None),
        (LEVEL_600, Point(500), True, 5, -1),
        (Point(500), LEVEL_600, True, 5, 1),
        (Point(598), LEVEL_600, True, 5, None),
        (Point(700), LEVEL_600, True, 5, None),
        (Point(600), LEVEL_600, True, 0, 1),
        (Point(-math.inf, True), Point(3.0), False, 1, -1),
    ],
)
def test_who_is_ahead(a: Point, b: Point, lower: bool, slack: float, sign: int | None) -> None:
    assert ahead(a, b, lower, slack) == sign


POINTS = st.builds(Point, st.integers(0, 9).map(float), st.booleans())


@given(a=POINTS, b=POINTS, lower=st.booleans(), slack=st.integers(0, 3).map(float))
def test_being_ahead_is_being_behind_seen_from_the_other_side(a: Point, b: Point, lower: bool, slack: float) -> None:
    one, other = ahead(a, b, lower, slack), ahead(b, a, lower, slack)
    assert (one is None) == (other is None)
    assert one is None or other is None or one == -other


def test_kendall_by_hand() -> None:
    """1 2 3 against 1 3 2: of three pairs two agree, one does not, (2 − 1)/3; with a tie on one side, 2/sqrt(2·3)."""
    order = [(Point(1), Point(1)), (Point(2), Point(3)), (Point(3), Point(2))]
    assert kendall(order, lower=True) == pytest.approx(1 / 3)
    assert kendall(order, lower=False) == pytest.approx(1 / 3)
    tied = [(Point(1), Point(1)), (Point(2), Point(2)), (Point(2), Point(3))]
    assert kendall(tied, lower=True) == pytest.approx(2 / math.sqrt(2 * 3))
    assert kendall(tied[:1], lower=True) is None


@given(values=st.lists(st.integers(0, 20), min_size=2, max_size=8))
def test_kendall_of_an_order_with_itself_is_one(values: list[int]) -> None:
    tau = kendall([(Point(v), Point(v)) for v in values], lower=True)
    assert tau is None if len(set(values)) == 1 else tau == pytest.approx(1)


def test_winners_in_print_and_here() -> None:
    entries = {
        "a": entry(62, ours(62.0, sd=1.0, n=3)),
        "b": entry(72, ours(61.0, sd=1.0, n=3)),
        "c": entry(">600", 300.0),
    }
    assert column(ROUNDS, entries).winners() == (["a"], ["b", "a"])  # one round apart is level
    assert column(ACCURACY, {"a": entry("~77.07", 5.0), "b": entry(74, None)}).winners() == (["a"], ["a"])
    assert column(ROUNDS, {"a": entry(">600", None)}).winners() == ([], [])


# -- Everything together

PRINTED = st.sampled_from([90.0, 62.0, "~77.07", ">600", "*", "?", "97.86 ± 0.2"])
SUMMARIES = st.builds(
    Summary,
    value=st.floats(1, 700),
    beyond=st.booleans(),
    sd=st.none() | st.floats(0, 50),
    n=st.integers(1, 5),
    failed=st.just(0),
    smoothed=st.none(),
)


@given(
    entries=st.lists(
        st.builds(Entry, st.just("X"), st.booleans(), PRINTED.map(printed), st.none() | SUMMARIES),
        min_size=1,
        max_size=5,
    ),
    measure=st.sampled_from([ROUNDS, ACCURACY, LOSS]),
    scale=st.sampled_from(["full", "reduced", "smoke"]),
)
def test_every_cell_gets_one_verdict_with_a_sentence(entries: list[Entry], measure: Measure, scale: Scale) -> None:
    made = column(measure, {str(at): one for at, one in enumerate(entries)}, scale)
    for at, one in enumerate(entries):
        found = made.verdict(str(at))
        assert found.says.endswith(".")
        assert found.says[0].isupper()
        assert (found.kind == "not run") == (one.ours is None)
        if scale != "full":
            assert found.kind not in ("reproduced", "not reproduced")
        if scale == "smoke":
            assert found.kind in ("not comparable", "not run")
    tau, _ = made.agreement()
    assert tau is None or -1 - 1e-9 <= tau <= 1 + 1e-9
