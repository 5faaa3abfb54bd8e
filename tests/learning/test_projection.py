"""The projection of GradMA: the authors' own cases, and the conditions that define a projection onto a cone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from fedkeel.learning.projection import bounds_of, dots, inner, project, project_few, projected, rounding
from fedkeel.learning.task import Task
from tests.algorithms.quadratic import Point

CASES = Path(__file__).parents[1] / "golden" / "gradma_qp_cases.npz"
DOUBLE = torch.float64


def tensor(*values: object) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


@st.composite
def problems(draw: st.DrawFn, most_rows: int = 7) -> tuple[Tensor, Tensor]:
    """Small whole numbers: parallel, opposite, dependent and zero rows are common, cones often collapse to a line."""
    d, m = draw(st.integers(1, 6)), draw(st.integers(1, most_rows))
    numbers = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
    g = draw(numbers.filter(any))
    rows = draw(st.lists(numbers, min_size=m, max_size=m))
    return torch.tensor(g, dtype=DOUBLE), torch.tensor(rows, dtype=DOUBLE)


def few(g: Tensor, G: Tensor, rho: float = 0.0) -> Tensor:
    return project_few(torch.cat([g.unsqueeze(0), G]).unsqueeze(0), rho)[0][0]


def check_conditions(g: Tensor, G: Tensor, u: Tensor) -> None:
    """G u ≥ 0;  u − g is a nonnegative combination of the rows, found here by other means;  ⟨u, u − g⟩ = 0."""
    lengths = torch.linalg.vector_norm(G, dim=1).clamp(min=1)
    size = float(torch.linalg.vector_norm(g))
    assert float((G @ u / lengths).min()) >= -1e-10 * size
    assert nnls(G.T.numpy(), (u - g).numpy(), maxiter=1000)[1] <= 1e-10 * size
    assert abs(float(u @ (u - g))) <= 1e-10 * size**2
    assert float(torch.linalg.vector_norm(u)) <= size * (1 + 1e-12)


@pytest.mark.parametrize("k", range(20))
def test_the_authors_cases(k: int) -> None:
    """Their solver with its tolerances tightened to 1e-13 is within 3e-12 of the exact solution."""
    with np.load(CASES, allow_pickle=False) as cases:
        g, G, rho = torch.from_numpy(cases[f"g_{k}"]), torch.from_numpy(cases[f"G_{k}"]), float(cases["rho"][k])
        expected = cases[f"out_tight_{k}"]
    assert np.abs(project(g, G, rho).numpy() - expected).max() <= 5e-12
    if len(G) <= 3:
        assert np.abs(few(g, G, rho).numpy() - expected).max() <= 5e-12


def test_by_hand() -> None:
    """g = (1, −2) against the row (0, 5): the second coordinate may not be negative, u = (1, 0).

    With the row (1, 1) as well, u must also satisfy u_1 + u_2 ≥ 0, which (1, 0) does. With (−1, 1) instead, u_2 ≥ u_1:
    g has ⟨(−1, 1), g⟩ = −3, so u = g + 3/2 (−1, 1) = (−1/2, −1/2), which breaks u_2 ≥ 0; on both edges u = 0.
    """
    g = tensor(1, -2)
    for rows, u in (([[0, 5]], [1, 0]), ([[0, 5], [1, 1]], [1, 0]), ([[0, 5], [-1, 1]], [0, 0])):
        G = tensor(*rows)
        assert project(g, G).tolist() == pytest.approx(u, abs=1e-15)
        assert few(g, G).tolist() == pytest.approx(u, abs=1e-15)


def test_margin_by_hand() -> None:
    """‖g‖ = 5 and the row (0, 2): u_2·2 ≥ ρ·5·2, so ρ = 0.2 lifts u_2 from −3 to 1; ρ = −0.6 leaves it where it is."""
    g, G = tensor(4, -3), tensor([0, 2])
    for rho, u in ((0.2, [4, 1]), (-0.5, [4, -2.5]), (-0.6, [4, -3]), (-1.0, [4, -3])):
        assert project(g, G, rho).tolist() == pytest.approx(u)
        assert few(g, G, rho).tolist() == pytest.approx(u)


def test_an_impossible_margin_is_dropped() -> None:
    """Rows (1, 0) and (−1, 0) leave u_1 = 0 and no margin."""
    g, G = tensor(1, 2), tensor([1, 0], [-1, 0])
    assert project(g, G, 0.1).tolist() == pytest.approx([0, 2], abs=1e-15)
    assert few(g, G, 0.1).tolist() == pytest.approx([0, 2], abs=1e-15)


@pytest.mark.parametrize("rho", [0.1, 0.3])
def test_a_margin_with_more_rows_than_coordinates(rho: float) -> None:
    """Rows (1, 0), (3, 4)/5, (0, 1) in the plane and g = (−1, 0): u_1 ≥ ρ, u_2 ≥ ρ, and then the third row holds too,
    as 3/5 ρ + 4/5 ρ > ρ. So u = (ρ, ρ), though three rows in two dimensions depend on each other.
    """
    G = tensor([1, 0], [0.6, 0.8], [0, 1])
    assert project(tensor(-1, 0), G, rho).tolist() == pytest.approx([rho, rho])
    assert few(tensor(-1, 0), G, rho).tolist() == pytest.approx([rho, rho])


@settings(max_examples=150, deadline=None)
@given(problems())
def test_conditions(problem: tuple[Tensor, Tensor]) -> None:
    g, G = problem
    check_conditions(g, G, project(g, G))


@settings(max_examples=150, deadline=None)
@given(problems(most_rows=3))
def test_conditions_of_the_closed_form_and_agreement(problem: tuple[Tensor, Tensor]) -> None:
    g, G = problem
    check_conditions(g, G, few(g, G))
    by_least_squares = g + G.T @ torch.from_numpy(nnls(G.T.numpy(), -g.numpy())[0])
    assert torch.allclose(few(g, G), by_least_squares, rtol=0, atol=1e-10)
    assert torch.allclose(few(g, G), project(g, G), rtol=0, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(problems(most_rows=3), st.lists(st.integers(-12, 12), min_size=3, max_size=3), st.integers(0, 2))
def test_length_order_and_repetition_of_rows_do_not_matter(
    problem: tuple[Tensor, Tensor], exponents: list[int], again: int
) -> None:
    g, G = problem
    scales = 10.0 ** torch.tensor(exponents[: len(G)], dtype=DOUBLE).unsqueeze(1)
    u = project(g, G)
    others = [scales * G, G.flip(0), torch.cat([G, G[again % len(G)].unsqueeze(0)]), torch.cat([G, 0 * G[:1]])]
    for other in others:
        assert torch.allclose(project(g, other), u, rtol=0, atol=1e-10)
        if len(other) <= 3:
            assert torch.allclose(few(g, other), u, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 60))
def test_conditions_with_many_rows(seed: int, m: int, d: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(m, d, generator=rng, dtype=DOUBLE) + torch.randn(d, generator=rng, dtype=DOUBLE)
    g = torch.randn(d, generator=rng, dtype=DOUBLE) - G.mean(dim=0)
    check_conditions(g, G, project(g, G))


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 1e-9, 1e-12])
def test_nearly_parallel_and_opposite_rows(apart: float) -> None:
    """Nothing tells such rows apart in their Gram matrix, where 1 − cos is of the order apart²."""
    rng = torch.Generator().manual_seed(3)
    for _ in range(20):
        a, g = torch.randn(2, 30, generator=rng, dtype=DOUBLE)
        signs = torch.tensor([1, 1, -1], dtype=DOUBLE).unsqueeze(1)
        G = signs * a + apart * torch.randn(3, 30, generator=rng, dtype=DOUBLE)
        for u in (project(g, G), few(g, G)):
            assert float((G @ u).min()) >= -1e-8 * float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(g))
            assert float(torch.linalg.vector_norm(u)) <= float(torch.linalg.vector_norm(g)) * (1 + 1e-6)


def test_rounding_of_single_precision_is_no_direction() -> None:
    """x_τ − x = −η a but for the rounding of x_τ: u is g without its part along a, not without a random part too."""
    rng = torch.Generator().manual_seed(0)
    a, g, x = torch.randn(3, 100, generator=rng)
    anchor = (x - 0.3 * a) - x
    assert not torch.equal(anchor, -0.3 * a)
    along = (g @ a) / (a @ a) * a
    assert torch.allclose(few(g, torch.stack([a, a, anchor])), g - along, atol=2e-5)


def test_what_violates_nothing_is_returned_as_it_is() -> None:
    g, G = tensor(0.1, 0.7), tensor([1, 0], [0.3, 0.2], [0, 0])
    assert torch.equal(project(g, G), g)
    assert torch.equal(few(g, G), g)
    assert torch.equal(project(g, []), g)
    assert torch.equal(project(0 * g, -G), 0 * g)
    assert torch.equal(few(0 * g, -G), 0 * g)


def test_what_is_not_finite_stays_visible() -> None:
    """The authors' program falls back on the unprojected direction in silence."""
    g, nan = tensor(1, -1), float("nan")
    for vector, row in ((g, tensor(nan, 1)), (tensor(nan, 1), g)):
        assert project(vector, [row]).isnan().any()
        assert few(vector, row.unsqueeze(0)).isnan().any()


def test_one_problem_for_every_tensor() -> None:
    """Two tensors of one number each: (1, −1) against the row (−1, −1/2) has the inner product −1/2 as a whole and is
    projected to (1, −1) + (1/2)/(5/4)·(−1, −1/2) = (0.6, −1.2); tensor by tensor only the first violates it: (0, −1).
    """
    g, row = tensor(1, -1), tensor(-1, -0.5)
    layout = Task(Point()).layout
    for bounds, u in ((bounds_of(layout, "flat"), [0.6, -1.2]), (bounds_of(layout, "tensor"), [0, -1])):
        assert project(g, [row], bounds=bounds).tolist() == pytest.approx(u)
        assert project_few(torch.stack([g, row])[None], bounds=bounds)[0][0].tolist() == pytest.approx(u)


def test_inner_products_add_up_over_pieces() -> None:
    """d = 150 000 is more than one piece; good to half of ``rounding``, here where all products add up."""
    a, b, c = torch.randn(3, 150_000, generator=torch.Generator().manual_seed(0)).abs()
    for dtype, good in ((torch.float32, rounding(torch.float32) / 2), (torch.float64, 1e-13)):
        rows = [v.to(dtype) for v in (a, b, c)]
        true = torch.stack(rows).double() @ torch.stack(rows).double().T
        scale = float(true.diagonal().max())
        assert float((inner(rows, rows[:2]) - true[:, :2]).abs().max()) <= good * scale
        assert float((dots(rows, rows[1]) - true[1]).abs().max()) <= good * scale


def test_active_conditions_are_counted() -> None:
    """Of e_1, e_2 and e_3 the vector (−1, 2, −3) violates two; in blocks of one and two coordinates likewise."""
    g, G = tensor(-1, 2, -3), list(torch.eye(3, dtype=torch.float64))
    for bounds in (None, torch.tensor([0, 1, 3])):
        u, active = projected(g, G, bounds=bounds)
        assert (u.tolist(), active) == (pytest.approx([0, 2, 0], abs=1e-15), 2)
    assert projected(g.abs(), G)[1] == 0
