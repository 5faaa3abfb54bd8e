"""Metrics as sums over samples: which sums samples can have, and what is said of others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedkeel.errors import ModelError
from fedkeel.learning.losses import as_loss
from fedkeel.learning.metrics import KNOWN, Metric, as_metrics
from fedkeel.learning.task import Task


def linear() -> Task:
    return Task(nn.Linear(2, 1), as_loss("mse"), torch.float64)


@pytest.mark.parametrize("name", ["mae", "mse", "rmse", "r2"])
@pytest.mark.parametrize("outputs", [[1.0, 2.0, 4.0], [1e200, 0.0, 0.0], [math.inf, 0.0, 0.0], [math.nan, 0.0, 0.0]])
@pytest.mark.parametrize("targets", [[0.1, 0.1, 0.1], [1.0, -3.0, 2.0]])
def test_samples_have_possible_sums(name: str, outputs: list[float], targets: list[float]) -> None:
    """Also those that a model which diverged gives, and targets that are all equal: 0.1 + 0.1 + 0.1 is rounded."""
    sums = KNOWN[name].sums(torch.tensor(outputs), torch.tensor(targets)).tolist()
    assert KNOWN[name].possible(sums)
    KNOWN[name].value(sums)


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("mae", (-1.0, 2.0)),
        ("mae", (1.0, 0.0)),
        ("mae", (1.0, 1.5)),
        ("mae", (1.0, math.inf)),
        ("rmse", (-1.0, 2.0, 0.0, 1.0)),
        ("mse", (1.0, 2.0, 4.0, 7.0)),  # (Σy)²/n = 8 is at most Σy²
        ("r2", (1.0, 2.0, math.nan, 1.0)),
    ],
)
def test_sums_that_no_samples_have(name: str, sums: tuple[float, ...]) -> None:
    assert not KNOWN[name].possible(sums)


def test_a_wrong_formula_does_not_pass_for_a_missing_value() -> None:
    task = linear()
    task.metrics = {"wrong": Metric(lambda outputs, targets: -torch.ones(1), lambda sums: math.sqrt(sums[0]), bool)}
    x, y = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ModelError, match=r"the metric wrong has no value for the sums \(-1.0,\): "):
        task.evaluate(task.w0, task.b0, x, y)


def test_a_model_that_diverged_has_metrics_that_are_not_finite() -> None:
    task = linear()
    task.metrics = as_metrics(["mae", "rmse", "r2"])
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.arange(3, dtype=torch.float64)
    found = task.evaluate(torch.full_like(task.w0, math.inf), task.b0, x, y).metrics
    assert found == {"mae": math.inf, "rmse": math.inf, "r2": -math.inf}
