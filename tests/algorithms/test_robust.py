"""Robust means: by hand, by their laws, and with uploads that are anything at all."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedkeel.algorithms import robust
from fedkeel.algorithms.robust import (
    RULES,
    buckets,
    centred_clipping,
    geometric_median,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)

Estimate = Callable[[Tensor], Tensor]


def drawn(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_name(name: str, f: int) -> Estimate:
    return lambda rows: RULES[name].estimate(rows, f, None)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_median_of_odd_and_even_numbers() -> None:
    assert median(column(5, 1, 3)).item() == 3
    assert median(column(10, 1, 3, 2)).item() == 2.5


def test_trimmed_mean_by_hand() -> None:
    """Without −100 and 100: (1 + 2 + 6)/3 = 3."""
    assert trimmed_mean(column(2, -100, 6, 100, 1), 1).item() == 3


@pytest.mark.parametrize("n", [*range(1, 18), 31, 32, 33, 100])
def test_every_coordinate_is_sorted(n: int) -> None:
    """A network of comparisons that sorts all zeros and ones sorts everything; up to 2⁸ of these are all there are."""
    few = n <= 8
    bits = torch.arange(2**n).unsqueeze(0) >> torch.arange(n).unsqueeze(1) & 1 if few else drawn(n, 500)
    assert torch.equal(torch.stack(robust._ordered(bits)), bits.sort(dim=0).values)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: two neighbours count. Squared distances: AB = AC = 1, BC = 2, AD = 8, BD = CD = 5, DE = 128,
    BE = CE = 181, AE = 200. So the sums are A 2, B 3, C 3, D 10, E 309: Krum takes A, and the mean of the best four is
    (A + B + C + D)/4 = (3/4, 3/4)."""
    E, D, B, A, C = (10, 10), (2, 2), (1, 0), (0, 0), (0, 1)
    points = torch.tensor([E, D, B, A, C], dtype=torch.float64)
    assert krum(points, 1).tolist() == [0, 0]
    assert multi_krum(points, 1).tolist() == [0.75, 0.75]


def test_krum_leaves_ties_to_the_earlier_upload() -> None:
    """Every corner of a square has the same two neighbours' distances, and the one far away none of them."""
    corners = torch.tensor([[50, 50], [1, 1], [0, 0], [1, 0], [0, 1]], dtype=torch.float64)
    assert krum(corners, 1).tolist() == [1, 1]


def test_centred_clipping_by_hand() -> None:
    """From the median 1 with radius 2: −1, 0 and 10 → 2 add up to 1, v = 1 + 1/3 = 4/3. From there −4/3, −1/3 and
    29/3 → 2 add up to 1/3: v = 4/3 + 1/9 = 13/9."""
    rows = column(0, 1, 11)
    assert centred_clipping(rows, 2.0, steps=1).item() == pytest.approx(4 / 3)
    assert centred_clipping(rows, 2.0, steps=2).item() == pytest.approx(13 / 9)


def test_the_radius_is_the_median_distance_unless_it_is_given() -> None:
    """From 1 the distances are 1, 0 and 10: their median is 1."""
    rows = column(0, 1, 11)
    assert centred_clipping(rows).item() == centred_clipping(rows, 1.0).item()


def test_buckets_by_hand() -> None:
    """In the order 4, 0, 2, 1, 3: (5 + 1)/2 = 3, (3 + 2)/2 = 2.5, and 4 alone."""
    assert buckets(column(1, 2, 3, 4, 5), (4, 0, 2, 1, 3), 2).flatten().tolist() == [3, 2.5, 4]


def test_geometric_median_by_hand() -> None:
    """Of three corners and a point in their triangle it is that point; of an equilateral triangle it is the centre; on
    a line it is the median."""
    inner = torch.tensor([[0, 0], [4, 0], [0, 4], [1, 1]], dtype=torch.float64)
    assert torch.allclose(geometric_median(inner), inner[3], atol=1e-4)
    corners = torch.tensor([[0, 0], [2, 0], [1, math.sqrt(3)]], dtype=torch.float64)
    assert torch.allclose(geometric_median(corners), corners.mean(dim=0), atol=1e-5)
    assert geometric_median(column(0, 1, 5, 6, 100)).item() == pytest.approx(5, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_geometric_median_is_what_scipy_finds(seed: int) -> None:
    rows = drawn(7, 3, seed)
    rows[0] *= 40

    def objective(z: Tensor) -> float:
        return float(torch.linalg.vector_norm(rows - z, dim=1).sum())

    found = minimize(lambda z: objective(torch.from_numpy(z)), rows.mean(dim=0).numpy(), method="BFGS", tol=1e-12)
    assert objective(geometric_median(rows)) == pytest.approx(found.fun, rel=1e-8)
    assert objective(rows.mean(dim=0)) > found.fun * 1.01


def test_geometric_median_of_models_that_hardly_differ() -> None:
    """In float32 a number near 100 is known to 4e-6, which a spread of 1e-3 stands out from."""
    rows = 100 + 1e-3 * drawn(9, 50)
    assert torch.allclose(geometric_median(rows.float()).double(), geometric_median(rows), rtol=0, atol=3e-5)


MEANS: dict[str, Estimate] = {
    "trimmed mean of all": lambda rows: trimmed_mean(rows, 0),
    "multi-krum of all": lambda rows: multi_krum(rows, 2, len(rows)),
    "clipping at infinity": lambda rows: centred_clipping(rows, math.inf),
    "one bucket": lambda rows: median(buckets(rows, range(len(rows)), len(rows))),
}


@pytest.mark.parametrize("name", MEANS)
def test_where_nothing_is_left_out_it_is_the_mean(name: str) -> None:
    rows = drawn(9, 40)
    assert torch.allclose(MEANS[name](rows), rows.mean(dim=0), atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    rows, estimate = drawn(9, 40), by_name(name, 2)
    other = rows[torch.randperm(9, generator=torch.Generator().manual_seed(1))]
    assert torch.allclose(estimate(rows), estimate(other), atol=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scale", [1e-6, -2.5, 1e6])
def test_moved_and_scaled_uploads_give_a_moved_and_scaled_result(name: str, scale: float) -> None:
    """With the numbers of gradients (small) and of a model (its place) alike: no constant of any rule has a unit."""
    rows, by, estimate = drawn(8, 40), drawn(1, 40, seed=3), by_name(name, 2)
    expected = scale * (estimate(rows) + by[0])
    assert torch.allclose(estimate(scale * (rows + by)), expected, atol=1e-7 * abs(scale))


@pytest.mark.parametrize("name", RULES)
def test_uploads_that_agree_are_the_result(name: str) -> None:
    one = drawn(1, 40)
    assert torch.allclose(by_name(name, 2)(one.repeat(9, 1)), one[0], atol=1e-14)


def spoilt(honest: Tensor, f: int, kind: str) -> Tensor:
    """The honest uploads with f hostile ones among them."""
    d, signs = honest.shape[1], torch.tensor([1.0, -1.0]).repeat(f)[:f].to(honest).unsqueeze(1)
    bad = {
        "far": 1e6 * drawn(f, d, seed=9).to(honest),
        "together": honest.new_full((f, d), 1e6),
        "largest": honest.new_full((f, d), torch.finfo(honest.dtype).max),
        "both ends": honest.new_full((f, d), 1e30) * signs,
    }[kind]
    return torch.cat([honest[:2], bad, honest[2:]])


KINDS = ["far", "together", "largest", "both ends"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum"])
def test_with_f_hostile_uploads_every_coordinate_stays_among_the_honest_ones(
    name: str, dtype: torch.dtype, kind: str
) -> None:
    """Without f values on each side, whatever is left of n ≥ 2f + 1 lies between two honest ones. An upload far away
    has at least n − f − 2 − (f − 1) = n − 2f − 1 ≥ 2 far neighbours among those that Krum counts."""
    f = 4
    honest = drawn(RULES[name].least(f) - f, 30).to(dtype)
    found = by_name(name, f)(spoilt(honest, f, kind))
    assert (found >= honest.min(dim=0).values).all()
    assert (found <= honest.max(dim=0).values).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_f_hostile_uploads_the_geometric_median_stays_near(dtype: torch.dtype, kind: str) -> None:
    """‖z − c‖ ≤ 2(n − f)/(n − 2f)·max ‖x_i − c‖ over honest x_i, for any c: with n = 9, f = 4 ten times."""
    honest = drawn(5, 30).to(dtype)
    c = honest.mean(dim=0)
    reach = torch.linalg.vector_norm(honest - c, dim=1).max()
    assert torch.linalg.vector_norm(geometric_median(spoilt(honest, 4, kind)) - c) <= 10 * reach


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_f_hostile_uploads_centred_clipping_stays_near(dtype: torch.dtype, kind: str) -> None:
    """The start is among honest coordinates, at most √d·R from their centre c where R is the largest honest distance
    from c. More than half of the distances are honest, so that the radius is at most R + √d·R, and three steps are at
    most three of it: (3 + 4√d)·R in all."""
    honest = drawn(5, 30).to(dtype)
    c = honest.mean(dim=0)
    reach = torch.linalg.vector_norm(honest - c, dim=1).max()
    found = centred_clipping(spoilt(honest, 4, kind))
    assert torch.linalg.vector_norm(found - c) <= (3 + 4 * math.sqrt(30)) * reach


@pytest.mark.parametrize("name", RULES)
def test_with_more_hostile_uploads_than_f_the_result_is_theirs(name: str) -> None:
    """f + 1 that agree, where n = 2f + 1; for Krum, whose n is 2f + 3, as many as count one another: n − f − 1."""
    f = 2
    n = RULES[name].least(f)
    bad = n - f - 1 if "krum" in name else f + 1
    honest = drawn(n - bad, 30)
    assert float(by_name(name, f)(spoilt(honest, bad, "together")).abs().min()) > 1e4


@pytest.mark.parametrize("name", RULES)
def test_buckets_with_a_hostile_upload_each_are_hostile_uploads(name: str) -> None:
    """Two hostile uploads spoil at most two buckets, and a rule that bears two is not moved far."""
    f = 2
    size = RULES[name].least(f) * 2
    honest = drawn(size - f, 30)
    rows = spoilt(honest, f, "far")
    found = by_name(name, f)(
        buckets(rows, torch.randperm(size, generator=torch.Generator().manual_seed(5)).tolist(), 2)
    )
    assert float(found.abs().max()) < 50


@pytest.mark.parametrize("name", RULES)
def test_blocks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, estimate = drawn(9, 1000), by_name(name, 2)
    whole = estimate(rows)
    monkeypatch.setattr(robust, "BLOCK", 7)
    assert torch.allclose(estimate(rows), whole, atol=1e-13)


@pytest.mark.parametrize("name", RULES)
def test_uploads_are_not_changed(name: str) -> None:
    rows = drawn(9, 40)
    before = rows.clone()
    by_name(name, 2)(rows)
    assert torch.equal(rows, before)
