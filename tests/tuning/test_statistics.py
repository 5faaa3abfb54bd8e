"""Intervals, tests, ranks and the critical difference against numbers worked out by hand or printed in books."""

from __future__ import annotations

import math

import pytest

from fedkeel.tuning.statistics import Interval, Stratified, critical_difference, holm, paired, ranks


def test_an_interval_of_three_values() -> None:
    """1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.303, so half the width is 4.303/√3 = 2.484."""
    found = Interval.of([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(2.484, abs=1e-3)
    assert math.isnan(Interval.of([1.0]).half)


def test_the_paired_t_test_sees_differences_and_not_levels() -> None:
    """Differences 1, 2, 3: t = 2/(1/√3) = 3.464 with 2 degrees of freedom, p = 0.0742."""
    found = paired([11.0, 52.0, 93.0], [10.0, 50.0, 90.0])
    assert found.t == pytest.approx(0.0742, abs=1e-4)
    assert math.isnan(found.wilcoxon)


def test_the_signed_rank_test_needs_six_pairs() -> None:
    """Six differences of one sign: the smallest p that there is, 2/2^6 = 0.03125."""
    assert paired([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0] * 6).wilcoxon == pytest.approx(0.03125)
    assert paired([1.0] * 6, [1.0] * 6).t == 1.0
    assert math.isnan(paired([1.0], [0.0]).t)


def test_holm() -> None:
    """0.01, 0.04, 0.03 of three: 0.01·3, then 0.03·2 = 0.06, then 0.04·1, which may not sink below 0.06."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan})
    assert found["a"] == pytest.approx(0.03)
    assert found["c"] == pytest.approx(0.06)
    assert found["b"] == pytest.approx(0.06)
    assert math.isnan(found["d"])


def test_ranks_are_shared_by_equals() -> None:
    """a wins, b and c are equal: 1, 2.5, 2.5; then c wins over a over b: 2, 3, 1. Means 1.5, 2.75, 1.75."""
    assert ranks([{"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 2.0, "b": 1.0, "c": 3.0}]) == {"a": 1.5, "b": 2.75, "c": 1.75}


def test_the_critical_difference_of_demsar() -> None:
    """Four classifiers on 14 data sets at 5 %: q = 2.569, CD = 2.569·√(4·5/(6·14)) = 1.25 (JMLR 7, page 11)."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_settings_count_alike_whatever_their_spread() -> None:
    """Differences 1, 3 and 0, 2: means 2 and 1, each with s²/n = 2/2 = 1. So the mean 1.5 has the error √(1 + 1)/2 and
    (1 + 1)²/(1 + 1) = 2 degrees of freedom, for which p = 1 − t/√(t² + 2) with t = 1.5·√2, and t_0.975 = 4.302653."""
    found = Stratified.of([[1.0, 3.0], [0.0, 2.0]])
    t = 1.5 * math.sqrt(2)
    assert found.lead.mean == 1.5
    assert found.lead.half == pytest.approx(4.302653 / math.sqrt(2), rel=1e-6)
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))


def test_one_setting_is_the_paired_t_test() -> None:
    differences = [0.1, 0.4, -0.2, 0.3, 0.2]
    found = Stratified.of([differences])
    assert found.p == pytest.approx(paired(differences, [0.0] * 5).t)
    assert (found.lead.mean, found.lead.half) == pytest.approx(
        (Interval.of(differences).mean, Interval.of(differences).half)
    )


def test_a_setting_of_many_seeds_does_not_outvote_one_of_few() -> None:
    """Ten times 0 and twice 1: the mean of the means is 1/2, not 1/6."""
    assert Stratified.of([[0.0] * 10, [1.0, 1.0]]).lead.mean == 0.5
    assert math.isnan(Stratified.of([[0.0] * 10, [1.0]]).p)
