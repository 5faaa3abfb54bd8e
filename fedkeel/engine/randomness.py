"""Every random draw of a run, each from a generator of its own.

A generator is a function of (seed, purpose, round, client), never of what was drawn before. So all algorithms see the
same cohorts and batches, a resumed run is the same run, and the number of workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream of random numbers is for. The values are part of the format: never renumber."""

    PARTITION = 1
    WEIGHTS = 2
    COHORT = 3
    BATCHES = 4
    AUGMENTATION = 5
    DROPOUT = 6
    PSEUDO_DATA = 7
    VALIDATION = 8
    FAULTS = 9
    EVALUATION = 10
    FEEDBACK = 11
    CLIENT_SCORES = 12
    LOSSES = 13
    SERVER = 14
    PREDICTION_SETS = 15
    MEASURE = 16
    BUCKETS = 17
    CLOCK = 18


class Moment(IntEnum):
    """Where in a round an algorithm works for the server. The values are part of the format: never renumber."""

    INIT = 0
    CLIENT_INIT = 1
    OPENING = 2
    AGGREGATE = 3
    CANDIDATES = 4
    OBSERVE = 5
    PERSONAL = 6
    CONTROLS = 7


def generator(seed: int, purpose: Purpose, round: int = 0, client: int = 0, part: int = 0) -> np.random.Generator:
    """A numpy generator for one purpose in one round at one client (counter-based: Philox)."""
    return np.random.Generator(np.random.Philox(key=[seed, int(purpose)], counter=[0, part, round, client]))


def torch_seed(seed: int, purpose: Purpose, round: int = 0, client: int = 0, part: int = 0) -> int:
    """A 63-bit seed for torch's own generator, keyed in the same way."""
    return int(generator(seed, purpose, round, client, part).integers(0, 2**63))


def part_seeds(seed: int, purpose: Purpose, round: int, client: int = 0) -> Callable[[int], int]:
    """The seeds of what a model draws while it is evaluated, by the number of the part of the samples."""
    return partial(torch_seed, seed, purpose, round, client)


def torch_generator(seed: int, purpose: Purpose, round: int = 0, client: int = 0) -> torch.Generator:
    """A torch generator for one purpose in one round at one client."""
    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))
