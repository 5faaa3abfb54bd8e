"""Gradients uphill: by hand on ½h(y − x)², in the four ways of computing, and with layers that draw or remember."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkeel.learning.ascent import Ascent, Consensus
from fedkeel.learning.averaging import Averaging
from fedkeel.learning.correction import Correction
from fedkeel.learning.drawing import keyed
from fedkeel.learning.kernels.choice import fast_steps
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.pace import Pace
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Batch, Task
from tests.learning import four_ways
from tests.learning.test_loop import TASK, batches


def end(start: float, steps: list[Batch], ascent: Ascent, sgd: Sgd | None = None, **rule: Any) -> float:
    y = torch.full((1, 1), start, dtype=torch.float64)
    return float(train(TASK, y, torch.empty(1, 0), steps, sgd or Sgd(0.1), Rule(ascent=ascent, **rule)).y)


def number(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def test_a_step_follows_the_gradient_uphill() -> None:
    """y = 1, target 0: g = 1, ε = 0.5, gradient there 1.5: y = 1 − 0.15 = 0.85; then ε = 0.5 again, 0.85 − 0.135."""
    assert end(1.0, batches(0, 0), Ascent(0.5)) == pytest.approx(0.715, abs=1e-12)


def test_uphill_is_the_other_way_below_the_optimum() -> None:
    """y = −1: g = −1, ε = −0.5, gradient there −1.5: y = −0.85."""
    assert end(-1.0, batches(0), Ascent(0.5)) == pytest.approx(-0.85, abs=1e-12)


def test_a_share_of_both_gradients() -> None:
    """¾·1 + ¼·1.5 = 1.125: y = 1 − 0.1125."""
    assert end(1.0, batches(0), Ascent(0.5, share=0.25)) == pytest.approx(0.8875, abs=1e-12)


def test_a_known_direction() -> None:
    """v = −4 whatever the gradient: ε = −0.5, gradient there 0.5: y = 0.95. Of v = 0, ε = 0: y = 0.9."""
    assert end(1.0, batches(0), Ascent(0.5, along=number(-4.0))) == pytest.approx(0.95, abs=1e-12)
    assert end(1.0, batches(0), Ascent(0.5, along=number(0.0))) == pytest.approx(0.9, abs=1e-15)


def test_a_gradient_of_zero_leads_nowhere() -> None:
    """At the optimum g = 0: no direction is uphill, and nothing is NaN."""
    assert end(0.0, batches(0), Ascent(0.5)) == 0.0


def test_a_gradient_too_small_to_be_squared_leads_nowhere() -> None:
    """1e-30 squared is 0 in float32, and so is its norm."""
    task = Task(TASK.module_at(TASK.w0, TASK.b0), TASK.loss)
    steps = [Batch(torch.zeros(1, 2, 1), torch.zeros(1, 2, dtype=torch.long))]
    y = torch.full((1, 1), 1e-30)
    found = train(task, y, torch.empty(1, 0), steps, Sgd(0.1), Rule(ascent=Ascent(0.5))).y
    assert abs(float(found)) < 1e-15


def test_consensus_by_hand() -> None:
    """y = 1, μ = 0.2, s = 0.3, ρ = 0.5: v = 1 − 0.5 = 0.5, ε = 0.5, gradient 1.5, y = 0.85; μ = 0.2 + 0.5 − 0.3 = 0.4.

    Then v = 0.85 − 0.4 − 0.3 = 0.15, ε = 0.5, gradient 1.35, y = 0.715; μ = 0.6. Then v = 0.715 − 0.9 < 0, ε = −0.5,
    gradient 0.215, y = 0.6935; μ = 0.6 − 0.5 − 0.3 = −0.2.
    """
    mu = number(0.2)
    assert end(1.0, batches(0, 0, 0), Ascent(0.5, consensus=Consensus(mu, number(0.3)))) == pytest.approx(0.6935)
    assert float(mu) == pytest.approx(-0.2, abs=1e-11)


def test_the_correction_is_added_to_the_gradient_uphill_and_does_not_bend_it() -> None:
    """A shift of −2 would turn g = 1 around; ε is still +0.5: q = 1.5 − 2 = −0.5, y = 1.05."""
    assert end(1.0, batches(0), Ascent(0.5), correction=Correction(constant=number(-2.0))) == pytest.approx(1.05)


def test_clip_and_momentum_come_after_it() -> None:
    """q = 1.5 clipped to 1: y = 0.9. With μ = ½: 0.85, then v = 0.75 + 1.35 = 2.1: y = 0.64."""
    assert end(1.0, batches(0), Ascent(0.5), Sgd(0.1, clip=1.0)) == pytest.approx(0.9, abs=1e-6)
    assert end(1.0, batches(0, 0), Ascent(0.5), Sgd(0.1, momentum=0.5)) == pytest.approx(0.64, abs=1e-11)


def ascent(kind: str, d: int, rows: slice) -> Ascent:
    spread = torch.linspace(-1, 1, 3 * d, dtype=torch.float64).view(3, d)
    return {
        "own": Ascent(0.3),
        "share": Ascent(0.3, share=0.4),
        "along": Ascent(0.3, along=spread[rows]),
        "consensus": Ascent(0.3, consensus=Consensus(spread[rows].clone(), spread[1])),
    }[kind]


@pytest.mark.parametrize("kind", ["own", "share", "along", "consensus"])
@pytest.mark.parametrize("sgd", [Sgd(0.1), Sgd(0.1, clip=0.2, momentum=0.5, weight_decay=0.1)], ids=["plain", "all"])
@pytest.mark.parametrize("more", ["alone", "corrected", "mixed", "paced", "averaged"])
def test_four_ways(kind: str, sgd: Sgd, more: str) -> None:
    def rule(task: Task, rows: slice) -> Rule:
        towards = torch.linspace(0, 1, 3 * task.d, dtype=torch.float64).view(3, -1)[rows]
        with_it: dict[str, dict[str, Any]] = {
            "alone": {},
            "corrected": {"correction": Correction(slope=0.5, constant=towards)},
            "mixed": {"correction": Correction(share=0.3, constant=towards)},
            "paced": {"pace": Pace(torch.tensor([[1, 0.7, 0.5, 0.2]], dtype=torch.float64).expand(len(towards), 4))},
            "averaged": {"averaging": Averaging([slice(0, task.d)], 0.5, torch.zeros_like(towards))},
        }
        return Rule(ascent=ascent(kind, task.d, rows), **with_it[more])

    uphill = four_ways.assert_all_the_same(sgd, rule)
    flat = four_ways.one_by_one(
        four_ways.task(dense=True),
        sgd,
        lambda task, rows: Rule(
            **{name: getattr(rule(task, rows), name) for name in ("correction", "pace", "averaging")}
        ),
    )
    assert not torch.allclose(uphill.y, flat.y)


def test_what_clients_differ_by_is_renewed_for_those_that_step() -> None:
    """Stacked with others that go on, a client's μ is what it is alone: it took two of four steps."""
    task = four_ways.task(dense=True)
    stacked = ascent("consensus", task.d, slice(None))
    four_ways.together(task, Sgd(0.1), lambda task, rows: Rule(ascent=stacked))
    alone = [ascent("consensus", task.d, slice(i, i + 1)) for i in range(3)]
    four_ways.one_by_one(task, Sgd(0.1), lambda task, rows: Rule(ascent=alone[rows.start]))
    assert stacked.consensus is not None
    each = torch.cat([one.consensus.mu for one in alone if one.consensus is not None])
    torch.testing.assert_close(stacked.consensus.mu, each)


@pytest.mark.parametrize("kind", ["own", "along", "consensus"])
def test_no_kernel_takes_such_steps_for_plain_ones(kind: str) -> None:
    task = four_ways.task(dense=True)
    y = task.w0.unsqueeze(0)
    uphill = ascent(kind, task.d, slice(0, 1))
    for more in ({}, {"correction": Correction(slope=0.1)}, {"pace": Pace(torch.ones(1, 1))}):
        assert fast_steps(task.dense, y, [], Sgd(0.1), Rule(ascent=uphill, **more), None) is None  # type: ignore[arg-type]


def test_other_gradients_are_refused_beside_it() -> None:
    y = torch.zeros(1, 2)
    for other in (
        {"gradient": lambda y, b, batch, k: (y, y[:, 0], b)},
        {"projection": Projection(("anchor",), y, 0.0, torch.tensor([0, 2]))},
    ):
        with pytest.raises(ValueError, match="not several"):
            Rule(ascent=Ascent(0.1), **other)  # type: ignore[arg-type]


def test_a_known_direction_leaves_nothing_to_mix_or_correct() -> None:
    for more in ({"share": 0.5}, {"consensus": Consensus(number(0.0), number(0.0))}):
        with pytest.raises(ValueError, match="leaves no gradient at y"):
            Ascent(0.1, along=number(1.0), **more)  # type: ignore[arg-type]


# Layers that draw, and layers that remember.


def one_client(task: Task, rule: Rule, steps: int = 3) -> Any:
    key = torch.Generator().manual_seed(5)
    taken = [
        Batch(torch.randn(1, 6, 5, dtype=torch.float64, generator=key), torch.randint(3, (1, 6), generator=key))
        for _ in range(steps)
    ]
    with keyed(7):
        trained = train(task, task.w0.unsqueeze(0), task.b0.unsqueeze(0), taken, Sgd(0.1), rule)
        return trained, torch.rand(1).item()


def test_both_gradients_drop_the_same_units() -> None:
    """With ρ = 0 both are the same gradient, so that steps are plain ones; and as much is drawn as without."""
    task = four_ways.task(True, nn.Dropout(0.5))
    assert not task.draws_nothing
    (plain, then), (uphill, then_too) = (one_client(task, rule) for rule in (Rule(), Rule(ascent=Ascent(0.0))))
    torch.testing.assert_close(uphill.y, plain.y)
    assert then == then_too
    mixed, _ = one_client(task, Rule(ascent=Ascent(0.0, share=0.5)))
    torch.testing.assert_close(mixed.y, plain.y)


def test_dropout_gives_the_same_bits_again() -> None:
    task = four_ways.task(True, nn.Dropout(0.5))
    first, again = (one_client(task, Rule(ascent=Ascent(0.3)))[0].y for _ in range(2))
    assert torch.equal(first, again)


def test_statistics_are_those_of_the_pass_at_y() -> None:
    """One step: whatever ρ is, the batch was seen once and at y. Of a known direction it was seen at y + ε."""
    task = four_ways.task(True, nn.BatchNorm1d(4))
    plain, uphill, along = (
        one_client(task, rule, steps=1)[0].b
        for rule in (Rule(), Rule(ascent=Ascent(0.5)), Rule(ascent=Ascent(0.5, along=torch.ones_like(task.w0))))
    )
    assert torch.equal(uphill, plain)
    assert not torch.allclose(along, plain)
    assert task.buffer_layout.unflatten(uphill[0])["2.num_batches_tracked"] == 1
    assert task.buffer_layout.unflatten(along[0])["2.num_batches_tracked"] == 1


def test_the_loss_is_that_of_the_pass_at_y() -> None:
    """½·1² at y = 1, not ½·1.5² at y + ε."""
    trained = train(TASK, number(1.0), torch.empty(1, 0), batches(0), Sgd(0.1), Rule(ascent=Ascent(0.5)))
    assert float(trained.loss) == pytest.approx(0.5)
