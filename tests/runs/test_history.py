"""Rounds to target and the other questions, on a history small enough to answer by eye."""

import pytest

from fedkeel.comparison.histories import compare
from fedkeel.runs.history import WINDOW, History, Measured, RoundSummary, Traffic


def history(*accuracies: float) -> History:
    rounds = [RoundSummary(t, 0.1, 2, 4, 8, 0.5, 0.1, 100, 50, 0.5) for t in range(1, len(accuracies) + 1)]
    return History(rounds, [Measured(t, "global", "test", a, 1 - a) for t, a in enumerate(accuracies, start=1)])


def test_first_hit_and_smoothed_hit() -> None:
    """0.5, 0.9, 0.6, 0.9, 0.9: 0.9 is first hit in round 2; the mean of two reaches it in round 5 only."""
    h = history(0.5, 0.9, 0.6, 0.9, 0.9)
    assert h.rounds_to(0.9) == 2
    assert h.rounds_to(0.9, window=2) == 5
    assert h.rounds_to(0.95) is None


def test_best_is_the_earliest_of_equals() -> None:
    best = history(0.5, 0.9, 0.6, 0.9).best()
    assert best is not None
    assert best.round == 2


def test_traffic_up_to_a_round() -> None:
    assert history(0.1, 0.2, 0.3).bytes_to(2) == 300


def test_traffic_to_a_target() -> None:
    """A round sends 100 bytes down and 50 up; 0.9 is hit in round 2, by the mean of two in round 5, 0.95 never."""
    h = history(0.5, 0.9, 0.6, 0.9, 0.9)
    assert h.traffic_to(0.9) == Traffic(200, 100)
    assert h.traffic_to(0.9, window=2) == Traffic(500, 250)
    assert h.traffic_to(0.95) is None
    assert h.traffic().total == 750


def test_the_usual_window_is_five_evaluations() -> None:
    """0.9 · 5 is there after round 6; before, the 0.5 of round 1 spoils the mean."""
    assert WINDOW == 5
    assert history(0.5, *[0.9] * 6).rounds_to(0.9, window=WINDOW) == 6


def test_time_split_adds_up_what_rounds_kept() -> None:
    h = history(0.5, 0.9)
    h.times = {1: {"time.training": 1.0}, 2: {"time.training": 2.0, "time.commit": 0.5}}
    assert h.time_split() == {"training": 3.0, "commit": 0.5}
    assert h.values("time.commit") == {2: 0.5}
    assert h.names == []


def test_speed_ups_over_the_base() -> None:
    """The base reaches 0.9 in round 4, the other in round 2: 2.0×."""
    rows = compare({"base": history(0.1, 0.5, 0.8, 0.9), "fast": history(0.5, 0.9, 0.9, 0.9)}, "base", 0.9)
    assert [row.speed_up for row in rows] == [1.0, 2.0]
    assert rows[1].megabytes == pytest.approx(300e-6)


def test_a_base_that_never_arrives_gives_lower_bounds() -> None:
    """Its budget of 4 rounds stands in: at least 4/2."""
    rows = compare({"base": history(0.1, 0.2, 0.3, 0.4), "fast": history(0.5, 0.9, 0.9, 0.9)}, "base", 0.9)
    assert rows[0].rounds_to_target is None
    assert rows[0].speed_up is None
    assert (rows[1].speed_up, rows[1].at_least) == (2.0, True)
