"""FedPMVR by hand: one client with F = ½(a + b − 1)², corrected on the bias b only, η = 0.1, α = 0.3, from a = b = 0.

One step takes both to 0.1, because the gradient is a + b − 1 in either.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkeel.algorithms.fedpmvr import FedPMVR
from fedkeel.errors import InputError
from tests.algorithms.least_squares import record_of_round, simulation, states

ONE = [[(1.0, 1)]]
BIAS: dict[str, Any] = {"alpha": 0.3, "mask": "layer:bias"}


def models(rounds: int, steps: int = 1, **params: Any) -> list[list[float]]:
    """(a, b) after each round."""
    found = states(simulation(FedPMVR(**({"variant": "shrink"} | BIAS | params)), ONE, [0.0, 0.0], steps=steps), rounds)
    return [state.server.w.tolist() for state in found[1:]]


def test_shrink_takes_back_a_share_of_the_change() -> None:
    """b = 0.7·0.1; then the gradient is −0.83: a = 0.183, b = 0.07 + 0.7·0.083."""
    assert models(2) == [pytest.approx([0.1, 0.07]), pytest.approx([0.183, 0.1281])]


def test_ema_remembers_what_it_took_back() -> None:
    """m = 0.03, then 0.3·0.083 + 0.7·0.03 = 0.0459, taken off 0.07 + 0.083."""
    assert models(2, variant="ema")[1] == pytest.approx([0.183, 0.1071])


def test_repo_adds_up_without_forgetting() -> None:
    """m = 0.03, then 0.03 + 0.3·0.083 = 0.0549."""
    assert models(2, variant="repo")[1] == pytest.approx([0.183, 0.0981])


def test_alg1_takes_one_more_step_everywhere() -> None:
    """The gradient at (0.1, 0.1) is −0.8: a gains η·0.8, b gains α·0.8."""
    assert models(1, variant="alg1")[0] == pytest.approx([0.18, 0.34])


def test_step_averages_gradients_on_the_mask() -> None:
    """m = 0.7·(−1); at (0.1, 0.07) m = 0.3·(−0.7) + 0.7·(−0.83) = −0.791."""
    assert models(1, steps=2, variant="step")[0] == pytest.approx([0.183, 0.1491])


@pytest.mark.parametrize(("keep", "b"), [(True, 0.1491), (False, 0.07 + 0.1 * 0.7 * 0.83)])
def test_step_can_keep_its_average_between_rounds(keep: bool, b: float) -> None:
    """Kept, two rounds of one step are one round of two; reset, the second round starts from 0.7·(−0.83)."""
    assert models(2, variant="step", keep=keep)[1] == pytest.approx([0.183, b])


def test_ema_pulls_the_corrected_layers_towards_their_start() -> None:
    """W_t = W_0 + ((1 − α)/α)·mean m at full participation, whatever the clients do: the sum of all that was taken
    back is tied to how far W went.
    """
    run = simulation(FedPMVR(variant="ema", **BIAS), [[(1.0, 1)], [(2.0, 0)]], [0.4, 0.2], steps=3)
    last = states(run, 6)[6]
    mean = torch.stack([last.clients["m"][i] for i in (0, 1)]).mean()
    assert float(last.server.w[1]) == pytest.approx(0.2 + 0.7 / 0.3 * float(mean), rel=1e-12)


def test_absent_clients_keep_m() -> None:
    run = simulation(FedPMVR(variant="ema", **BIAS), ONE * 2, [0.0, 0.0], steps=1, cohorts=[[0], [1]])
    found = states(run, 2)
    assert found[2].clients["m"][0].tolist() == found[1].clients["m"][0].tolist() == pytest.approx([0.03])


def test_only_corrected_coordinates_are_remembered_and_nothing_extra_travels() -> None:
    run = simulation(FedPMVR(variant="ema", **BIAS), ONE, [0.0, 0.0], steps=1)
    state = states(run, 1)[1]
    assert state.clients["m"][0].shape == (1,)
    record = record_of_round(run, state)
    assert record.bytes_down == record.bytes_up == 2 * 8


@pytest.mark.parametrize("variant", ["shrink", "ema", "alg1", "step", "repo", "repo_dead"])
def test_stacked_clients_of_unequal_steps_do_what_they_do_alone(variant: str) -> None:
    clients = [[(1.0, 1)] * 3, [(2.0, 0)], [(1.0, 2), (2.0, 0)]]
    alone, together = (
        states(
            simulation(
                FedPMVR(variant=variant, keep=True, **BIAS),
                clients,
                [0.3, 0.1],
                epochs=1,
                batch_size=1,
                stacked=stacked,
            ),
            3,
        )[3]
        for stacked in (False, True)
    )
    assert torch.allclose(alone.server.w, together.server.w, rtol=1e-13)
    for name in alone.clients:
        assert torch.allclose(
            alone.clients[name].take(range(3), torch.zeros(1)), together.clients[name].take(range(3), torch.zeros(1))
        )


def test_modes() -> None:
    literal, code = FedPMVR(mode="literal").params, FedPMVR(mode="code").params
    assert (literal.variant, literal.weights) == ("alg1", "uniform")
    assert (code.variant, code.weights, code.mask) == ("repo_dead", "uniform", "last1")


@pytest.mark.parametrize("variant", ["shrink", "ema"])
def test_a_layer_that_does_not_exist_is_refused_before_the_first_round(variant: str) -> None:
    with pytest.raises(InputError, match="the name of a layer of this model, got 'classifier'"):
        simulation(FedPMVR(variant=variant, mask="layer:classifier"), ONE, [0.0, 0.0], steps=1)
