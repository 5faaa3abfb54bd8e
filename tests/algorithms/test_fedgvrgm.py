"""FedGVR, FedGM and FedGVRGM by hand, on F_0 = ½(w − 1)² and F_1 = 2w², one sample each.

η = 0.1, two steps, μ = 0.1, from w = 0.5 and c = c_0 = c_1 = 0:

round 0   client 0: −0.5, then −0.45 + 0.1·0.05 = −0.445, so y = 0.5945 and c_0 = −0.4725, the mean of the two
          client 1:  2, then 1.2 − 0.1·0.2 = 1.18,        so y = 0.182  and c_1 = 1.59;   w = 0.38825, c = 0.55875
round 1   c − c_0 = 1.03125 = −(c − c_1). With ε = 1
          client 0: −0.61175 + 1.03125 = 0.4195, then −0.657895 + 1.03125 = 0.373355, so y = 0.3089645
          client 1:  1.553 − 1.03125 = 0.52175, then 1.3390825 − 1.03125 = 0.3078325, so y = 0.30529175
          with ε = ½
          client 0: −0.61175 + 0.515625, then −0.60117625 + 0.515625, so y = 0.406417625
"""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedgm import FedGM
from fedkeel.algorithms.fedgvrgm import FedGVR, FedGVRGM
from fedkeel.engine.rounds import RunState
from tests.algorithms.least_squares import record_of_round, simulation, states

TWO = [[(1.0, 1)], [(2.0, 0)]]
ONE = [[(1.0, 1)]]
HALF = [0.3, 0.305]
"""Accuracies that give ε = ½ in round 1 with h = 1: a gain of half a point."""


def run(algorithm: Algorithm, rounds: int, accuracies: list[float] | None = None, **kwargs: Any) -> list[RunState]:
    return states(simulation(algorithm, TWO, [0.5], steps=2, **kwargs), rounds, accuracies)


def control(state: RunState) -> list[float]:
    return [float(state.clients["c"][i]) for i in sorted(state.clients["c"])]


@pytest.mark.parametrize("stacked", [False, True])
def test_fedgvr_two_rounds_with_full_weight(stacked: bool) -> None:
    """c_k is the mean gradient with the proximal term, without the correction: −0.6348225 and 1.44604125."""
    found = run(FedGVR(), 2, stacked=stacked)
    assert float(found[1].server.w) == pytest.approx(0.38825, rel=1e-12)
    assert control(found[1]) == pytest.approx([-0.4725, 1.59], rel=1e-12)
    assert float(found[1].server.c) == pytest.approx(0.55875, rel=1e-12)
    assert float(found[2].server.w) == pytest.approx((0.3089645 + 0.30529175) / 2, rel=1e-12)
    assert control(found[2]) == pytest.approx([-0.6348225, 1.44604125], rel=1e-12)


@pytest.mark.parametrize(
    ("update", "c_0"),
    [
        ("exact", (-0.61175 - 0.60117625) / 2),
        ("scaffold", -1.03125 + (0.38825 - 0.406417625) / 0.2),
    ],
)
def test_fedgvr_with_half_weight(update: str, c_0: float) -> None:
    """The exact update is again the mean of the gradients seen; SCAFFOLD's takes c − c_0 off whole, though only half
    of it was added.
    """
    found = run(FedGVR(h=1, c_update=update), 2, HALF)
    assert control(found[2])[0] == pytest.approx(c_0, rel=1e-10)


def test_c_is_the_mean_of_the_clients_c_when_all_take_part() -> None:
    """Also while ε moves: c gains the mean of exactly what the c_k gain."""
    found = run(FedGVRGM(h=1, beta=0.5), 4, [0.3, 0.305, 0.307, 0.5])
    assert float(found[4].server.c) == pytest.approx(sum(control(found[4])) / 2, rel=1e-12)


def test_weight_of_the_correction_follows_the_best_accuracy() -> None:
    """h = 2: 1 in rounds 0 and 1, then gains of (1, 0, 4, 4.4, 0.4) points over two rounds, halved and cut at 1."""
    percent = [30, 31, 30.5, 31, 35, 35.4, 35.2]
    expected = {
        "percent": [1, 1, 0.5, 0, 1, 1, 0.2],
        "fraction": [1, 1, 0.005, 0, 0.02, 0.022, 0.002],
    }
    for unit, epsilons in expected.items():
        algorithm = FedGVR(h=2, acc_unit=unit)
        server = simulation(algorithm, ONE, [0.5], steps=1).start().server
        seen = []
        for value in percent:
            server = algorithm.observe(server, {"accuracy": value / 100})
            seen.append(algorithm.epsilon(server))
        assert seen == pytest.approx(epsilons, abs=1e-12)


def test_weight_may_exceed_one_only_unclipped() -> None:
    for clipped, expected in ((True, 1.0), (False, 60.0)):
        algorithm = FedGVR(h=1, eps_clipped=clipped)
        server = simulation(algorithm, ONE, [0.5], steps=1).start().server
        for accuracy in (0.3, 0.9):
            server = algorithm.observe(server, {"accuracy": accuracy})
        assert algorithm.epsilon(server) == pytest.approx(expected)


@pytest.mark.parametrize(("weights", "optimum"), [("n", 3 / 7), ("uniform", 1 / 5)])
def test_weights_decide_whose_optimum_is_found(weights: str, optimum: float) -> None:
    """Three samples on F_0 and one on F_1: 3(w − 1) + 4w = 0 by data, (w − 1) + 4w = 0 by client."""
    clients = [[(1.0, 1)] * 3, [(2.0, 0)]]
    algorithm = FedGVR(mu=0, h=1000, weights=weights)
    assert float(states(simulation(algorithm, clients, [0.5], steps=5), 60)[60].server.w) == pytest.approx(optimum)


def test_momentum_carries_the_last_step_on() -> None:
    """v = −0.11175 after round 0; then ½·v + mean(y) − w, with mean(y) = 0.307128125 and w = 0.38825."""
    found = run(FedGVRGM(beta=0.5), 2)
    assert float(found[1].server.v) == pytest.approx(-0.11175, rel=1e-12)
    assert float(found[2].server.w) == pytest.approx(0.38825 - 0.055875 + 0.307128125 - 0.38825, rel=1e-12)


@pytest.mark.parametrize(
    ("momentum", "c_1", "c_2"), [("none", 0.55875, 0.405609375), ("heavy_ball", 0.55875, 0.684984375)]
)
def test_momentum_on_c(momentum: str, c_1: float, c_2: float) -> None:
    """Round 1 adds mean δ = ((−0.6348225 + 0.4725) + (1.44604125 − 1.59))/2 = −0.153140625, and ½·0.55875 with a
    heavy ball.
    """
    found = run(FedGVRGM(beta=0.5, c_momentum=momentum), 2)
    assert [float(s.server.c) for s in found[1:]] == pytest.approx([c_1, c_2], rel=1e-12)


def test_dampened_momentum_on_c_starts_with_its_share() -> None:
    assert float(run(FedGVRGM(beta=0.75, c_momentum="damp"), 1)[1].server.c) == pytest.approx(0.55875 / 4)


@pytest.mark.parametrize(("scale", "expected"), [("participation", 0.54725), ("unit", 0.5945)])
def test_scale_by_participation(scale: str, expected: float) -> None:
    """Client 0 alone moves 0.0945: half of it counts as one of two clients; c always gets the half, −0.4725/2."""
    server = run(FedGVRGM(scale=scale), 1, cohorts=[[0]])[1].server
    assert float(server.w) == pytest.approx(expected, rel=1e-12)
    assert float(server.c) == pytest.approx(-0.23625, rel=1e-12)
    assert float(run(FedGM(scale=scale), 1, cohorts=[[0]])[1].server.w) == pytest.approx(expected, rel=1e-12)


def test_printed_momentum_turns_a_model_that_nothing_moves() -> None:
    """Inputs 0 give no gradient. w = 1, mw = 1: 1 − 0.9 = 0.1; then mw = 1.1: 0.1 − 0.99 = −0.89."""
    found = states(simulation(FedGM(mode="literal"), [[(0.0, 0)]], [1.0], steps=1), 2)
    assert [float(s.server.w) for s in found] == pytest.approx([1, 0.1, -0.89])


@pytest.mark.parametrize(("mu", "expected"), [(0.0, 0.09), (0.1, 0.089)])
def test_printed_local_steps_start_from_w_each(mu: float, expected: float) -> None:
    """From w = 0: y = 0.1, then the gradient −0.9 + μ·0.1 found there is applied at w."""
    found = states(simulation(FedGM(restart=True, beta=0, mu=mu), ONE, [0.0], steps=2), 1)
    assert float(found[1].server.w) == pytest.approx(expected)


@pytest.mark.parametrize(("sign", "expected"), [("alg", -0.0045), ("eq7", 0.0045)])
def test_printed_control_variate_multiplies_by_the_learning_rate(sign: str, expected: float) -> None:
    """Two epochs of one batch reach y = 0.09: ±(0.1/2)·0.09 where a gradient would be −0.09/0.2."""
    found = states(simulation(FedGVR(mode="literal", mu=0, c_sign=sign), ONE, [0.0], epochs=2), 1)
    assert control(found[1]) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("params", "numbers"), [({}, (1, 2)), ({"traffic": "paper"}, (2, 2)), ({"c_update": "scaffold"}, (1, 1))]
)
def test_uploads_carry_delta_only_where_it_cannot_be_derived(params: dict[str, Any], numbers: tuple[int, int]) -> None:
    """With ε = 1 (round 0) d numbers go up, with ε = ½ (round 1) 2d; down always 2d + 1. d = 1 in float64."""
    algorithm = FedGVR(h=1, **params)
    federation = simulation(algorithm, TWO, [0.5], steps=2)
    for state, expected in zip(states(federation, 2, HALF), numbers, strict=False):
        record = record_of_round(federation, state)
        assert record.bytes_up == 2 * 8 * expected
        assert record.bytes_down == 2 * (2 * 8 + 4)


def test_derived_and_uploaded_delta_agree() -> None:
    models = [run(FedGVRGM(traffic=traffic, beta=0.5), 4, momentum=0.5)[4].server.w for traffic in ("min", "paper")]
    assert models[0].tolist() == pytest.approx(models[1].tolist(), rel=1e-13)


def test_history_holds_no_more_than_it_needs() -> None:
    found = run(FedGVR(h=2), 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert found[5].server.sub.tolist() == [0.4, 0.5, 0.6]
