"""Scores calibrated client by client: by hand, in the four ways of computing, and refused where they mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkeel.learning.ascent import Ascent
from fedkeel.learning.averaging import Averaging
from fedkeel.learning.calibration import Calibration
from fedkeel.learning.correction import Correction
from fedkeel.learning.inside import Branches
from fedkeel.learning.kernels.choice import fast_steps
from fedkeel.learning.kernels.dense import Descent
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.losses import by_name
from fedkeel.learning.pace import Pace
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Batch, Task
from tests.learning import four_ways


def numbers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SCALE = numbers([1.0, 0.5, 1.0], [0.2, 1.0, 3.0], [1.0, 1.0, 0.0])
SHIFT = numbers([0.0, -1.0, 2.0], [0.5, 0.0, -40.0], [0.0, 0.3, -0.3])
KINDS = {"scale": (SCALE, None), "shift": (None, SHIFT), "both": (SCALE, SHIFT)}


def calibration(kind: str, rows: slice) -> Calibration:
    return Calibration(*(None if part is None else part[rows] for part in KINDS[kind]))


def linear() -> Task:
    """z = W x without bias, of two classes and one feature, at W = 0."""
    task = Task(nn.Linear(1, 2, bias=False), dtype=torch.float64)
    task.w0 = torch.zeros(2, dtype=torch.float64)
    return task


@pytest.mark.parametrize("dense", [True, False])
def test_a_step_by_hand(dense: bool) -> None:
    """x = 1 of class 0, W = 0, scale (1, ½), shift (0, ln 3): scores 0 and ln 3, p = (¼, ¾).

    The derivatives by z are 1·(¼ − 1) = −¾ and ½·¾ = ⅜, so that with η = 1 W = (¾, −⅜). The loss is −ln ¼.
    """
    task = linear()
    if not dense:
        task.use_plain_autograd()
    value = Calibration(numbers([1.0, 0.5]), numbers([0.0, 3.0]).log().clamp(min=0))
    batch = Batch(torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.long))
    trained = train(task, task.w0[None], torch.empty(1, 0), [batch], Sgd(1.0), Rule(calibration=value))
    assert trained.y[0].tolist() == pytest.approx([0.75, -0.375])
    assert float(trained.loss) == pytest.approx(-torch.tensor(0.25).log().item())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sgd", [Sgd(0.1), Sgd(0.1, clip=0.2, momentum=0.5, weight_decay=0.1)], ids=["plain", "all"])
@pytest.mark.parametrize("more", ["alone", "corrected", "mixed", "paced", "averaged", "uphill"])
def test_four_ways(kind: str, sgd: Sgd, more: str) -> None:
    def rule(task: Task, rows: slice) -> Rule:
        towards = torch.linspace(0, 1, 3 * task.d, dtype=torch.float64).view(3, -1)[rows]
        beside: dict[str, dict[str, Any]] = {
            "alone": {},
            "corrected": {"correction": Correction(slope=0.5, constant=towards)},
            "mixed": {"correction": Correction(share=0.3, constant=towards)},
            "paced": {"pace": Pace(numbers([1, 0.7, 0.5, 0.2]).expand(len(towards), 4))},
            "averaged": {"averaging": Averaging([slice(0, task.d)], 0.5, torch.zeros_like(towards))},
            "uphill": {"ascent": Ascent(0.2)},
        }
        return Rule(calibration=calibration(kind, rows), **beside[more])

    calibrated = four_ways.assert_all_the_same(sgd, rule)
    plain = four_ways.one_by_one(
        four_ways.task(dense=True), sgd, lambda task, rows: replace(rule(task, rows), calibration=None)
    )
    assert not torch.allclose(calibrated.y, plain.y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_torch(kind: str) -> None:
    """Written with nothing but torch, client by client."""
    task = four_ways.task(dense=True)
    found, loss, _ = task.gradient(
        four_ways.start(task),
        torch.empty(3, 0),
        Batch(torch.ones(3, 2, 5, dtype=torch.float64), torch.tensor([[0, 1], [1, 1], [2, 0]])),
        calibration=calibration(kind, slice(None)),
    )
    for i, labels in enumerate(([0, 1], [1, 1], [2, 0])):
        scale, shift = (
            torch.as_tensor(neutral if part is None else part[i])
            for part, neutral in zip(KINDS[kind], (1.0, 0.0), strict=True)
        )
        point = four_ways.start(task)[i].clone().requires_grad_()
        A, a, B, b = point.split([20, 4, 12, 3])
        z = torch.tanh(torch.ones(2, 5, dtype=torch.float64) @ A.view(4, 5).T + a) @ B.view(3, 4).T + b
        value = F.cross_entropy(z * scale + shift, torch.tensor(labels))
        (expected,) = torch.autograd.grad(value, point)
        torch.testing.assert_close(found[i], expected)
        torch.testing.assert_close(loss[i], value.detach())


def test_convolutions_by_hand_and_by_autograd() -> None:
    def gradient(plainly: bool) -> Tensor:
        torch.manual_seed(0)
        task = Task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), dtype=torch.float64)
        assert task.chain is not None
        if plainly:
            task.use_plain_autograd()
        images = torch.randn(2, 5, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        batch = Batch(images, torch.tensor([[0, 1, 2, 0, 1]] * 2))
        two = task.w0.expand(2, -1).clone()
        return task.gradient(two, torch.empty(2, 0), batch, calibration=calibration("both", slice(0, 2)))[0]

    torch.testing.assert_close(gradient(plainly=False), gradient(plainly=True))


def test_which_kernel_knows_it() -> None:
    """Dense steps do, also with what they know beside it; nobody else does."""
    task = four_ways.task(dense=True)
    y = task.w0.unsqueeze(0)

    def taken(**rule: Any) -> Any:
        return fast_steps(task.dense, y, [], Sgd(0.1), Rule(calibration=calibration("both", slice(0, 1)), **rule), None)

    assert type(taken()) is Descent
    assert type(taken(correction=Correction(slope=0.1), pace=Pace(torch.ones(1, 1)))) is Descent
    assert taken(ascent=Ascent(0.1)) is None


def test_other_gradients_are_refused_beside_it() -> None:
    y = torch.zeros(1, 2)
    for other in (
        {"gradient": lambda y, b, batch, k: (y, y[:, 0], b)},
        {"projection": Projection(("anchor",), y, 0.0, torch.tensor([0, 2]))},
        {"inside": Branches(1.0, 1.0, 1.0, 1.0, y, y[:, :0])},
    ):
        with pytest.raises(ValueError, match="in no other gradient"):
            Rule(calibration=calibration("both", slice(0, 1)), **other)  # type: ignore[arg-type]


def test_a_class_cannot_be_left_out_by_infinity() -> None:
    with pytest.raises(ValueError, match="shift of scores must be finite"):
        Calibration(shift=numbers([0.0, -torch.inf]))


def test_another_loss_is_refused() -> None:
    task = Task(nn.Linear(2, 3), by_name("mse"), torch.float64)
    batch = Batch(torch.ones(1, 2, 2, dtype=torch.float64), torch.zeros(1, 2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="plain cross-entropy and nowhere else"):
        task.gradient(task.w0[None], torch.empty(1, 0), batch, calibration=calibration("both", slice(0, 1)))


@pytest.mark.parametrize("dense", [True, False])
def test_another_number_of_classes_is_refused(dense: bool) -> None:
    """Also one, which would be taken for all classes."""
    task = four_ways.task(dense)
    batch = Batch(torch.ones(1, 2, 5, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long))
    for shape in (1, 2, 4):
        wrong = Calibration(shift=torch.zeros(1, shape, dtype=torch.float64))
        with pytest.raises(ValueError, match="calibrate"):
            task.gradient(task.w0[None], torch.empty(1, 0), batch, calibration=wrong)
