"""A model is tried on a few samples before anything is trained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.data import Federation, from_clients
from fedkeel.engine.fitting import check_model
from fedkeel.errors import ModelError
from fedkeel.learning.losses import cross_entropy, squared_hinge
from fedkeel.learning.task import Task


def federation(classes: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % classes
    return from_clients([(x[:6], y[:6]), (x[6:], y[6:])], test=(x, y))


class Gives(nn.Linear):
    """A linear layer whose outputs are handed to something."""

    def __init__(self, what: Any, outputs: int = 3) -> None:
        super().__init__(5, outputs)
        self.what = what

    def forward(self, x: Tensor) -> Any:
        return self.what(super().forward(x))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (lambda out: (out, out), "must return one tensor of real numbers.*got tuple"),
        (lambda out: {"logits": out}, "got dict"),
        (lambda out: None, "got NoneType"),
        (lambda out: out.argmax(dim=1), "got torch.int64"),
        (lambda out: out.sum(), r"one row of scores for each sample, got \[\] for 8 samples"),
        (lambda out: out.T, r"got \[3, 8\] for 8 samples"),
        (lambda out: out[:, None], r"\[samples, classes\] for cross-entropy, got \[8, 1, 3\]"),
        (lambda out: out[:, :2], "the model has 2 outputs but own has 3 classes"),
        (lambda out: out.no_such_thing, "cannot take the inputs of own .*no_such_thing.* mend its forward pass"),
    ],
)
def test_what_is_no_scores_is_refused_by_name(what: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        check_model(Task(Gives(what)), federation())


def test_five_outputs_for_ten_classes_blame_the_outputs() -> None:
    with pytest.raises(ModelError, match="the model has 5 outputs but own has 10 classes"):
        fk.train("fedavg", model=nn.Linear(5, 5), data=federation(10), rounds=1)


class NanInEvaluation(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if self.training else out * math.nan


def test_nan_is_never_a_right_answer() -> None:
    run = fk.train("fedavg", model=NanInEvaluation(5, 3), data=federation(), rounds=1, executor="serial")
    assert run.accuracy == 0
    last = run.history.final()
    assert last is not None
    assert math.isnan(last.loss)


def test_a_score_that_is_nan_decides_for_no_class() -> None:
    nan = torch.full((2, 1), math.nan)
    targets = torch.tensor([0, 1])
    assert not squared_hinge().correct(nan, targets).any()
    assert not cross_entropy.correct(nan.expand(2, 2), targets).any()


def test_a_model_in_which_the_fast_way_fails_trains_and_says_so() -> None:
    """``view`` does not take images in channels_last."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(27, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.conv(x).view(-1, 27))
            return out

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2, 5, 5)).astype(np.float32), np.arange(12) % 3
    data = from_clients([(x, y)], test=(x, y))
    with pytest.warns(UserWarning, match="plain autograd is used"):
        run = fk.train("fedavg", model=Viewing(), data=data, rounds=2, executor="serial")
    assert "view" in run.notices[0]
    assert math.isfinite(run.accuracy)
