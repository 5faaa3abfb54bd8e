"""Federated averaging of one weight, with the clients' losses (w − o_i)²: what a toy figure needs."""

from __future__ import annotations

from collections.abc import Sequence


def averaged(optima: Sequence[float], start: float, eta: float, steps: int, rounds: int) -> list[float]:
    """The global weight before the first and after every round of ``steps`` gradient steps at each client."""
    weights = [start]
    for _ in range(rounds):
        models = [weights[-1]] * len(optima)
        for _ in range(steps):
            models = [w - eta * 2 * (w - optimum) for w, optimum in zip(models, optima, strict=True)]
        weights.append(sum(models) / len(models))
    return weights


def optimum(optima: Sequence[float]) -> float:
    """The weight that minimises the clients' mean loss."""
    return sum(optima) / len(optima)
