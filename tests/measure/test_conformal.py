"""Prediction sets: scores by hand, thresholds, coverage within sampling error, and another library's numbers."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.errors import InputError
from fedkeel.measure.conformal import (
    LEVELS,
    PENALTIES,
    Array,
    Labels,
    conformal,
    federated_quantile,
    quantile,
    scores,
    tempered,
    true_of,
    tuned_penalty,
    tuned_rank,
    tuned_temperature,
)

ONE = np.array([[0.2, 0.5, 0.3]])
HALF = np.array([0.5])


def drawn(n: int, seed: int, classes: int = 6, sharpness: float = 1.5) -> tuple[Array, Labels]:
    """Probabilities, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(n, classes))
    powers = np.exp(logits)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return powers / powers.sum(axis=1, keepdims=True), labels


def test_lac_by_hand() -> None:
    """1 − π: 0.8, 0.5, 0.7."""
    assert scores(ONE, "lac") == pytest.approx(np.array([[0.8, 0.5, 0.7]]))


def test_aps_by_hand() -> None:
    """Order 1, 2, 0 with 0.5, 0.3, 0.2. Not randomised: 0.5, 0.8, 1. U = ½: 0.25, 0.5 + 0.15, 0.8 + 0.1."""
    assert scores(ONE, "aps") == pytest.approx(np.array([[1.0, 0.5, 0.8]]))
    assert scores(ONE, "aps", HALF) == pytest.approx(np.array([[0.9, 0.25, 0.65]]))


def test_raps_by_hand() -> None:
    """λ = 0.1 and k_reg = 1: rank 2 pays 0.1, rank 3 pays 0.2 on top of APS."""
    assert scores(ONE, "raps", None, 1, 0.1) == pytest.approx(np.array([[1.2, 0.5, 0.9]]))
    assert scores(ONE, "raps", HALF, 1, 0.1) == pytest.approx(np.array([[1.1, 0.25, 0.75]]))


def test_equal_probabilities_are_ranked_by_number() -> None:
    """¼ each: cumulative ¼, ½, ¾, 1 in the order of the labels."""
    assert scores(np.full((1, 4), 0.25), "aps") == pytest.approx(np.array([[0.25, 0.5, 0.75, 1.0]]))


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(0.1, 9.0), (0.2, 8.0), (0.5, 5.0), (0.7, 3.0), (0.9, 1.0), (0.15, 9.0), (0.05, math.inf), (0.0999, math.inf)],
)
def test_quantile_of_nine(alpha: float, expected: float) -> None:
    """Of 1 … 9 the ⌈10(1 − α)⌉-th: also for 0.7, where 10·(1 − 0.7) is above 3 in floating point; the 10th is ∞."""
    assert quantile(np.random.default_rng(0).permutation(np.arange(1.0, 10.0)), alpha) == expected


def test_federated_quantile_by_hand() -> None:
    """Clients {1, 2, 3} and {10}: N = 4, K = 2. α = ½: the ⌈6/2⌉ = 3rd, 3. α = 0.4: the 4th, 10. α = 0.1: the 6th, ∞.

    With equal shares a score of the first weighs ½/4 and the other's ½/2: 1, 2, 3 have 3/8 and 10 makes it 5/8.
    """
    parts = [np.array([1.0, 2.0, 3.0]), np.array([10.0])]
    assert federated_quantile(parts, 0.5) == 3
    assert federated_quantile(parts, 0.4) == 10
    assert federated_quantile(parts, 0.1) == math.inf
    assert federated_quantile(parts, 0.63, [1, 1]) == 3
    assert federated_quantile(parts, 0.5, [1, 1]) == 10


@pytest.mark.parametrize("alpha", LEVELS)
def test_federated_quantile_is_a_rank_of_all_scores(alpha: float) -> None:
    """With the default shares: the ⌈(N + K)(1 − α)⌉-th; of one client the ordinary threshold."""
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=n) for n in (7, 30, 12)]
    rank = math.ceil(52 * round(1 - alpha, 2))
    together = np.sort(np.concatenate(parts))
    assert federated_quantile(parts, alpha) == (together[rank - 1] if rank <= 49 else math.inf)
    assert federated_quantile(parts[:1], alpha) == quantile(parts[0], alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_coverage_is_within_sampling_error(method: Any, alpha: float) -> None:
    """Given the calibration, coverage is Beta(k, n + 1 − k) with k = ⌈(n + 1)(1 − α)⌉; then m samples are counted.

    So the mean over R sets of data has mean k/(n + 1) and variance (v + (p(1 − p) − v)/m)/R, v that of Beta.
    """
    runs, size = 60, 400
    found = [conformal(*drawn(size, seed), method=method, alpha=alpha, seed=seed, levels=()) for seed in range(runs)]
    n, m = found[0].samples["calibration"], found[0].samples["evaluation"]
    k = math.ceil(round((n + 1) * (1 - alpha), 9))
    p = k / (n + 1)
    v = k * (n + 1 - k) / ((n + 1) ** 2 * (n + 2))
    error = math.sqrt((v + (p * (1 - p) - v) / m) / runs)
    assert abs(np.mean([one.coverage for one in found]) - p) < 4.5 * error


@pytest.mark.parametrize("by", ["federated", "client"])
def test_clients_that_are_not_alike_are_covered(by: Any) -> None:
    """Sharp and vague clients: federated covers the mixture, a threshold of its own covers every client."""
    alpha, runs = 0.2, 60
    covered: dict[int, list[float]] = {0: [], 1: []}
    mixture = []
    for seed in range(runs):
        one, two = drawn(100, 2 * seed, sharpness=4.0), drawn(200, 2 * seed + 1, sharpness=0.5)
        pi, y = np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]])
        whose = np.repeat([0, 1], [100, 200])
        found = conformal(pi, y, method="aps", alpha=alpha, clients=whose, by=by, levels=(), seed=seed)
        mixture.append(found.coverage)
        for client, values in covered.items():
            values.append(found.by_client[client].coverage)
    error = math.sqrt(0.25 * (1 / 50 + 1 / 50) / runs)
    assert np.mean(mixture) > 1 - alpha - 4 * error
    if by == "client":
        assert min(np.mean(values) for values in covered.values()) > 1 - alpha - 4 * error


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_sets_grow_with_coverage(method: Any, seed: int) -> None:
    """A smaller α never drops a label, everything else being equal."""
    pi, y = drawn(150, seed)
    u = np.random.default_rng(seed).random(150)
    found = scores(pi, method, u, 2, 0.1)
    limits = [quantile(true_of(found, y), alpha) for alpha in sorted(LEVELS, reverse=True)]
    sets = [found <= limit for limit in limits]
    assert all((small <= large).all() for small, large in pairwise(sets))


@pytest.mark.parametrize("seed", range(5))
def test_sets_hold_the_likeliest_labels(seed: int) -> None:
    """APS and RAPS sets are the likeliest labels; at one threshold U only adds to them, λ only removes."""
    pi, _ = drawn(100, seed)
    u = np.random.default_rng(seed).random(100)
    for q in (0.3, 0.7, 0.95):
        plain, mixed = scores(pi, "aps") <= q, scores(pi, "aps", u) <= q
        penal = scores(pi, "raps", u, 1, 0.2) <= q
        assert (plain <= mixed).all()
        assert (penal <= mixed).all()
        for inside in (plain, mixed, penal):
            least = np.where(inside, pi, np.inf).min(axis=1)
            assert (np.where(inside, 0.0, pi).max(axis=1) <= least).all()


def test_raps_without_penalty_is_aps() -> None:
    pi, _ = drawn(50, 0)
    assert (scores(pi, "raps", None, 2, 0.0) == scores(pi, "aps")).all()


def test_tuned_rank_by_hand() -> None:
    """True ranks 1, 1, 2, 3: α = 0.4 asks for the ⌈5·0.6⌉ = 3rd, 2; α = 0.1 for the 5th, which is all C = 3 labels."""
    pi = np.tile([0.5, 0.3, 0.2], (4, 1))
    labels = np.array([0, 0, 1, 2])
    assert tuned_rank(pi, labels, 0.4) == 2
    assert tuned_rank(pi, labels, 0.1) == 3


def test_tuned_penalty_is_the_smallest_of_equals() -> None:
    pi = np.tile([0.9, 0.06, 0.04], (20, 1))
    assert tuned_penalty(pi, np.zeros(20, dtype=np.int64), 0.1, 1) == PENALTIES[0]


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_temperature_is_found(true: float) -> None:
    """Labels from π, probabilities shown at temperature T: it takes 1/T to undo that."""
    pi, y = drawn(20_000, 3)
    assert tuned_temperature(tempered(pi, true), y) == pytest.approx(1 / true, rel=0.05)


def test_another_library_gives_the_same_sets() -> None:
    table = json.loads((Path(__file__).parent / "torchcp.json").read_text(encoding="utf-8"))
    pi, labels, new = (np.array(table[name]) for name in ("calibration", "labels", "evaluation"))
    for case in table["cases"]:
        rule = (case["method"], None, case["k_reg"], case["penalty"])
        limit = quantile(true_of(scores(pi, *rule), labels), case["alpha"])
        assert limit == pytest.approx(case["threshold"], abs=1e-7)
        assert ["".join(map(str, row)) for row in (scores(new, *rule) <= limit).astype(int)] == case["sets"]


def test_the_same_seed_gives_the_same_result() -> None:
    pi, y = drawn(200, 0)
    assert conformal(pi, y, seed=3) == conformal(pi, y, seed=3)
    assert conformal(pi, y, seed=3) != conformal(pi, y, seed=4)


def test_a_result_speaks_for_itself() -> None:
    pi, y = drawn(300, 0)
    found = conformal(pi, y, clients=np.arange(300) % 3, by="client", temperature=True)
    assert sum(found.samples.values()) == 300
    assert sum(one.samples for one in found.by_class.values()) == found.samples["evaluation"]
    assert [level.alpha for level in found.curve] == list(LEVELS)
    assert "RAPS, randomised; calibrated client by client" in repr(found)
    assert "asked for: 90.0%" in repr(found)
    json.dumps(found.as_dict(), allow_nan=False)


def test_too_few_calibration_samples_give_all_labels() -> None:
    """Five samples cannot promise 95 %: ⌈6·0.95⌉ = 6 > 5."""
    pi, y = drawn(10, 0)
    found = conformal(pi, y, method="lac", alpha=0.05)
    assert (found.coverage, found.size, found.at.threshold) == (1.0, 6.0, math.inf)
    assert found.as_dict()["at"]["threshold"] is None


PI, Y = drawn(40, 0)


def spoilt(value: float) -> Array:
    pi = PI.copy()
    pi[7, 2] = value
    return pi


@pytest.mark.parametrize(
    ("probabilities", "labels", "options", "said"),
    [
        (spoilt(math.nan), Y, {}, "NaN or infinity in sample 7"),
        (spoilt(0.9999), Y, {}, "Logits become probabilities by a softmax"),
        (spoilt(-0.1), Y, {}, "at least 0 and 1 in sum"),
        (PI[0], Y, {}, "an array"),
        (PI[:0], Y[:0], {}, "with samples"),
        (PI, Y[1:], {}, "40 whole numbers"),
        (PI, Y + 0.5, {}, "whole numbers"),
        (PI, Y + 3, {}, "from 0 to 5"),
        ("many", Y, {}, "an array of numbers"),
        (PI, Y, {"alpha": 0}, "alpha must be a share above 0 and below 1"),
        (PI, Y, {"alpha": 1.0}, "alpha must be"),
        (PI, Y, {"alpha": math.nan}, "alpha must be"),
        (PI, Y, {"levels": [0.1, 2]}, "levels must be"),
        (PI, Y, {"calibration": 1.5}, "calibration must be"),
        (PI, Y, {"method": "magic"}, "Known: lac, aps, raps"),
        (PI, Y, {"method": []}, "Known: lac, aps, raps"),
        (PI, Y, {"by": "client"}, "clients must be given"),
        (PI, Y, {"clients": [1]}, "40 whole numbers"),
        (PI, Y, {"clients": np.arange(40), "by": "client"}, "at least 3 samples of every client"),
        (PI[:2], Y[:2], {}, "at least 3 samples, got 2"),
        (PI, Y, {"seed": -1}, "seed must be"),
    ],
)
def test_nonsense_is_refused(probabilities: Any, labels: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        conformal(probabilities, labels, **options)


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one calibration sample"):
        quantile(np.array([]), 0.1)
    with pytest.raises(InputError, match="of every client"):
        federated_quantile([np.array([1.0]), np.array([])], 0.1)
