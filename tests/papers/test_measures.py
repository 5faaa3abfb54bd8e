"""From records to the numbers that papers print."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.papers.format import Measure
from fedkeel.papers.measures import Number, Unanswered, first_round, number, shown, summary, swing
from tests.papers.made import record

CURVE = (0.1, 0.5, 0.9, 0.8, 0.7)
BEST, FINAL = Measure(kind="best"), Measure(kind="final")


def rounds_to(target: float) -> Measure:
    return Measure(kind="rounds_to", target=target)


def value(found: Number | Unanswered) -> float:
    assert isinstance(found, Number)
    return found.value


def test_a_whole_run_gives_every_kind_of_number_in_percent() -> None:
    run = record(accuracy=CURVE)
    assert value(number(run, BEST, 5)) == pytest.approx(90)
    assert value(number(run, FINAL, 5)) == pytest.approx(70)
    assert value(number(run, Measure(kind="at", round=2), 5)) == pytest.approx(50)
    assert number(run, rounds_to(0.5), 5) == Number(2.0, smoothed=5.0)  # (0.1 + 0.5 + 0.9 + 0.8 + 0.7)/5 = 0.6


def test_a_curve_that_swings_is_told_from_one_that_rises() -> None:
    """0.5, 0.7, 0.5, 0.7: differences of 0.2, whose mean square is 0.04; half of it is 0.02, its root 0.1414 = 0.2/√2.

    0.5, 0.51, … 0.53 rises by 0.01: 0.01/√2, a twentieth of that. A best value is not read in one round alone.
    """
    swinging, rising = record(accuracy=(0.5, 0.7, 0.5, 0.7)), record(accuracy=(0.5, 0.51, 0.52, 0.53))
    for run, expected in ((swinging, 20 / math.sqrt(2)), (rising, 1 / math.sqrt(2))):
        for measure in (FINAL, Measure(kind="at", round=4), Measure(kind="at", round=9)):
            found = number(run, measure, 4)
            assert isinstance(found, Number)
            assert found.swing == pytest.approx(expected)
    best = number(swinging, BEST, 4)
    assert isinstance(best, Number)
    assert best.swing == 0
    two = summary({0: Number(50.0, swing=3.0), 1: Number(51.0, swing=4.0)}, lower=False)
    assert two.swing == pytest.approx(math.sqrt(12.5))  # (9 + 16)/2
    assert swing([0.3]) == swing([]) == 0


def test_only_the_last_ten_evaluations_swing() -> None:
    """An early storm does not matter: eleven values, of which the first is far off."""
    found = number(record(accuracy=(0.0, *[0.9] * 10)), FINAL, 11)
    assert isinstance(found, Number)
    assert found.swing == 0


def test_losses_are_good_when_small_and_scaled_as_printed() -> None:
    run = record(series={"train_loss": (2.0, 0.5, 0.25, 0.75)})
    best = Measure(kind="best", metric="train_loss", scale=100)
    assert value(number(run, best, 4)) == 25.0
    assert value(number(run, Measure(kind="rounds_to", metric="train_loss", target=0.5), 4)) == 2.0


def test_rounds_beyond_the_settings_own_do_not_count() -> None:
    """The same run serves an exhibit with more rounds; this one has four, in which the best was 0.9 in round 3."""
    run = record(accuracy=(*CURVE[:4], 0.99, 0.99))
    assert value(number(run, BEST, 4)) == pytest.approx(90)
    assert value(number(run, FINAL, 4)) == pytest.approx(80)
    assert number(run, rounds_to(0.95), 4) == Number(4.0, beyond=True)


def test_a_target_that_is_not_reached_is_a_bound() -> None:
    assert number(record(accuracy=CURVE), rounds_to(0.95), 5) == Number(5.0, beyond=True)


def test_a_run_that_stopped_at_its_target_knows_no_best() -> None:
    stopped = record(accuracy=CURVE[:3], ended="until")
    assert value(number(stopped, rounds_to(0.9), 10)) == 3.0
    assert number(stopped, BEST, 10) == Unanswered("the run has 3 of 10 rounds")


def test_the_first_rounds_of_a_run_tell_that_it_needs_more() -> None:
    """Three of ten rounds: 0.5 is reached in round 2; 0.95 takes more than 3; nobody knows what is best."""
    begun = record(accuracy=CURVE[:3])
    assert value(number(begun, rounds_to(0.5), 10)) == 2
    assert number(begun, rounds_to(0.95), 10) == Number(3.0, True, note="3 of 10 rounds were run", short=True)
    assert isinstance(number(begun, BEST, 10), Unanswered)


def test_a_diverged_run_keeps_what_it_had_and_never_gets_further() -> None:
    run = record(accuracy=CURVE[:3], ended="diverged")
    assert value(number(run, rounds_to(0.5), 10)) == 2.0
    assert number(run, rounds_to(0.95), 10) == Number(10.0, beyond=True, note="diverged after round 3")
    assert number(run, BEST, 10) == Number(90.0, note="diverged after round 3")
    assert number(run, FINAL, 10) == Number(-math.inf, beyond=True, note="diverged after round 3")
    assert number(run, Measure(kind="at", round=7), 10) == number(run, FINAL, 10)
    assert value(number(run, Measure(kind="at", round=2), 10)) == 50.0


def test_a_run_that_diverges_after_the_rounds_that_count_is_like_any_other() -> None:
    run = record(accuracy=CURVE, ended="diverged")
    assert number(run, FINAL, 4) == number(record(accuracy=CURVE[:4]), FINAL, 4)
    assert value(number(run, FINAL, 4)) == 80.0


def test_a_last_value_that_is_not_finite_is_not_replaced_by_the_one_before() -> None:
    found = number(record(accuracy=(0.5, 0.6, None)), FINAL, 3)
    assert found == Number(-math.inf, beyond=True, note="accuracy not finite in round 3")
    assert value(number(record(accuracy=(0.5, 0.6, None)), BEST, 3)) == 60.0


def test_what_was_not_measured_is_not_made_up() -> None:
    assert number(record(accuracy=CURVE), Measure(kind="best", metric="train_loss"), 5) == Unanswered(
        "the record holds no train_loss"
    )
    sparse = record(accuracy=CURVE).model_copy(update={"series": {"accuracy": ((2, 4), (0.5, 0.8))}})
    assert number(sparse, Measure(kind="at", round=3), 5) == Unanswered("round 3 was not evaluated")
    last = number(sparse, FINAL, 5)
    assert isinstance(last, Number)
    assert (last.value, last.note) == (80.0, "in round 4, evaluated last")


def test_a_round_that_a_smaller_scale_does_not_have_is_its_last_and_says_so() -> None:
    found = number(record(accuracy=CURVE), Measure(kind="at", round=500), 5)
    assert isinstance(found, Number)
    assert (found.value, found.note) == (70.0, "in round 5, the last of this scale, for round 500")


def test_another_methods_best_is_the_target_of_the_same_seed() -> None:
    measure = Measure.model_validate({"kind": "rounds_to", "target": {"best_of": "fedavg"}})
    run = record(accuracy=CURVE)
    assert value(number(run, measure, 5, record("fedavg", (0.2, 0.5, 0.4, 0.3, 0.1)))) == 2.0
    assert number(run, measure, 5, record("fedavg", (0.95, 0, 0, 0, 0))) == Number(5.0, beyond=True)
    assert value(number(run, measure, 5, run)) == 3.0  # its own best, in round 3
    missing = "fedavg, which sets the target, "
    assert number(run, measure, 5) == Unanswered(f"{missing}was not run with this seed")
    assert number(run, measure, 5, record("fedavg", (0.9,))) == Unanswered(f"{missing}has no best accuracy")


def test_the_size_of_prediction_sets_is_that_at_the_coverage_asked_for() -> None:
    measure = Measure(kind="set_size", coverage=0.8)
    made = record("feddc", [0.5]).model_copy(update={"sets": ((0.9, 0.91, 3.5), (0.8, 0.79, 2.25))})
    assert number(made, measure, 1) == Number(2.25, note="coverage 79.0%")
    assert isinstance(number(record("feddc", [0.5]), measure, 1), Unanswered)
    gone = record("feddc", [0.5], ended="diverged")
    assert number(gone, measure, 9) == Number(math.inf, beyond=True, note="diverged after round 1")


def test_round_zero_reaches_no_target() -> None:
    run = record(accuracy=CURVE).model_copy(update={"series": {"accuracy": ((0, 1, 2), (0.99, 0.1, 0.2))}, "rounds": 2})
    assert number(run, rounds_to(0.9), 2) == Number(2.0, beyond=True)
    assert value(number(run, BEST, 2)) == 20.0


def test_a_running_mean_of_equal_values_reaches_them() -> None:
    assert first_round([(t, 0.98) for t in range(1, 9)], 0.98, lower=False, window=5) == 5
    assert first_round([(t, 0.1) for t in range(1, 9)], 0.1, lower=True, window=3) == 3


def test_seeds_that_all_have_numbers_give_mean_and_sample_deviation() -> None:
    """1, 2, 6: mean 3, deviations −2, −1, 3, so s² = 14/2 = 7."""
    found = summary({seed: Number(one, smoothed=one + 1) for seed, one in enumerate((1.0, 2.0, 6.0))}, lower=True)
    assert (found.value, found.n, found.failed, found.beyond, found.smoothed) == (3.0, 3, 0, False, 4.0)
    assert found.sd == pytest.approx(math.sqrt(7))
    assert str(found) == "3 ± 2.6"


def test_one_seed_has_no_spread() -> None:
    found = summary({0: Number(62.0)}, lower=True)
    assert (found.value, found.sd, str(found)) == (62.0, None, "62")


@pytest.mark.parametrize(
    ("reached", "failed", "value", "beyond"),
    [
        ((410.0, 550.0), 1, 550.0, False),  # the middle one of 410, 550, >600
        ((410.0,), 1, 505.0, True),  # between 410 and more than 600: more than 505
        ((410.0,), 2, 600.0, True),
        ((), 3, 600.0, True),
        ((410.0, 500.0, 510.0), 1, 505.0, False),
    ],
)
def test_seeds_that_did_not_get_there_make_it_the_median(
    reached: tuple[float, ...], failed: int, value: float, beyond: bool
) -> None:
    numbers = [*map(Number, reached), *[Number(600.0, beyond=True)] * failed]
    found = summary(dict(enumerate(numbers)), lower=True)
    assert (found.value, found.beyond, found.failed) == (value, beyond, failed)


@pytest.mark.parametrize(
    ("numbers", "value", "beyond"),
    [
        # 100, 200 and more than 130: the middle one is 200, or anything between 130 and 200.
        ((Number(100.0), Number(200.0), Number(130.0, beyond=True)), 130.0, True),
        ((Number(100.0), Number(120.0), Number(130.0, beyond=True)), 120.0, False),
        ((Number(900.0), Number(130.0, beyond=True), Number(1000.0, beyond=True)), 130.0, True),
        ((Number(100.0), Number(120.0), Number(125.0), Number(800.0), Number(130.0, beyond=True)), 125.0, False),
    ],
)
def test_beside_a_run_that_is_short_later_numbers_are_not_taken_for_the_median(
    numbers: tuple[Number, ...], value: float, beyond: bool
) -> None:
    found = summary(dict(enumerate(numbers)), lower=True)
    assert (found.value, found.beyond) == (value, beyond)
    assert found.failed == sum(one.beyond for one in numbers)


def test_most_seeds_diverged() -> None:
    numbers = {0: Number(80.0), 1: Number(-math.inf, True, note="d"), 2: Number(-math.inf, True, note="d")}
    found = summary(numbers, lower=False)
    assert (found.beyond, str(found), found.notes) == (True, "diverged", ("seed 1, 2: d",))
    found = summary({**numbers, 1: Number(90.0), 3: Number(85.0)}, lower=False)
    assert (found.value, found.beyond) == (82.5, False)  # 90, 85, 80, diverged: the middle of 85 and 80


@given(
    reached=st.lists(st.integers(1, 600).map(float), max_size=6),
    failed=st.integers(0, 4),
    later=st.integers(600, 10_000).map(float),
)
def test_how_much_worse_a_failed_seed_would_have_been_changes_no_number_that_is_known(
    reached: list[float], failed: int, later: float
) -> None:
    numbers = [*map(Number, reached), *[Number(600.0, beyond=True)] * failed]
    if not numbers:
        return
    known = summary(dict(enumerate(numbers)), lower=True)
    if failed and not known.beyond:
        truth = summary(dict(enumerate([*map(Number, reached), *[Number(later, beyond=True)] * failed])), lower=True)
        assert truth.value == known.value


@pytest.mark.parametrize(("value", "text"), [(62.0, "62"), (98.4, "98.40"), (0.2313, "0.231"), (6.5, "6.5")])
def test_numbers_are_shown_as_papers_print_them(value: float, text: str) -> None:
    assert shown(value) == text
