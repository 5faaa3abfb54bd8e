"""FedCM, FedAvg-M and SCAFFOLD-M: local steps mixed with the last round's mean step, by hand and against loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds as after
from fedkeel.check import tiny_simulation
from tests.algorithms.quadratic import path, rounds, simulation

ONE, TWO = [(1.0, 1.0)], [(1.0, 1.0), (1.0, -3.0)]
BOTH = [("fedcm", {"a": 0.5}), ("fedavg_cm", {"beta": 0.5})]


@pytest.mark.parametrize(("name", "share"), BOTH)
@pytest.mark.parametrize(
    ("steps", "clients", "expected"),
    [(1, ONE, [0, 0.05, 0.1225]), (2, ONE, [0, 0.0975, 0.233025]), (1, TWO, [0, -0.05, -0.1225])],
)
def test_steps_follow_the_last_round(
    name: str, share: dict[str, Any], steps: int, clients: list[Any], expected: list[float]
) -> None:
    """F = ½(w − 1)², η = 0.1, a = ½, one step: q = −½, y = 0.05, g = −0.05/0.1; then q = ½(−0.95) + ½(−0.5) = −0.725.

    Two steps: to 0.05 and 0.0975, g = −0.0975/0.2; then −0.695 and −0.66025. Two clients of one step: the mean of
    F_0 and F_1 is that of b = −1, so that everything has the opposite sign.
    """
    assert path(simulation(make_algorithm(name, **share), clients, lr=0.1, steps=steps), 2) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "share"), BOTH)
def test_local_momentum_counts_a_gradient_as_often_as_it_is_applied(name: str, share: dict[str, Any]) -> None:
    """μ = ½, two steps: q = −0.5, y = 0.05; q = −0.475, v = −0.25 − 0.475, y = 0.1225. The first q counts 1½ times:

    g = (1.5·(−0.5) − 0.475)/2.5 = −0.49, which is −0.1225/(0.1·2.5).
    """
    run = simulation(make_algorithm(name, **share), ONE, lr=0.1, steps=2, momentum=0.5)
    assert float(rounds(run, 1)[0][1].server.g[0]) == pytest.approx(-0.49)


def test_a_shrinking_learning_rate_does_not_shrink_g() -> None:
    """g is in units of gradients, divided by the rate of the round that it comes from: −0.5 again; η = 0.05 then.

    q = ½(−0.95) + ½(−0.5) = −0.725 and w = 0.05 + 0.05·0.725.
    """
    run = simulation(make_algorithm("fedcm", a=0.5), ONE, lr=0.1, lr_decay=0.5, steps=1)
    assert path(run, 2) == pytest.approx([0, 0.05, 0.08625])


def test_weight_decay_is_part_of_the_mean_step() -> None:
    """As the programs have it: from w = 0.05, decay 1: q = ½(−0.95) + ½(−0.5) + 0.05 = −0.675, all of which is g."""
    run = simulation(make_algorithm("fedcm", a=0.5), ONE, lr=0.1, steps=1, weight_decay=1.0)
    states, _ = rounds(run, 2)
    assert float(states[2].server.g[0]) == pytest.approx(-0.675)


# Against plain loops over the papers' boxes, with clients that take different numbers of steps, in changing cohorts.

CLIENTS = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0), (1.5, 0.5)]
SIZES = [1, 3, 2, 4]  # which are the steps of an epoch
COHORTS = [[0, 1], [1, 2, 3], [0, 3], [2], [0, 1, 2, 3]]
ETA, ETA_G = 0.07, 0.8


def ours(name: str, **params: Any) -> list[float]:
    algorithm = make_algorithm(name, eta_g=ETA_G, **params)
    return path(simulation(algorithm, CLIENTS, SIZES, COHORTS, lr=ETA, epochs=1), len(COHORTS))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mixed_by_hand(share: float, normalised: bool) -> list[float]:
    """FedCM's box, or, ``normalised``, FedAvg-M's: x ← x − γ g with γ = η_g · mean K_i η."""
    x, g, found = 0.0, 0.0, [0.0]
    for cohort in COHORTS:
        moves = []
        for i in cohort:
            h, b = CLIENTS[i]
            y = x
            for _ in range(SIZES[i]):
                y -= ETA * (share * h * (y - b) + (1 - share) * g)
            moves.append(x - y)
        g = mean([move / (SIZES[i] * ETA) for i, move in zip(cohort, moves, strict=True)])
        x -= ETA_G * (mean([SIZES[i] * ETA for i in cohort]) * g if normalised else mean(moves))
        found.append(x)
    return found


def test_fedcm_is_its_box() -> None:
    assert ours("fedcm", a=0.3) == pytest.approx(mixed_by_hand(0.3, normalised=False), abs=1e-14)


def test_fedavg_m_is_its_box_and_differs_from_fedcm_where_steps_do() -> None:
    expected = mixed_by_hand(0.3, normalised=True)
    assert ours("fedavg_cm", beta=0.3) == pytest.approx(expected, abs=1e-14)
    assert abs(expected[-1] - mixed_by_hand(0.3, normalised=False)[-1]) > 1e-3


def test_scaffold_m_is_its_box() -> None:
    """c_i is the mean of the gradients that the client saw, collected step by step; ours follow from y alone."""
    beta, N = 0.3, len(CLIENTS)
    x, g, c, own, found = 0.0, 0.0, 0.0, [0.0] * N, [0.0]
    for cohort in COHORTS:
        means, change = [], 0.0
        for i in cohort:
            h, b = CLIENTS[i]
            y, gradients = x, []
            for _ in range(SIZES[i]):
                gradients.append(h * (y - b))
                y -= ETA * (beta * (gradients[-1] - own[i] + c) + (1 - beta) * g)
            means.append((x - y) / (SIZES[i] * ETA))
            change += mean(gradients) - own[i]
            own[i] = mean(gradients)
        g, c = mean(means), c + change / N
        x -= ETA_G * mean([SIZES[i] * ETA for i in cohort]) * g
        found.append(x)
    assert ours("scaffold_m", beta=beta) == pytest.approx(found, abs=1e-14)
    run = simulation(make_algorithm("scaffold_m", beta=beta, eta_g=ETA_G), CLIENTS, SIZES, COHORTS, lr=ETA, epochs=1)
    last = rounds(run, len(COHORTS))[0][-1]
    assert [float(last.clients["c"][i][0]) for i in range(N)] == pytest.approx(own, abs=1e-13)
    assert float(last.server.c[0]) == pytest.approx(mean(own), abs=1e-13)


def test_scaffold_m_reaches_the_optimum_that_its_mixture_alone_misses() -> None:
    """F_0 = (x − 1)²/2, F_1 = 3(x + 1)²/2: x* = (1 − 3)/4 = −½. At a fixed point of FedAvg-M g = mean of the steps

    at equal weight, so that with K = 5 it stands where the clients' paths, not their gradients, balance.
    """
    clients = [(1.0, 1.0), (3.0, -1.0)]
    ends = {
        name: path(simulation(make_algorithm(name, beta=0.5), clients, lr=0.1, steps=5), 300)[-1]
        for name in ("fedavg_cm", "scaffold_m")
    }
    assert ends["scaffold_m"] == pytest.approx(-0.5, abs=1e-9)
    assert abs(ends["fedavg_cm"] + 0.5) > 0.01


def test_what_is_clipped_gets_into_the_control_variate_divided_by_beta() -> None:
    """As its page says. F = ½(x − 1)², β = ½, η = 0.1, one step, each of two coordinates clipped to 0.25.

    Round 1: q = −0.5, clipped to −0.25 = g; c_i = c = −0.25/½ = −0.5, w = 0.025, u = ½(−0.5) + ½(−0.25) = −0.375.
    Round 2: ∇ = −0.975, q = ½(−0.975 + 0.5) − 0.375 = −0.6125, clipped to −0.25: c_i = −0.5 + (−0.25 + 0.375)/½.
    """
    run = simulation(make_algorithm("scaffold_m", beta=0.5), ONE, lr=0.1, steps=1, clip=0.25 * 2**0.5)
    states, _ = rounds(run, 2)
    assert [float(state.clients["c"][0][0]) for state in states[1:]] == pytest.approx([-0.5, -0.25], abs=1e-5)
    s, nabla, c, u = 0.25 / 0.6125, -0.975, -0.5, -0.375
    assert (1 - s) * c + s * nabla - (1 - s) * u / 0.5 == pytest.approx(-0.25)


def test_one_mixed_vector_goes_down_and_the_model_comes_up() -> None:
    """d = 2 doubles: w and u (or g) down, y up, for two clients."""
    for name in ("fedcm", "fedavg_cm", "scaffold_m"):
        _, records = rounds(simulation(make_algorithm(name), TWO, steps=1), 1)
        assert (records[0].bytes_down, records[0].bytes_up) == (64, 32)


@pytest.mark.parametrize("name", ["fedcm", "fedavg_cm", "scaffold_m", "mimelite", "fedacg"])
def test_the_fast_way_and_the_plain_one_agree(name: str) -> None:
    """Three rounds of a dense network, its steps folded into products, and by autograd with every term in turn."""
    ends = []
    for fast in (True, False):
        run = tiny_simulation(make_algorithm(name), participation=0.6)
        assert run.task.dense is not None
        if not fast:
            run.task.use_plain_autograd()
            assert run.task.dense is None
        ends.append(after(run, 3))
    for one, other in zip(*(state.server.values() for state in ends), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    assert not torch.equal(ends[0].server.w, run.task.w0)
