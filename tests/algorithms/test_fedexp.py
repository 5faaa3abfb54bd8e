"""FedExP by hand: clients with h = 1, one step of η = 0.1 from 0, two equal coordinates, so that Δ_i = 0.1 b_i."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkeel.algorithms.contract import Clients, Message, Round, Uploads
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from tests.algorithms.quadratic import path, rounds, simulation


def run(
    clients: list[tuple[float, float]], sizes: list[int] | None = None, lr_decay: float = 1.0, **params: Any
) -> Any:
    return simulation(make_algorithm("fedexp", **params), clients, sizes, lr=0.1, steps=1, lr_decay=lr_decay)


@pytest.mark.parametrize(("epsilon", "eta_g"), [(1e-30, 2.5), (0.03, 1.0), (0.005, 2.0)])
def test_the_step_is_longer_where_updates_differ(epsilon: float, eta_g: float) -> None:
    """b = (1, −3): Δ = (0.1, −0.3), Δ̄ = −0.1. mean ‖Δ_i‖² = 2·(0.01 + 0.09)/2 = 0.1, ‖Δ̄‖² = 0.02:

    η_g = max(1, 0.05/(0.02 + ε)), which the run keeps.
    """
    states, records = rounds(run([(1, 1), (1, -3)], epsilon=epsilon), 1)
    assert float(states[1].server.w[0]) == pytest.approx(-0.1 * eta_g)
    assert records[0].noted["eta_g"] == pytest.approx(eta_g)


def test_clients_that_agree_take_the_mean() -> None:
    """Equal updates have ½ mean ‖Δ_i‖²/‖Δ̄‖² = ½, and the server's step is never shorter than the mean."""
    assert path(run([(1, 1), (1, 1)]), 1)[1] == pytest.approx(0.1)


def test_weights_by_samples_apply_to_both_means() -> None:
    """b = (1, −1), sizes 1 and 3: Δ̄ = 0.025 − 0.075 = −0.05, ‖Δ̄‖² = 0.005, mean ‖Δ_i‖² = 0.02; ε = 0.0005:

    η_g = 0.01/0.0055. With equal weights Δ̄ = 0 and nothing moves, however large η_g = 0.01/0.0005 is.
    """
    assert path(run([(1, 1), (1, -1)], [1, 3], weights="n", epsilon=5e-4), 1)[1] == pytest.approx(-0.05 * 0.01 / 0.0055)
    assert path(run([(1, 1), (1, -1)], [1, 3], epsilon=5e-4), 1)[1] == pytest.approx(0, abs=1e-15)


def test_code_mode_scales_epsilon_by_the_cohort_and_the_learning_rate() -> None:
    """As above, with S ε = 0.001 in round 1: η_g = 0.01/0.006 = 5/3, w = −1/12.

    Round 2, η = 0.05: Δ = 0.05 (1 + 1/12) and −0.05 (1 − 1/12), and ε counts a quarter: S ε/4 = 0.00025.
    """
    states, records = rounds(run([(1, 1), (1, -1)], [1, 3], lr_decay=0.5, mode="code", epsilon=5e-4), 2)
    assert float(states[1].server.w[0]) == pytest.approx(-1 / 12)
    one, two = 0.05 * 13 / 12, -0.05 * 11 / 12
    mean, squares = one / 4 + two * 3 / 4, 2 * (one**2 / 4 + two**2 * 3 / 4)
    assert records[1].noted["eta_g"] == pytest.approx(0.5 * squares / (2 * mean**2 + 0.00025))


def test_the_mean_of_the_last_two_models_is_offered() -> None:
    """w goes 0, 0.1, 0.19 with one client: the means are 0, 0.05 and 0.145. The default reports w."""
    here = run([(1, 1)])
    states, _ = rounds(here, 2)
    offered = [here.candidates(state) for state in states]
    assert [list(models) for models in offered] == [["global", "last_two"]] * 3
    assert [float(models["global"][0][0]) for models in offered] == pytest.approx([0, 0.1, 0.19])
    assert [float(models["last_two"][0][0]) for models in offered] == pytest.approx([0, 0.05, 0.145])


def test_code_mode_reports_that_mean() -> None:
    here = run([(1, 1)], mode="code")
    assert list(here.candidates(here.start())) == ["last_two", "global"]


def test_lengths_whose_squares_overflow_float32() -> None:
    """Updates of 1e20 and −1e20·(1 + 2^−10) in float32: ‖Δ_i‖² is beyond float32, η_g is not ½·NaN, hence 1."""
    y = torch.tensor([[1e20], [-1e20 * (1 + 2**-10)]])
    clients = Clients((0, 1), torch.ones(2), 2, 2, 2, 2, torch.float32)
    uploads = Uploads(Message(y=y), clients, torch.ones(2), lambda: torch.ones(2, 1), lambda w: torch.ones(2))
    after = make_algorithm("fedexp").aggregate(State(w=torch.zeros(1), before=torch.zeros(1)), uploads, Round(0, 1, 1))
    # ½ (1 + (1 + δ)²)/2 over (δ/2)², with δ = 2^−10.
    assert after.noted["eta_g"] == pytest.approx((1 + (1 + 2**-10) ** 2) * 2**20, rel=1e-3)


def test_it_is_its_box() -> None:
    """Plain loops over three clients with different steps, in changing cohorts."""
    clients, sizes = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0)], [1, 3, 2]
    cohorts, eta, epsilon = [[0, 1], [1, 2], [0, 2], [0, 1, 2]], 0.07, 1e-3
    x, found = 0.0, [0.0]
    for cohort in cohorts:
        moves = []
        for i in cohort:
            y = x
            for _ in range(sizes[i]):
                y -= eta * clients[i][0] * (y - clients[i][1])
            moves.append(y - x)
        mean = sum(moves) / len(moves)
        squares = sum(2 * move**2 for move in moves)
        x += max(1, squares / (2 * len(moves) * (2 * mean**2 + epsilon))) * mean
        found.append(x)
    algorithm = make_algorithm("fedexp", epsilon=epsilon)
    ours = simulation(algorithm, clients, sizes, cohorts, lr=eta, epochs=1)
    assert path(ours, len(cohorts)) == pytest.approx(found, abs=1e-14)
