"""Which algorithms may train their clients with another local optimiser than SGD."""

from __future__ import annotations

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import is_registered
from fedkeel.engine.settings import Training
from fedkeel.errors import invalid
from fedkeel.learning.adam import Adam
from fedkeel.learning.loop import Sgd

ANY_OPTIMISER = frozenset(
    {
        "centralised",
        "fedadagrad",
        "fedadam",
        "fedavg",
        "fedavgm",
        "fedbn",
        "feddyn",
        "fedmlb",
        "fedmlbm",
        "fedprox",
        "fedproxm",
        "fedyogi",
        "moon",
        "moonm",
    }
)
"""Algorithms that take a trained model as it is. All others read a gradient off the way of plain SGD: they divide by
η·K, project or average the gradients of steps, or say themselves how a step is taken."""


def local_optimiser(training: Training, lr: float, max_move: float | None = None) -> Sgd:
    """The local optimiser of a round with the rate ``lr``; ``max_move`` limits how far it gets."""
    if training.optimiser == "sgd":
        return Sgd(lr, training.clip, training.weight_decay, training.momentum, max_move)
    coupled = training.weight_decay if training.optimiser == "adam" else 0.0
    adam = Adam(training.betas, training.eps, training.weight_decay - coupled)
    return Sgd(lr, training.clip, coupled, 0.0, max_move, adam)


def check_optimiser(algorithm: Algorithm, training: Training) -> None:
    """Refuse Adam where the derivation of an algorithm needs plain SGD."""
    allowed = algorithm.name in ANY_OPTIMISER if is_registered(algorithm) else type(algorithm).any_optimiser
    if training.optimiser != "sgd" and not allowed:
        hint = f"Of those that come with fedkeel, these take any: {', '.join(sorted(ANY_OPTIMISER))}."
        if not is_registered(algorithm):
            hint = "If yours takes trained models as they are, say any_optimiser = True in its class."
        raise invalid(
            "training.optimiser",
            f"'sgd' with {algorithm.name}, which reads gradients off the steps of plain SGD",
            training.optimiser,
            hint,
        )
