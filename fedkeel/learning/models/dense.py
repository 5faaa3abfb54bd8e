"""Models of dense layers only. They flatten their input, so images and plain feature vectors both fit."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import nn

from fedkeel.errors import ModelError
from fedkeel.learning.models._shapes import Shape
from fedkeel.learning.staged import Staged


def svm(shape: Shape, classes: int) -> Staged:
    """The linear score wᵀx of a two-class support vector machine: ``[B, …] → [B, 1]``, no bias, w = 0.

    The sign is the class; the squared hinge and its λ/2‖w‖² belong to the loss.
    """
    if classes != 2:
        raise ModelError(f"it separates 2 classes, got {classes}; use 'logistic' for more, or labels even/odd")
    score = nn.Linear(prod(shape), 1, bias=False)
    nn.init.zeros_(score.weight)
    return Staged({"head": nn.Sequential(nn.Flatten(), score)})


def logistic(shape: Shape, classes: int) -> Staged:
    """Softmax regression: one dense layer."""
    return Staged({"head": nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))})


def linear_synth(shape: Shape, classes: int) -> Staged:
    """Softmax regression that starts at zero, so that every method starts from the same loss log(classes)."""
    model = logistic(shape, classes)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def mlp_2nn(shape: Shape, classes: int) -> Staged:
    """Two hidden layers of 200."""
    return _mlp(shape, (200, 200), classes)


def emnist_nn(shape: Shape, classes: int) -> Staged:
    """Two hidden layers of 100."""
    return _mlp(shape, (100, 100), classes)


def mlp_gradma(shape: Shape, classes: int) -> Staged:
    """Hidden layers of 200 and 100, each with batch normalisation."""
    return _mlp(shape, (200, 100), classes, normalise=True)


def _mlp(shape: Shape, hidden: tuple[int, ...], classes: int, *, normalise: bool = False) -> Staged:
    stages: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise((prod(shape), *hidden)), start=1):
        layers: list[nn.Module] = [nn.Flatten()] if number == 1 else []
        layers.append(nn.Linear(inputs, outputs))
        if normalise:
            layers.append(nn.BatchNorm1d(outputs))
        stages[f"fc{number}"] = nn.Sequential(*layers, nn.ReLU())
    stages["head"] = nn.Linear(hidden[-1], classes)
    return Staged(stages)
