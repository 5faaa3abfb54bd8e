"""FedPVR and VRL-SGD on quadratics.

F_1 = (x − 1)²/2 and F_2 = 3 (x + 1)²/2: (x − 1) + 3 (x + 1) = 0, so the optimum is x* = −1/2.
"""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from tests.algorithms.quadratic import path, rounds, simulation

TWO = [(1.0, 1.0), (3.0, -1.0)]


def run(name: str, params: dict[str, Any], **training: Any) -> Simulation:
    return simulation(make_algorithm(name, **params), TWO, **({"lr": 0.1, "steps": 5} | training))


def drifted() -> float:
    """Where FedAvg with K = 5 stops: w = mean(b_i + q_i (w − b_i)) with q_i = (1 − 0.1 h_i)^5."""
    q1, q2 = 0.9**5, 0.7**5
    return ((1 - q1) - (1 - q2)) / (2 - q1 - q2)


def test_fedpvr_corrects_the_head_alone() -> None:
    """The two coordinates have the same loss; the corrected one reaches −1/2, the other stops where FedAvg does."""
    body, head = rounds(run("fedpvr", {"mask": "last1"}), 40)[0][-1].server.w.tolist()
    assert head == pytest.approx(-0.5, abs=1e-6)
    assert body == pytest.approx(drifted(), abs=1e-6)
    assert abs(drifted() + 0.5) > 0.1


def test_fedpvr_first_control_variates() -> None:
    """K = 1 from 0: c_i = ∇F_i(0) = (−1, 3) on the head, c their mean 1; round 2 then starts with q = c − c_i added."""
    states, _ = rounds(run("fedpvr", {"mask": "layer:head"}, steps=1), 1)
    assert states[1].server.c.tolist() == pytest.approx([1.0])
    assert [states[1].clients["c"][i].tolist() for i in (0, 1)] == [pytest.approx([-1.0]), pytest.approx([3.0])]


def test_fedpvr_with_absent_clients_divides_by_all() -> None:
    """Client 0 alone of two: c = 1/2·(−1)."""
    one = simulation(make_algorithm("fedpvr"), TWO, cohorts=[[0]], lr=0.1, steps=1)
    assert rounds(one, 1)[0][1].server.c.tolist() == pytest.approx([-0.5])


def test_fedpvr_code_mode_has_no_momentum_on_the_head() -> None:
    """One client (1, 1), K = 2, η = 0.1, momentum 0.5. Body: 0.1, then velocity −0.5 − 0.9 = −1.4, so 0.24.

    Head, without momentum: 0.1 + 0.09 = 0.19, and c_i = −0.19/(2·0.1) = −0.95.
    """
    algorithm = make_algorithm("fedpvr", mode="code")
    states, _ = rounds(simulation(algorithm, [(1, 1)], lr=0.1, steps=2, momentum=0.5), 1)
    assert states[1].server.w.tolist() == pytest.approx([0.24, 0.19])
    assert states[1].server.c.tolist() == pytest.approx([-0.95])


def test_fedpvr_with_momentum_still_finds_the_optimum() -> None:
    """c_i divides by η‖a_i‖₁, so local momentum leaves the fixed point alone."""
    states, _ = rounds(run("fedpvr", {}, lr=0.1, momentum=0.5), 60)
    assert float(states[-1].server.w[1]) == pytest.approx(-0.5, abs=1e-6)


@pytest.mark.parametrize(("mask", "v"), [("none", 0), ("last1", 1), ("all", 2)])
def test_fedpvr_sends_the_masked_part_only(mask: str, v: int) -> None:
    """d + v doubles down; d up, or d + v as the paper has it, for each of 2 clients; and both give the same model."""
    states, records = rounds(run("fedpvr", {"mask": mask}), 2)
    paper, paper_records = rounds(run("fedpvr", {"mask": mask, "traffic": "paper"}), 2)
    assert (records[0].bytes_down, records[0].bytes_up) == (2 * 8 * (2 + v), 2 * 8 * 2)
    assert paper_records[0].bytes_up == 2 * 8 * (2 + v)
    assert paper[-1].server.w.tolist() == pytest.approx(states[-1].server.w.tolist(), abs=1e-14)


def test_vrlsgd_reaches_the_optimum_that_fedavg_misses() -> None:
    assert path(run("vrlsgd", {}), 40)[-1] == pytest.approx(-0.5, abs=1e-6)
    assert path(run("fedavg", {"weights": "uniform"}), 40)[-1] == pytest.approx(drifted(), abs=1e-6)


def test_vrlsgd_by_samples_reaches_the_weighted_optimum() -> None:
    """Sizes 3 and 1: 3 (x − 1) + 3 (x + 1) = 0, so x* = 0."""
    algorithm = make_algorithm("vrlsgd", weights="n")
    assert path(simulation(algorithm, TWO, sizes=[3, 1], lr=0.1, steps=5), 40)[-1] == pytest.approx(0, abs=1e-6)


def test_vrlsgd_survives_a_decaying_learning_rate() -> None:
    """Δ_i must be renewed with the η of the round in which y_i was made. K = 1, η = 0.1 then 0.05:

    y = (0.1, −0.3), w = −0.1, Δ = ((−0.1 − 0.1)/0.1, (−0.1 + 0.3)/0.1) = (−2, 2): gradients at w are −1.1 and 2.7,
    less Δ 0.9 and 0.7, so w = −0.1 − 0.05·0.8 = −0.14. With η = 0.05 in Δ it would be ±4, which cancels in the mean;
    so look at the clients: round 3 starts from Δ_1 = −2 + (w − y_1)/0.05 with y_1 = −0.1 − 0.045 = −0.145, or −1.9.
    """
    states, _ = rounds(run("vrlsgd", {}, steps=1, lr_decay=0.5), 2)
    z, rate = states[2].clients["z"][0], states[2].clients["rate"][0]
    assert float(states[2].server.w[0]) == pytest.approx(-0.14)
    assert float((z + rate * states[2].server.w)[0]) == pytest.approx(-1.9)


def test_vrlsgd_sends_the_model_alone() -> None:
    _, records = rounds(run("vrlsgd", {}), 1)
    assert (records[0].bytes_down, records[0].bytes_up) == (32, 32)


def test_vrlsgd_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="needs every client in every round, got 1 of 2"):
        rounds(run("vrlsgd", {}, participation=0.5), 1)
    unequal = simulation(make_algorithm("vrlsgd"), TWO, sizes=[1, 3], epochs=1)
    with pytest.raises(InputError, match="same number of local steps at every client, got 1 to 3"):
        rounds(unequal, 1)
