"""Which steps are taken in a faster way: only those of which every setting is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from fedkeel.learning.averaging import Averaging
from fedkeel.learning.correction import Correction
from fedkeel.learning.kernels.choice import fast_steps
from fedkeel.learning.kernels.dense import Descent
from fedkeel.learning.kernels.projected import DenseWorker
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.sgd import Sgd, used
from fedkeel.learning.task import Task

TASK = Task(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), dtype=torch.float64)
Y = TASK.w0.unsqueeze(0)
PROJECTION = Projection(("prev", "anchor"), Y, 0.0, torch.tensor([0, TASK.d]))
PULL = Correction(slope=0.1, constant=Y, decay=0.2)


@dataclass(frozen=True)
class LaterSgd(Sgd):
    """With a setting that nobody knew when the kernels were written."""

    nesterov: bool = False


@dataclass(frozen=True)
class LaterRule(Rule):
    later: Any = None


@dataclass(frozen=True)
class LaterCorrection(Correction):
    cubic: float = 0.0


@dataclass(frozen=True)
class LaterProjection(Projection):
    softly: bool = False


def taken(sgd: Sgd, rule: Rule) -> type | None:
    assert TASK.dense is not None
    steps = fast_steps(TASK.dense, Y, [], sgd, rule, None)
    return None if steps is None else type(steps)


def averaging(stop: int) -> Averaging:
    return Averaging([slice(0, stop)], 0.5, torch.zeros(1, stop, dtype=torch.float64))


def later(projection: Projection, **more: Any) -> LaterProjection:
    return LaterProjection(projection.rows, projection.before, projection.rho, projection.bounds, **more)


@pytest.mark.parametrize(
    ("sgd", "rule", "expected"),
    [
        (Sgd(0.1), Rule(), Descent),
        (Sgd(0.1, weight_decay=0.1, max_move=1.0), Rule(correction=PULL), Descent),
        (Sgd(0.1), Rule(correction=replace(PULL, share=0.3)), Descent),
        (Sgd(0.1, momentum=torch.zeros(TASK.d)), Rule(averaging=averaging(15)), Descent),
        (Sgd(0.1), Rule(averaging=averaging(7)), None),
        (Sgd(0.1, clip=1.0), Rule(), None),
        (Sgd(0.1, momentum=0.9), Rule(), None),
        (Sgd(0.1), Rule(correction=replace(PULL, when=torch.ones(1, 3, dtype=torch.bool))), None),
        (Sgd(0.1), Rule(gradient=lambda y, b, batch, k: (y, y[:, 0], b)), None),
        (Sgd(0.1), Rule(after_step=lambda y, batch, k: y), None),
        (Sgd(0.1, max_move=1.0), Rule(projection=PROJECTION), DenseWorker),
        (Sgd(0.1), Rule(projection=replace(PROJECTION, own_draws=True)), DenseWorker),
        (Sgd(0.1, weight_decay=0.1), Rule(projection=PROJECTION), None),
        (Sgd(0.1), Rule(projection=PROJECTION, correction=PULL), None),
        (Sgd(0.1), Rule(projection=PROJECTION, correction=Correction(share=0.3)), None),
        (Sgd(0.1), Rule(projection=PROJECTION, averaging=averaging(15)), None),
        (Sgd(0.1), Rule(projection=replace(PROJECTION, rows=())), None),
        (Sgd(0.1), Rule(projection=replace(PROJECTION, decay=Y[0])), None),
        (LaterSgd(0.1), Rule(), Descent),
        (LaterSgd(0.1, nesterov=True), Rule(), None),
        (LaterSgd(0.1, nesterov=True), Rule(projection=PROJECTION), None),
        (Sgd(0.1), LaterRule(later=1), None),
        (Sgd(0.1), LaterRule(projection=PROJECTION, later=1), None),
        (Sgd(0.1), Rule(correction=LaterCorrection(slope=0.1)), Descent),
        (Sgd(0.1), Rule(correction=LaterCorrection(slope=0.1, cubic=0.1)), None),
        (Sgd(0.1), Rule(projection=later(PROJECTION)), DenseWorker),
        (Sgd(0.1), Rule(projection=later(PROJECTION, softly=True)), None),
    ],
)
def test_a_kernel_is_taken_only_where_it_knows_everything(sgd: Sgd, rule: Rule, expected: type | None) -> None:
    assert taken(sgd, rule) is expected


def test_no_kernel_for_a_network_that_is_not_known() -> None:
    assert fast_steps(None, Y, [], Sgd(0.1), Rule(), None) is None


def test_what_is_set() -> None:
    assert used(Sgd(0.1)) == {"lr"}
    assert used(Sgd(0.1, momentum=torch.tensor([0.0, 0.1]), clip=1.0)) == {"lr", "momentum", "clip"}
    assert Rule(correction=PULL).used == {"correction"}


def test_a_step_follows_one_gradient() -> None:
    with pytest.raises(ValueError, match="not several"):
        Rule(gradient=lambda y, b, batch, k: (y, y[:, 0], b), projection=PROJECTION)
