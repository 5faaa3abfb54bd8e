"""Partition rules: the laws that hold for all of them, and each rule's own promise."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.data.partitions import RULES, generator, partition, rule, rules
from fedkeel.data.partitions.rule import dirichlet
from fedkeel.data.partitions.sizes import dirichlet_sizes, equal_sizes, lognormal_sizes
from fedkeel.errors import InputError

SMALL = {"dirichlet_classwise": {"min_size": 1}}  # what a rule needs to work on a handful of samples
ALWAYS = {"iid", "quantity", "dirichlet", "dirichlet_fedmlb", "fedveca_case1"}  # need one sample per client, no more
TEN = np.arange(1000) % 10


def deal(rule: str, labels: np.ndarray = TEN, clients: int = 10, seed: int = 0, **params: Any) -> list[np.ndarray]:
    return list(partition(np.asarray(labels, dtype=np.int64), rule, clients, seed, params)[0])


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_rule_deals_every_sample_to_exactly_one_client(
    rule: str, labels: list[int], clients: int, seed: int
) -> None:
    """Disjoint, complete, sorted, nobody empty, the same again; or one sentence that names the parameter at fault."""
    params = SMALL.get(rule, {})
    try:
        parts = deal(rule, np.array(labels), clients, seed, **params)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith("partition.")
        assert clients > len(labels) or rule not in ALWAYS
        return
    assert len(parts) == clients
    assert all(part.size and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert same(parts, deal(rule, np.array(labels), clients, seed, **params))


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"fedveca_case1", "fedveca_case2", "fedveca_case3"}))
def test_another_seed_gives_another_partition(rule: str) -> None:
    assert not same(deal(rule, seed=0), deal(rule, seed=1))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_record_of_a_rule_is_plain_and_complete(rule: str) -> None:
    _, record = partition(TEN, rule, np.int64(5), 3, {})  # type: ignore[arg-type]
    assert json.loads(json.dumps(record)) == record
    assert set(record) == {"name", "clients", "seed"} | {param.name for param in RULES[rule].params}


def test_a_partition_stays_the_same_in_later_versions() -> None:
    """Published experiments name a seed: these indices, as first computed, may not change unnoticed."""
    assert [part.tolist() for part in deal("iid", np.zeros(6), 3, seed=7)] == [[3, 5], [2, 4], [0, 1]]
    assert [part.tolist() for part in deal("dirichlet", np.arange(12) % 3, 3, seed=8)] == [
        [2, 5, 8, 11],
        [4, 7, 9, 10],
        [0, 1, 3, 6],
    ]


def test_rules_are_listed_with_their_parameters() -> None:
    listed = {name: [param.name for param in params] for name, _, params in rules()}
    assert listed["dirichlet"] == ["alpha", "concentration", "sigma"]
    assert all(doc and len(doc) < 110 for _, doc, _ in rules())


# Sizes


def test_equal_sizes_differ_by_one_at_most() -> None:
    assert equal_sizes(11, 4).tolist() == [3, 3, 3, 2]


def test_lognormal_sizes_sum_up_and_follow_the_formula() -> None:
    """n_i = ⌊n s_i/Σs⌋ with s = exp(σ z); what rounding leaves goes to client 0."""
    sizes = lognormal_sizes(1000, 5, 0.3, generator(1))
    s = np.exp(0.3 * generator(1).standard_normal(5))
    floors = np.floor(1000 * s / s.sum())
    assert sizes.sum() == 1000
    assert sizes[1:].tolist() == floors[1:].tolist()
    assert sizes[0] == floors[0] + 1000 - floors.sum()


def test_dirichlet_sizes_keep_the_minimum_at_any_concentration() -> None:
    for alpha in (1e-300, 1e-3, 1.0, 1e300):
        sizes = dirichlet_sizes(100, 7, alpha, 3, generator(0))
        assert sizes.sum() == 100
        assert sizes.min() >= 3


def test_dirichlet_draws_are_distributions_at_any_concentration() -> None:
    for alpha in (1e-320, 1e-8, 1.0, 1e308):
        draws = dirichlet(generator(0), np.full(5, alpha), 20)
        assert np.allclose(draws.sum(axis=1), 1)
        assert (draws >= 0).all()


# Each rule's own promise


def test_iid_with_balanced_classes_gives_equal_counts() -> None:
    assert all((np.bincount(TEN[part]) == 20).all() for part in deal("iid", clients=5, balanced_classes=True))


def test_shards_hold_at_most_two_labels_when_shards_divide_the_classes() -> None:
    """1000 samples of 10 labels, 20 shards of 50: no shard crosses a label, so two shards have at most two labels."""
    parts = deal("shards")
    assert [part.size for part in parts] == [100] * 10
    assert max(len(np.unique(TEN[part])) for part in parts) == 2


def test_quantity_skew_is_larger_for_smaller_alpha() -> None:
    spread = [np.std([part.size for part in deal("quantity", alpha=alpha)]) for alpha in (0.1, 1.0, 100.0)]
    assert spread[0] > spread[1] > spread[2]


@pytest.mark.parametrize("alpha", [1e-12, 0.05, 1e6])
@pytest.mark.parametrize("concentration", ["alpha", "alpha_p"])
def test_dirichlet_keeps_sizes_and_ends_at_extreme_concentrations(alpha: float, concentration: str) -> None:
    parts = deal("dirichlet", clients=20, alpha=alpha, concentration=concentration)
    assert [part.size for part in parts] == [50] * 20


def test_dirichlet_tends_to_the_class_frequencies_for_large_alpha() -> None:
    """Dir(α·p) with α → ∞ is p itself: 3 of 4 samples have label 0 in every large client."""
    labels = (np.arange(8000) % 4 == 3).astype(np.int64)
    parts = deal("dirichlet", labels, 4, alpha=1e7, concentration="alpha_p")
    assert all(abs(labels[part].mean() - 0.25) < 0.04 for part in parts)


def test_alpha_p_is_less_alike_than_alpha() -> None:
    """Dir(α·p) over ten equal classes has a tenth of the concentration of Dir(α, …, α)."""
    classes = [
        np.mean([len(np.unique(TEN[p])) for p in deal("dirichlet", alpha=0.5, concentration=c)])
        for c in ("alpha", "alpha_p")
    ]
    assert classes[0] > classes[1]


def test_dirichlet_deals_sixty_thousand_samples_quickly() -> None:
    labels = np.arange(60_000) % 10
    start = time.perf_counter()
    deal("dirichlet", labels, 100, alpha=0.3, sigma=0.3)
    assert time.perf_counter() - start < 1.5


def test_classwise_cap_limits_sizes() -> None:
    """A capped client holds less than n/N = 100 before its last class, which adds at most 100."""
    assert max(part.size for part in deal("dirichlet_classwise", alpha=0.3)) <= 200
    assert min(part.size for part in deal("dirichlet_classwise", alpha=0.3, min_size=30)) >= 30


def test_classwise_two_each_leaves_nobody_below_two() -> None:
    sizes = [part.size for part in deal("dirichlet_classwise", alpha=0.01, cap=False, two_each=True, clients=50)]
    assert min(sizes) == 2
    assert max(sizes) > 40


def test_fedpvr_is_balanced_with_and_without_blocks() -> None:
    assert [part.size for part in deal("dirichlet_fedpvr", clients=50)] == [20] * 50
    assert [part.size for part in deal("dirichlet_fedpvr", clients=8, block=3)] == [125] * 8


def test_fedmlb_fills_the_first_client_from_its_favourite_class() -> None:
    """With α → 0 the first client's prior is one class, which has just the 100 samples that it needs."""
    first = deal("dirichlet_fedmlb", alpha=1e-6)[0]
    assert len(np.unique(TEN[first])) == 1


def test_fedveca_case_1_deals_in_turn() -> None:
    assert [part.tolist() for part in deal("fedveca_case1", np.zeros(7), 3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_fedveca_case_2_deals_by_label() -> None:
    labels = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert [part.tolist() for part in deal("fedveca_case2", labels, 4)] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_fedveca_case_2_shares_a_label_among_clients_beyond_ten() -> None:
    """12 clients: label 0 belongs to clients 0 and 10, in turn; label 1 to 1 and 11; the others to one client each."""
    labels = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    parts = deal("fedveca_case2", labels, 12)
    assert (parts[0].tolist(), parts[10].tolist()) == ([0, 2], [1])
    assert (parts[1].tolist(), parts[11].tolist()) == ([3], [4])
    assert parts[9].tolist() == [12]


def test_fedveca_case_3_with_five_clients() -> None:
    """M = 5, h = 3: labels 0–4 go to client i mod 3; of 5–9, l mod 2 = 0 to client 3 ({6, 8}), 1 to client 4."""
    parts = deal("fedveca_case3", clients=5)
    assert set(TEN[parts[3]]) == {6, 8}
    assert set(TEN[parts[4]]) == {5, 7, 9}
    for client in range(3):
        assert set(TEN[parts[client]]) == {0, 1, 2, 3, 4}
        assert (parts[client] % 3 == client).all()


def test_fedveca_case_3_beyond_ten_clients_and_with_one() -> None:
    """20 clients: targets 0–4 by i mod 5, 5–9 by label; clients t and t + 10 take turns."""
    parts = deal("fedveca_case3", clients=20)
    assert set(TEN[parts[5]]) == set(TEN[parts[15]]) == {5}
    assert parts[5].tolist()[:2] == [5, 25]
    assert parts[15].tolist()[:2] == [15, 35]
    assert len(deal("fedveca_case3", clients=1)[0]) == 1000


# What cannot be done


@pytest.mark.parametrize(
    ("rule", "clients", "params", "sentence"),
    [
        ("iid", 0, {}, "partition.clients must be a whole number above 0, got 0"),
        ("iid", 2.5, {}, "partition.clients must be a whole number above 0, got 2.5"),
        ("iid", 1001, {}, "partition.clients must be at most the number of training samples, 1000, got 1001"),
        ("iid", 3, {"sigma": -1}, "partition.sigma must be a number of at least 0, got -1"),
        ("iid", 900, {"sigma": 5.0}, "partition.sigma must be small enough"),
        ("iid", 3, {"balanced_classes": True}, "partition.clients must be a divisor of every class's sample count"),
        ("iid", 3, {"balanced_classes": 1}, "partition.balanced_classes must be true or false, got 1"),
        ("iid", 5, {"balanced_classes": True, "sigma": 0.1}, "partition.sigma must be 0 together"),
        ("dirichlet", 3, {"alpha": 0}, "partition.alpha must be a number above 0, got 0"),
        ("dirichlet", 3, {"alpha": float("nan")}, "partition.alpha must be a number above 0, got nan"),
        ("dirichlet", 3, {"alhpa": 1}, "no parameter of partition 'dirichlet' named 'alhpa'. Did you mean 'alpha'?"),
        ("dirichlet", 3, {"concentration": "p"}, "partition.concentration must be 'alpha' or 'alpha_p', got 'p'"),
        ("dirichlet_classwise", 200, {}, "partition.min_size must be at most 5"),
        ("dirichlet_classwise", 90, {"alpha": 1e-3}, "partition.alpha must be large enough"),
        ("quantity", 100, {"min_size": 11}, "partition.min_size must be at most 10"),
        ("shards", 100, {"shards": 11}, "partition.shards must be at most 10"),
        ("fedveca_case2", 500, {"alpha": 1}, "no parameter of partition 'fedveca_case2' named 'alpha'"),
        ("dirichlett", 3, {}, "no partition rule named 'dirichlett'. Did you mean 'dirichlet'?"),
    ],
)
def test_impossible_requests_are_refused_in_one_sentence(
    rule: str, clients: Any, params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        deal(rule, clients=clients, **params)
    assert sentence in str(caught.value)


def test_fedveca_refuses_empty_clients_and_other_labels() -> None:
    with pytest.raises(InputError, match="Client 2 would be empty"):
        deal("fedveca_case2", np.array([0, 1, 0, 1]), 3)
    with pytest.raises(InputError, match="labels 0 to 9, got 12"):
        deal("fedveca_case3", np.arange(13), 3)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, True])
def test_seeds_are_whole_numbers_of_63_bits(seed: Any) -> None:
    with pytest.raises(InputError, match=r"partition\.seed must be"):
        deal("iid", seed=seed)


def test_a_number_beyond_all_fractions_is_none() -> None:
    """10^400 is finite, but no number that anything could be computed with."""
    assert rule.number(10**300)
    assert not rule.number(10**400)
    assert not rule.number(float("inf"))
    assert not rule.number(True)
