"""Who takes part in a round, which samples each step sees, the learning rate: all keyed by (seed, round, client)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.settings import Training

RARE = 1e-3
"""Probability of a Bernoulli cohort that is not empty below which none are drawn in vain."""


class Schedule(Protocol):
    """What the engine asks for. ``RandomSchedule`` draws it; a recorded one replays a trace."""

    def lr(self, round: int) -> float:
        """η of a round."""

    def cohort(self, round: int, clients: int) -> list[int]:
        """The clients of a round, out of 0 … clients − 1, in the order in which the server meets them."""

    def batches(self, round: int, client: int, samples: int, steps: int) -> list[np.ndarray]:
        """For each step the positions, within the client's own samples, of its minibatch."""

    def pseudo_batches(self, round: int, client: int, samples: int) -> list[np.ndarray]:
        """The same for one more pass over the data, asked for by algorithms that make pseudo data of it."""


class RandomSchedule:
    """Cohorts and batches drawn from generators keyed by (seed, purpose, round, client)."""

    def __init__(self, training: Training, seed: int) -> None:
        self.training = training
        self.seed = seed

    def lr(self, round: int) -> float:
        training = self.training
        if training.lr_schedule == "step":
            return training.lr * training.lr_gamma ** (round // training.lr_every)
        if training.lr_schedule == "cosine":
            share = (1 + math.cos(math.pi * round / training.rounds)) / 2
            return training.lr_min + (training.lr - training.lr_min) * share
        return training.lr * training.lr_decay**round

    def cohort(self, round: int, clients: int) -> list[int]:
        share = self.training.participation
        if share == 1:
            return list(range(clients))
        rng = generator(self.seed, Purpose.COHORT, round)
        if self.training.sampling == "exact":
            chosen = rng.choice(clients, size=max(1, round_half_up(share * clients)), replace=False)
            return sorted(int(client) for client in chosen)
        somebody = -math.expm1(clients * math.log1p(-share))  # the probability that a cohort is not empty
        if somebody < RARE:
            return _first_and_others(rng, clients, share, somebody)
        while True:  # ends soon: empty cohorts are drawn anew, on average less than 1 / RARE times
            present = np.flatnonzero(rng.random(clients) < share)
            if len(present):
                return [int(client) for client in present]

    def batches(self, round: int, client: int, samples: int, steps: int) -> list[np.ndarray]:
        rng = generator(self.seed, Purpose.BATCHES, round, client)
        per_epoch = self.training.steps_per_epoch(samples)
        size = self.training.batch_size
        plan: list[np.ndarray] = []
        while len(plan) < steps:
            order = rng.permutation(samples)
            plan += [order[k * size : (k + 1) * size] for k in range(per_epoch)]
        return plan[:steps]

    def pseudo_batches(self, round: int, client: int, samples: int) -> list[np.ndarray]:
        order = generator(self.seed, Purpose.PSEUDO_DATA, round, client).permutation(samples)
        size = self.training.batch_size
        return [order[k * size : (k + 1) * size] for k in range(self.training.steps_per_epoch(samples))]


def _first_and_others(rng: np.random.Generator, clients: int, share: float, somebody: float) -> list[int]:
    """A Bernoulli cohort, given that it is not empty, without drawing empty ones.

    Its first client is j with probability share·(1 − share)^j / somebody; those after it come as ever.
    """
    first = min(int(math.log1p(-float(rng.random()) * somebody) / math.log1p(-share)), clients - 1)
    others = first + 1 + np.flatnonzero(rng.random(clients - first - 1) < share)
    return [first, *map(int, others)]


def round_half_up(value: float) -> int:
    """The nearest whole number, halves upwards (15 % of 10 clients is 2, not Python's even 2 or 1)."""
    return int(np.floor(value + 0.5 + 1e-9))
