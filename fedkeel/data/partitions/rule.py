"""What a partition rule is: a function from labels to index lists, and parameters that can be checked and listed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.errors import check_seed, invalid, unknown

Indices = npt.NDArray[np.int64]
PARTITION_STREAM = 0x7061727469746E  # second half of the Philox key, so that no other use of a seed shares these draws
REDRAWS = 2000  # whole draws before a rule gives up; each costs well under a millisecond per hundred clients


def generator(seed: int) -> np.random.Generator:
    """The counter-based generator of all partition draws for ``seed`` (0 .. 2⁶³ − 1)."""
    key = [check_seed("partition.seed", seed), PARTITION_STREAM]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))


@dataclass(frozen=True)
class Param:
    """A parameter of a rule: its name, the value it has unless given, what it means, and what is allowed."""

    name: str
    default: Any
    doc: str
    allowed: str
    ok: Callable[[Any], bool]

    def allows(self, value: Any) -> bool:
        """Whether a value, of any kind, is allowed."""
        try:
            return bool(self.ok(value))
        except (TypeError, ValueError, OverflowError):  # arrays, and whole numbers that no float can hold
            return False


@dataclass(frozen=True)
class Rule:
    """A named way to deal samples. ``deal(labels, clients, rng, **params)`` returns one index vector per client."""

    name: str
    doc: str
    deal: Callable[..., list[Indices]]
    params: tuple[Param, ...] = ()
    draws: bool = True
    """Whether the rule depends on a seed."""
    labels: bool = True
    """Whether the rule looks at labels."""

    def fill(self, given: dict[str, Any]) -> dict[str, Any]:
        """All parameters with their values, after checking the given ones."""
        known = {param.name: param for param in self.params}
        for name in given:
            if name not in known:
                raise unknown(f"parameter of partition {self.name!r}", name, sorted(known) or ["(it takes none)"])
        values = {}
        for param in self.params:
            value = plain(given.get(param.name, param.default))
            if not param.allows(value):
                raise invalid(f"partition.{param.name}", param.allowed, value)
            values[param.name] = value
        return values


def plain(value: Any) -> Any:
    """A numpy scalar as the Python value it stands for; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def number(value: object) -> bool:
    """Is it a finite number (and no boolean), not beyond those that have a fraction?"""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def whole(value: object, least: int) -> bool:
    """Is it a whole number of at least ``least``?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def positive(name: str, default: float, doc: str) -> Param:
    """A parameter that is a number above 0."""
    return Param(name, default, doc, "a number above 0", lambda v: number(v) and v > 0)


def switch(name: str, default: bool, doc: str) -> Param:
    """A parameter that is true or false."""
    return Param(name, default, doc, "true or false", lambda v: isinstance(v, bool))


SIGMA = Param(
    "sigma",
    0.0,
    "spread of the lognormal client sizes; 0 makes them equal, FedDC uses 0.3",
    "a number of at least 0",
    lambda v: number(v) and v >= 0,
)


def dirichlet(rng: np.random.Generator, concentration: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
    """``rows`` draws from Dir(concentration), [rows, k], also where the usual sampler under- or overflows.

    For a vanishing concentration the law tends to a random corner of the simplex, for a huge one to its mean.
    """
    with np.errstate(all="ignore"):
        draws = rng.dirichlet(concentration, rows)
    broken = ~np.isfinite(draws).all(axis=1) | (np.abs(draws.sum(axis=1) - 1) > 1e-6)
    if broken.any():
        if concentration.max() < 1:
            draws[broken] = np.eye(len(concentration))[rng.integers(0, len(concentration), broken.sum())]
        else:
            weights = concentration / concentration.max()  # the sum of huge values would overflow
            draws[broken] = weights / weights.sum()
    return draws
