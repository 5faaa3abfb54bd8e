"""Which algorithms may train their clients with another local optimiser than SGD."""

from __future__ import annotations

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS, is_registered
from fedkeel.engine.settings import Training
from fedkeel.errors import invalid
from fedkeel.learning.adam import Adam
from fedkeel.learning.loop import Sgd


def local_optimiser(training: Training, lr: float, max_move: float | None = None) -> Sgd:
    """The local optimiser of a round with the rate ``lr``; ``max_move`` limits how far it gets."""
    if training.optimiser == "sgd":
        return Sgd(lr, training.clip, training.weight_decay, training.momentum, max_move)
    coupled = training.weight_decay if training.optimiser == "adam" else 0.0
    adam = Adam(training.betas, training.eps, training.weight_decay - coupled)
    return Sgd(lr, training.clip, coupled, 0.0, max_move, adam)


def check_optimiser(algorithm: Algorithm, training: Training) -> None:
    """Refuse Adam where the derivation of an algorithm needs plain SGD."""
    if training.optimiser == "sgd" or takes_any(type(algorithm)):
        return
    hint = "If yours takes trained models as they are, say any_optimiser = True in its class."
    if is_registered(algorithm):
        names = ", ".join(sorted(name for name, known in ALGORITHMS.items() if takes_any(known)))
        hint = f"Of those that come with fedkeel, these take any: {names}."
    raise invalid(
        "training.optimiser",
        f"'sgd' with {algorithm.name}, which reads gradients off the steps of plain SGD",
        training.optimiser,
        hint,
    )


def takes_any(algorithm: type[Algorithm]) -> bool:
    """Whether an algorithm says ``any_optimiser``: one of somebody's own for itself, whatever it is derived from."""
    saying = next(cls for cls in algorithm.__mro__ if "any_optimiser" in vars(cls))
    own = not algorithm.__module__.startswith("fedkeel.")
    return algorithm.any_optimiser and not (own and saying.__module__.startswith("fedkeel."))
