"""FedVeca by hand, on F_0 = ½(w − 1)² and F_1 = 2w² with p = ½ each.

∇F(w) = ½(w − 1) + ½·4w = 2.5w − 0.5. From w_0 = 0.5 with η = 0.1 and τ = 2:

round 0   client 0: q = −0.5, −0.45, so y = 0.595;      client 1: q = 2, 1.2, so y = 0.18;      w_1 = 0.3875
round 1   client 0: q = −0.6125, −0.55125, y = 0.503875; client 1: q = 1.55, 0.93, y = 0.1395;  w_2 = 0.3216875
          γ = ∇F(0.5)² = 0.75², β = (1, 4), δ = (1.16375², 2.48²)/(2γ), A = 0.1·(1·δ_0, 16·δ_1)
          client 0 is the calmest: 1/(1 − 0.95) = 20 steps; client 1 gets ⌊1.013…⌋ = 1, raised to 2
round 2   y_0 − 1 = (w − 1)·0.9²⁰,  y_1 = w·0.6²,  w_3 = w − τ̄/2·((w − y_0)/20 + (w − y_1)/2) with τ̄ = 11
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedkeel.algorithms.fedveca import FedVeca, step_quotient, usable
from fedkeel.algorithms.variants.fedveca import FedVecaVariant
from fedkeel.errors import InputError
from tests.algorithms.least_squares import record_of_round, simulation, states

TWO = [[(1.0, 1)], [(2.0, 0)]]
DELTA = (1.16375**2 / 1.125, 2.48**2 / 1.125)


def third_model(tau_bar: float) -> float:
    w = 0.3216875
    y_0, y_1 = 1 + (w - 1) * 0.9**20, w * 0.6**2
    return w - tau_bar / 2 * ((w - y_0) / 20 + (w - y_1) / 2)


@pytest.mark.parametrize("stacked", [False, True])
def test_three_rounds_by_hand(stacked: bool) -> None:
    """The numbers of the module's docstring; clients of 20 and 2 steps must not disturb each other when stacked."""
    found = [s.server for s in states(simulation(FedVeca(tau_0=2), TWO, [0.5], stacked=stacked), 3)]
    assert [float(s.w) for s in found[1:3]] == pytest.approx([0.3875, 0.3216875], rel=1e-12)
    assert [s.tau.tolist() for s in found] == [[2, 2], [2, 2], [20, 2], found[3].tau.tolist()]
    assert found[2].beta.tolist() == pytest.approx([1, 4])
    assert found[2].delta.tolist() == pytest.approx(DELTA)
    assert found[2].A.tolist() == pytest.approx([0.1 * DELTA[0], 1.6 * DELTA[1]])
    assert found[3].tau_bar == pytest.approx(11)
    assert float(found[3].w) == pytest.approx(third_model(11), rel=1e-12)


def test_L_is_the_curvature_of_the_global_loss_from_the_third_round_on() -> None:
    """F has curvature 2.5, so every quotient is 2.5; premise 0.1·11·2.5, and the bound (14) follows from A and τ."""
    found = [s.server for s in states(simulation(FedVeca(tau_0=2), TWO, [0.5]), 3)]
    assert [s.L for s in found] == pytest.approx([math.nan, math.nan, math.nan, 2.5], nan_ok=True)
    assert found[3].premise == pytest.approx(2.75)
    inner = sum(0.5 * (tau * (5 + A) - A) for tau, A in zip((20, 2), found[3].A.tolist(), strict=True))
    assert found[3].bound == pytest.approx(1.1 * (0.025 * inner - 1))
    assert math.isnan(found[2].bound)


def test_L0_starts_L_from_the_first_gradient() -> None:
    """‖∇F(w_0)‖/‖w_0‖ = 0.75/0.5 = 1.5, known in round 1; from a zero model it cannot be taken and is skipped."""
    found = [states(simulation(FedVeca(tau_0=2, L0=True), TWO, [w]), 2)[2].server.L for w in (0.5, 0.0)]
    assert found == pytest.approx([1.5, math.nan], nan_ok=True)


def test_printed_mean_of_steps_is_taken_before_they_are_raised() -> None:
    """⌊·⌋ gives 20 and 1, so τ̄ = 10.5 although client 1 takes 2 steps."""
    last = states(simulation(FedVeca(tau_0=2, tau_bar="printed"), TWO, [0.5]), 3)[3].server
    assert last.tau_bar == pytest.approx(10.5)
    assert float(last.w) == pytest.approx(third_model(10.5), rel=1e-12)


def test_current_gradient_norm_is_this_rounds() -> None:
    """γ = ∇F(w_1)² = (2.5·0.3875 − 0.5)² = 0.46875² in round 1; round 0 has its γ too, so τ moves a round earlier."""
    found = [s.server for s in states(simulation(FedVeca(tau_0=2, grad_norm="current"), TWO, [0.5]), 2)]
    assert found[1].delta.tolist() == pytest.approx([0.95**2 / 1.125, 3.2**2 / 1.125])
    assert found[1].tau.tolist() == [20, 2]
    assert found[2].delta[1].item() == pytest.approx(2.48**2 / (2 * 0.46875**2))


def test_normalised_delta_divides_once_more_by_the_terms() -> None:
    found = states(simulation(FedVeca(tau_0=2, delta="normalised"), TWO, [0.5]), 2)[2].server
    assert found.delta.tolist() == pytest.approx([DELTA[0] / 2, DELTA[1] / 2])


def test_delta_is_the_largest_over_the_steps() -> None:
    """F = ½w² from 1 with η = 1.5: gradients 1, −½, ¼, −⅛ with sums 1, ½, ¾, ⅝, and the largest of ½²/2, ¾²/3, ⅝²/4
    is the middle one; γ = 1 in the first round.
    """
    run = simulation(FedVeca(tau_0=4, grad_norm="current"), [[(1.0, 0)]], [1.0], lr=1.5)
    assert states(run, 1)[1].server.delta.item() == pytest.approx(0.75**2 / 3)


@pytest.mark.parametrize("beta", ["same_batch", "full"])
def test_stacked_clients_that_are_done_change_no_estimate(beta: str) -> None:
    """From round 2 on one client takes 20 steps and the others 2; what they see meanwhile is padding."""
    clients = [[(1.0, 0), (1.0, 2), (2.0, 1)], [(2.0, 0)], [(1.0, 2), (2.0, 0)]]
    alone, together = (
        states(simulation(FedVeca(tau_0=3, beta=beta), clients, [0.3, 0.1], batch_size=1, stacked=stacked), 5)[5].server
        for stacked in (False, True)
    )
    for name in ("w", "tau", "beta", "delta", "A"):
        assert alone[name].tolist() == pytest.approx(together[name].tolist(), rel=1e-10)


@pytest.mark.parametrize("accept", ["local", "global"])
def test_a_round_that_raises_the_loss_is_rejected_after_the_first(accept: str) -> None:
    """F = 2w² with η = 0.6: a step maps w to −1.4w, two to 1.96w. The first is let through (best is ∞), then none."""
    found = [s.server for s in states(simulation(FedVeca(tau_0=2, accept=accept), [[(2.0, 0)]], [1.0], lr=0.6), 3)]
    assert [float(s.w) for s in found] == pytest.approx([1, 1.96, 1.96, 1.96])
    assert [s.accepted for s in found] == [True, True, False, False]
    assert found[3].F_best == pytest.approx(2 * 1.96**2)


def test_acceptance_looks_at_local_or_at_global_models() -> None:
    """After round 0 the clients' own losses are ½·0.405² and 2·0.18²; those of w_1 = 0.3875: ½·0.6125², 2·0.3875²."""
    local, whole = (
        states(simulation(FedVeca(tau_0=2, accept=accept), TWO, [0.5]), 1)[1].server.F for accept in ("local", "global")
    )
    assert local == pytest.approx((0.5 * 0.405**2 + 2 * 0.18**2) / 2)
    assert whole == pytest.approx((0.5 * 0.6125**2 + 2 * 0.3875**2) / 2)


@pytest.mark.parametrize(("beta", "expected"), [("same_batch", 1.0), ("full", 11.0)])
def test_printed_beta_mistakes_sampling_noise_for_curvature(beta: str, expected: float) -> None:
    """Targets 0 and 2, one a step, from w = 1: the full gradient is 0, the first step goes 0.1 aside, the second
    gradient is 1.1 the other way. On one minibatch the change is the curvature, 1; against the full gradient 1.1/0.1.
    """
    one = simulation(FedVeca(tau_0=2, beta=beta), [[(1.0, 0), (1.0, 2)]], [1.0], batch_size=1)
    assert states(one, 1)[1].server.beta.item() == pytest.approx(expected)


def test_absent_clients_keep_their_steps() -> None:
    """Round 2 without client 0: weights are the cohort's, τ_0 stays 20, and its A of this round is unknown."""
    found = states(simulation(FedVeca(tau_0=2), TWO, [0.5], cohorts=[[0, 1], [0, 1], [1]]), 3)[3].server
    assert found.tau.tolist() == [20, 20]
    assert math.isnan(found.A[0].item())
    assert float(found.w) == pytest.approx(0.3216875 * 0.6**2)


def test_alpha_is_capped_once_L_is_known() -> None:
    """0.999·2·2/10 = 0.3996; without L the configured α."""
    A = torch.tensor([10.0, 20.0])
    algorithm = FedVeca(alpha_cap=True)
    assert isinstance(algorithm, FedVecaVariant)
    assert algorithm.alpha(A, 2.0) == pytest.approx(0.3996)
    assert algorithm.alpha(A, math.nan) == 0.95


def test_useless_A_is_replaced_by_the_largest_proper_one() -> None:
    nan, inf = math.nan, math.inf
    replaced = usable(torch.tensor([0.0, 3.0, nan, 1.0, inf]))
    assert replaced is not None
    assert replaced.tolist() == [3, 3, 3, 1, 3]
    assert usable(torch.tensor([0.0, nan])) is None
    assert step_quotient(torch.tensor([1.0, 2.0]), 0.5).tolist() == pytest.approx([2, 4 / 3])


@pytest.mark.parametrize(("params", "down"), [({}, 1 * 8 + 2 * 4), ({"traffic": "paper"}, 2 * 8 + 4)])
def test_traffic(params: dict[str, Any], down: int) -> None:
    """Down d + 2 numbers (w, τ, γ), or 2d + 1 with the gradient itself; up 2d + 3 (y, r, F, β, δ), d = 1 in float64."""
    run = simulation(FedVeca(tau_0=2, **params), TWO, [0.5])
    record = record_of_round(run, states(run, 2)[2])
    assert (record.bytes_down, record.bytes_up) == (2 * down, 2 * (2 * 8 + 3 * 4))


def test_paper_traffic_changes_nothing_else() -> None:
    models = [
        float(states(simulation(FedVeca(tau_0=2, traffic=traffic), TWO, [0.5]), 4)[4].server.w)
        for traffic in ("min", "paper")
    ]
    assert models[0] == pytest.approx(models[1], rel=1e-14)


def test_literal_mode_sets_the_printed_readings() -> None:
    params = FedVeca(mode="literal").params
    assert (params.accept, params.beta, params.L0, params.tau_bar) == ("local", "full", True, "printed")


def test_impossible_step_range_is_refused() -> None:
    with pytest.raises(InputError, match="tau_min of at most tau_max = 3"):
        FedVeca(tau_min=4, tau_max=3)
