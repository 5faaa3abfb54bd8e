"""Step sizes that change within a round: by hand, in the four ways of computing, and what they add up to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Algorithm, pace_of, travel
from fedkeel.errors import InputError
from fedkeel.learning.adam import Adam
from fedkeel.learning.averaging import Averaging
from fedkeel.learning.correction import Correction
from fedkeel.learning.kernels.choice import fast_steps
from fedkeel.learning.kernels.dense import Descent
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.pace import Pace
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Task
from tests.learning import four_ways
from tests.learning.four_ways import STEPS
from tests.learning.test_loop import TASK, batches


def falling(steps: Tensor, rho: float) -> Tensor:
    """From 1 towards ρ in each client's own number of steps [K, most steps]."""
    return 1 - (1 - rho) * torch.arange(int(steps.max()), dtype=torch.float64) / steps.unsqueeze(1)


def end(sgd: Sgd, start: float, factors: list[float], **rule: Any) -> float:
    y = torch.full((1, 1), start, dtype=torch.float64)
    pace = Pace(torch.tensor([factors], dtype=torch.float64))
    return float(train(TASK, y, torch.empty(1, 0), batches(*[0] * len(factors)), sgd, Rule(pace=pace, **rule)).y)


def test_the_second_step_is_half_as_long() -> None:
    """y = 1, η = 0.1 and then 0.05, target 0: 1 → 0.9 → 0.9 − 0.05·0.9 = 0.855."""
    assert end(Sgd(0.1), 1.0, [1.0, 0.5]) == pytest.approx(0.855, abs=1e-15)


def test_the_velocity_does_not_slow_down() -> None:
    """μ = 0.5: v = 1, y = 0.9; then v = 0.5 + 0.9 = 1.4, y = 0.9 − 0.05·1.4 = 0.83."""
    assert end(Sgd(0.1, momentum=0.5), 1.0, [1.0, 0.5]) == pytest.approx(0.83, abs=1e-15)
    """A third step of full length shows whether 1.4 or 0.7 was remembered: v = 0.7 + 0.83 = 1.53, y = 0.677."""
    assert end(Sgd(0.1, momentum=0.5), 1.0, [1.0, 0.5, 1.0]) == pytest.approx(0.677, abs=1e-15)


def test_all_of_a_step_is_shortened() -> None:
    """g = 4 clipped to 1, weight decay 0.5·4 = 2, half a step: 4 − 0.05·3 = 3.85, up to the 1e-6 of the clip."""
    assert end(Sgd(0.1, clip=1.0, weight_decay=0.5), 4.0, [0.5]) == pytest.approx(3.85, abs=1e-7)


def test_what_is_done_after_a_step_sees_the_shortened_one() -> None:
    """1 → 1 − 0.05 = 0.95, doubled."""
    assert end(Sgd(0.1), 1.0, [0.5], after_step=lambda y, batch, k: 2 * y) == pytest.approx(1.9, abs=1e-15)


@pytest.mark.parametrize(
    "sgd",
    [
        Sgd(0.1),
        Sgd(0.1, weight_decay=0.3, max_move=0.05),
        Sgd(0.1, momentum=0.9),
        Sgd(0.1, clip=0.2),
        Sgd(0.1, adam=Adam()),
    ],
    ids=["plain", "decay and limit", "momentum", "clip", "adam"],
)
@pytest.mark.parametrize("corrected", ["not", "shift", "pull", "decay", "mix"])
def test_four_ways(sgd: Sgd, corrected: str) -> None:
    """The factors of each client follow its own number of steps; the one-by-one run knows no others."""

    def rule(task: Task, rows: slice) -> Rule:
        towards = torch.linspace(-1, 1, 3 * task.d, dtype=torch.float64).view(3, -1)[rows]
        slopes = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)[rows]
        corrections = {
            "not": None,
            "shift": Correction(constant=towards),
            "pull": Correction(slope=slopes, constant=-slopes * towards),
            "decay": Correction(decay=0.4),
            "mix": Correction(share=0.3, constant=towards),
        }
        return Rule(pace=Pace(falling(STEPS[rows], 0.1)), correction=corrections[corrected])

    paced = four_ways.assert_all_the_same(sgd, rule)
    even = four_ways.one_by_one(
        four_ways.task(dense=True), sgd, lambda task, rows: Rule(correction=rule(task, rows).correction)
    )
    if sgd.max_move is None:
        assert not torch.allclose(paced.y, even.y)


def test_a_factor_of_one_changes_nothing() -> None:
    def rule(task: Task, rows: slice) -> Rule:
        return Rule(pace=Pace(falling(STEPS[rows], 1.0)))

    plain = four_ways.one_by_one(four_ways.task(dense=True), Sgd(0.1), lambda task, rows: Rule())
    torch.testing.assert_close(four_ways.assert_all_the_same(Sgd(0.1), rule).y, plain.y)


def test_which_kernel_knows_it() -> None:
    """Dense steps do; with averaged gradients, or in a projection, nobody but the plain loop."""
    task = four_ways.task(dense=True)
    y, pace = task.w0.unsqueeze(0), Pace(torch.ones(1, 2, dtype=torch.float64))
    averaging = Averaging([slice(0, task.d)], 0.5, torch.zeros_like(y))

    def taken(**rule: Any) -> Any:
        return fast_steps(task.dense, y, [], Sgd(0.1), Rule(pace=pace, **rule), None)

    assert type(taken()) is Descent
    assert type(taken(correction=Correction(slope=0.1))) is Descent
    assert taken(averaging=averaging) is None
    assert taken(correction=Correction(slope=0.1, when=torch.ones(1, 2, dtype=torch.bool))) is None


def test_more_steps_than_factors_is_an_error() -> None:
    with pytest.raises(IndexError):
        train(TASK, torch.ones(1, 1), torch.empty(1, 0), batches(0, 0), Sgd(0.1), Rule(pace=Pace(torch.ones(1, 1))))


# What the steps add up to.


def test_travel_by_hand() -> None:
    """η = 0.1, factors 1 and ½. Without momentum 0.15. With μ = ½ the first gradient counts 1 + ½·½ = 1.25 times.

    The second counts ½. A client of one step has 0.1, whatever stands in the second column.
    """
    pace, steps = Pace(torch.tensor([[1.0, 0.5], [1.0, 9.0]], dtype=torch.float64)), torch.tensor([2, 1])
    assert travel(0.1, steps, 0.0, torch.float64, pace).flatten().tolist() == pytest.approx([0.15, 0.1])
    assert travel(0.1, steps, 0.5, torch.float64, pace).flatten().tolist() == pytest.approx([0.175, 0.1])


@pytest.mark.parametrize("momentum", [0.0, 0.9, torch.tensor([0.0, 0.5, 0.99], dtype=torch.float64)])
def test_a_gradient_of_one_moves_as_far_as_travel_says(momentum: float | Tensor) -> None:
    task = Task(nn.Linear(3, 1, bias=False), dtype=torch.float64)
    pace = Pace(falling(torch.tensor([5]), 0.2))
    constant = Rule(gradient=lambda y, b, batch, k: (torch.ones_like(y), y[:, 0], b), pace=pace)
    y = torch.zeros(1, 3, dtype=torch.float64)
    moved = train(task, y, torch.empty(1, 0), batches(*[0] * 5), Sgd(0.1, momentum=momentum), constant).y
    expected = travel(0.1, torch.tensor([5]), momentum, torch.float64, pace).expand(1, 3)
    torch.testing.assert_close(-moved, expected)


@pytest.mark.parametrize("momentum", [0.0, 0.7, torch.tensor([0.0, 0.5])])
def test_equal_steps_travel_as_ever(momentum: float | Tensor) -> None:
    steps = torch.tensor([4, 2, 3])
    with_ones = travel(0.1, steps, momentum, torch.float64, Pace(torch.ones(3, 4, dtype=torch.float64)))
    torch.testing.assert_close(with_ones, travel(0.1, steps, momentum, torch.float64))


@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 3)])
def test_a_pace_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    class Wrong(Algorithm):
        name = "wrong"

        def pace(self, steps: Tensor) -> Tensor:
            return torch.ones(shape)

    with pytest.raises(InputError, match=r"pace of wrong must give a factor for every step, \[3, 4\] for steps"):
        pace_of(Wrong(), torch.tensor([4, 2, 3]), torch.float64)
