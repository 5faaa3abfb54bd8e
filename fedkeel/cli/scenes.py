"""The demo's scenes: each of the five papers in its own setting, made small, beside a method that it claims to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.runs.history import History


@dataclass(frozen=True)
class Scene:
    """One paper."""

    algorithm: str
    baseline: str
    claim: str
    """What the paper says, as a sentence."""
    small: str
    """Its setting here, and how that was made small."""
    rounds: int
    settings: Mapping[str, Any]
    """Everything else, as an experiment file would hold it."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The algorithm's own."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """What the baseline's training needs to be told beyond that."""

    @property
    def titles(self) -> tuple[str, str]:
        """The method and what it is compared with, as they are written in print."""
        return ALGORITHMS[self.algorithm].title, ALGORITHMS[self.baseline].title

    def experiments(self, rounds: int, seed: int) -> list[dict[str, Any]]:
        """The method's run and the baseline's, of so many rounds at most."""
        training = {**self.settings["training"], "rounds": min(rounds, self.rounds)}
        common = {**self.settings, "seed": seed, "run": {"executor": "pool"}, "training": training}
        own = {"name": self.algorithm, **self.params}
        other = {**common, "training": {**training, **self.beside}}
        return [{**common, "algorithm": own}, {**other, "algorithm": {"name": self.baseline}}]


_DIGITS = {"name": "mnist5k"}
_UNIT = {"name": "mnist5k", "normalise": "unit"}

SCENES = (
    Scene(
        "fedgvrgm",
        "fedavg",
        "the loss falls faster where clients differ and only a few take part",
        "Table III with 50 clients, Dirichlet 0.5·p, 10 of them a round, 10 epochs; a 2NN, η = 0.003",
        15,
        {
            "data": _DIGITS,
            "partition": {"rule": "dirichlet", "clients": 50, "alpha": 0.5, "concentration": "alpha_p"},
            "model": {"name": "2nn"},
            "training": {"participation": 0.2, "epochs": 10, "batch_size": 20, "lr": 0.003},
        },
    ),
    Scene(
        "fedveca",
        "fednova",
        "steps chosen for each client need fewer rounds",
        "Table I with 5 clients, Case 3, all in every round, η = 0.01; softmax regression, about equal steps for both",
        40,
        {
            "data": _UNIT,
            "partition": {"rule": "fedveca_case3", "clients": 5},
            "model": {"name": "logistic"},
            "training": {"batch_size": 100, "lr": 0.01},
        },
        beside={"steps": 6},
    ),
    Scene(
        "gradma",
        "fedavg",
        "memory of the clients' gradients keeps learning where few take part",
        "Table 1 with 50 clients, ω = 0.1, 5 of them a round, 5 steps; a 2NN, η = 0.05",
        40,
        {
            "data": _DIGITS,
            "partition": {"rule": "dirichlet_classwise", "clients": 50, "alpha": 0.1, "cap": False, "two_each": True},
            "model": {"name": "2nn"},
            "training": {"participation": 0.1, "steps": 5, "batch_size": 64, "lr": 0.05},
        },
        {"beta1": 0.5, "beta2": 0.5, "m": 50},
    ),
    Scene(
        "feddc",
        "scaffold",
        "a drift of its own for every client needs fewer rounds than control variates alone",
        "Table 1 with 50 clients, Dirichlet 0.3, 15 % a round, 5 epochs, η = 0.1",
        20,
        {
            "data": _DIGITS,
            "partition": {"rule": "dirichlet", "clients": 50, "alpha": 0.3},
            "model": {"name": "2nn"},
            "training": {
                "participation": 0.15,
                "epochs": 5,
                "batch_size": 20,
                "lr": 0.1,
                "lr_decay": 0.998,
                "weight_decay": 1e-3,
                "clip": 10.0,
            },
        },
        {"alpha": 0.1},
    ),
    Scene(
        "fedpmvr",
        "fedavg",
        "averaged gradients in the last layers reach FedAvg's best sooner",
        "Table 2 with 10 clients, Dirichlet 0.1, all in every round, 2 epochs, η = 0.01; LeNet-5",
        8,
        {
            "data": _UNIT,
            "partition": {"rule": "dirichlet_classwise", "clients": 10, "alpha": 0.1, "cap": False},
            "model": {"name": "lenet5"},
            "training": {"epochs": 2, "batch_size": 32, "lr": 0.01, "momentum": 0.9},
        },
    ),
)


CLOSE = 0.005
"""Means of accuracies that differ by less are called the same: half a point is what another seed may turn."""


@dataclass(frozen=True)
class Outcome:
    """How a scene ended, of the method and its baseline: the mean accuracy over all rounds, and the last one."""

    mean: tuple[float, float]
    """Grows with how fast and how far a method learns, and does not hang on one lucky round."""
    final: tuple[float, float]
    whole: bool
    """Whether the scene had all its rounds."""

    @property
    def verdict(self) -> str:
        """What became of the claim."""
        if not self.whole:
            return "too few rounds to tell"
        ahead = self.mean[0] - self.mean[1]
        if abs(ahead) < CLOSE:
            return "no difference here"
        return "holds here" if ahead > 0 else "does not hold here"


def outcome(scene: Scene, own: History, baseline: History) -> Outcome:
    """The two runs of a scene side by side."""
    curves = [[point.accuracy for point in history.series() if point.round > 0] for history in (own, baseline)]
    means = [sum(curve) / len(curve) for curve in curves]
    return Outcome((means[0], means[1]), (curves[0][-1], curves[1][-1]), len(own.rounds) >= scene.rounds)
