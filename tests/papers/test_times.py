"""How long runs take: by their likes where there are records, by arithmetic elsewhere."""

from __future__ import annotations

import pytest

from fedkeel.papers.format import papers
from fedkeel.papers.plan import planned
from fedkeel.papers.times import CALCULATED, LEAST, MEASURED, Clock, work
from tests.papers.test_format import record


def test_the_arithmetic_of_a_round_is_that_of_its_samples() -> None:
    """2NN: 784·200 + 200·200 + 200·10 = 198,800 products; 15 % of 60,000 samples five times, then 10,000 to test on."""
    run = planned(papers()["feddc"], "mnist-d2-15", "fedavg")
    assert work(run) == pytest.approx(198_800 * (6 * 0.15 * 60_000 * 5 + 2 * 10_000))


def test_records_of_the_same_method_and_setting_are_believed_first() -> None:
    run = planned(papers()["feddc"], "mnist-d2-15", "fedavg")
    clock = Clock()
    guess = clock.estimate(run)
    assert guess.how == CALCULATED
    assert guess.seconds >= LEAST * 600
    names = {"paper": "feddc", "setting": "mnist-d2-15", "method": "fedavg", "scale": "full"}
    for seconds in (2.0, 4.0, 60.0):
        clock.learn(record(**names, rounds=2, seconds=seconds))
    known = clock.estimate(run, done=100)
    assert (known.seconds, known.how) == (500 * 2.0, MEASURED)  # the median of 1, 2 and 30 seconds a round
