"""The work that is measured: four models on data of MNIST's shape, 100 clients of which 10 train in a round.

Needs numpy and, for the models, torch, but nothing of the engine, so that scripts which measure other libraries can
use the same data and the same models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedkeel.errors import unknown

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.learning.staged import Staged

CLASSES, SIDE = 10, 28
LR = 0.1
WRONG_LABELS = 0.1
"""Share of training labels drawn anew: with them, gradients never come near zero, where arithmetic is slow."""
VARIANTS = 3
"""Prototypes per class, so that no linear model is perfect."""


@dataclass(frozen=True)
class Work:
    """One model to train."""

    name: str
    title: str
    model: str
    """Its name in the model zoo."""
    convolutional: bool


WORKS = {
    work.name: work
    for work in (
        Work("W1", "logistic regression 784-10", "logistic", convolutional=False),
        Work("W2", "2NN 784-200-200-10", "2nn", convolutional=False),
        Work("W3", "LeNet, conv 5×5 6 and 16, dense 120-84-10", "lenet_w3", convolutional=True),
        Work("W4", "CNN, conv 5×5 32 and 32, dense 256-10", "cnn_fedveca_mnist", convolutional=True),
    )
}


@dataclass(frozen=True)
class Size:
    """How much of it there is; the defaults are the benchmark's."""

    clients: int = 100
    samples: int = 600
    """Per client."""
    cohort: int = 10
    """Clients in a round."""
    batch: int = 50
    epochs: int = 5
    test: int = 10_000

    @property
    def steps(self) -> int:
        """SGD steps of a round, all clients together."""
        return self.cohort * self.epochs * -(-self.samples // self.batch)

    @property
    def samples_per_round(self) -> int:
        """Samples that go through training in a round."""
        return self.cohort * self.epochs * self.samples


FULL = Size()


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test data: pixels uint8 [n, 1, 28, 28], labels int64 [n]; client i holds the i-th run of rows."""

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.uint8]
    y_test: npt.NDArray[np.int64]


def find(name: str) -> Work:
    """A work by name, in capitals or not."""
    if name.upper() not in WORKS:
        raise unknown("work", name, list(WORKS))
    return WORKS[name.upper()]


def make_images(size: Size, seed: int = 0) -> Images:
    """Smooth prototypes of each class plus noise, about as dark as handwritten digits."""
    rng = np.random.default_rng(seed)
    frequencies = np.arange(4)[:, None]
    waves = np.cos(np.pi * frequencies * (np.arange(SIDE) + 0.5) / SIDE)
    shapes = np.einsum("cvij,ih,jw->cvhw", rng.standard_normal((CLASSES, VARIANTS, 4, 4)), waves, waves)
    shapes = shapes.clip(0) / np.abs(shapes).max(axis=(2, 3), keepdims=True)
    prototypes = (150 * shapes).astype(np.uint8)
    # The noise is a table of 256 levels looked up by random bytes: a tenth of the time of normal deviates.
    noise = (105 * np.linspace(0, 1, 256) ** 3).astype(np.uint8)

    def draw(n: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        y = rng.integers(0, CLASSES, n)
        x = prototypes[y, rng.integers(0, VARIANTS, n)]
        x += noise[rng.integers(0, 256, x.shape, dtype=np.uint8)]
        return x[:, None], y

    x, y = draw(size.clients * size.samples)
    x_test, y_test = draw(size.test)
    wrong = rng.random(len(y)) < WRONG_LABELS
    y[wrong] = rng.integers(0, CLASSES, int(wrong.sum()))
    return Images(x, y, x_test, y_test)


def make_model(work: Work, seed: int = 0) -> Staged:
    """The zoo's model with torch's usual initial weights (FedVeca's own, made for small steps, diverge at this η)."""
    import torch

    from fedkeel.learning import models

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.build(work.model)
        for layer in model.modules():
            reset: Any = getattr(layer, "reset_parameters", None)
            if reset is not None:
                reset()
    return model


def plain_model(work: Work, seed: int = 0) -> nn.Sequential:
    """The same layers and weights as one ``nn.Sequential``, as anybody would write it."""
    from torch import nn

    return nn.Sequential(*(layer for layer in make_model(work, seed).modules() if not list(layer.children())))
