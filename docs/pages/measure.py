"""One measured round of every algorithm: what it sends and keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.state import PerClient
from fedkeel.check import tiny_simulation
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.task import Score
from fedkeel.state.rows import Rows


@dataclass(frozen=True)
class Case:
    """A setting whose traffic and state are measured."""

    label: str = "default"
    params: Mapping[str, Any] = field(default_factory=dict)
    norm: bool = False
    observations: int = 0
    """Equal accuracies observed before the round, so that their gain is zero."""


CASES: dict[str, tuple[Case, ...]] = {
    "scaffold": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case("`option = 1`", {"option": 1}),
    ),
    "feddyn": (Case(), Case('`evaluate` with `"all"`', {"evaluate": ("global", "all")})),
    "feddc": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`mode = "literal"`', {"mode": "literal"}),
        Case('`evaluate` with `"all"`', {"evaluate": ("global", "all")}),
    ),
    "fednova": (Case(), Case("`gmf` above 0", {"gmf": 0.9})),
    "fedpvr": (Case(), Case('`traffic = "paper"`', {"traffic": "paper"})),
    "fedpmvr": (
        Case(),
        Case('`variant = "ema"` or `"repo"`', {"variant": "ema"}),
        Case('`variant = "step"`, `keep = true`', {"variant": "step", "keep": True}),
    ),
    "fedgvr": (
        Case("ε = 1 (the first h rounds)"),
        Case("ε < 1", {"h": 1}, observations=2),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
    ),
    "fedgvrgm": (
        Case("ε = 1 (the first h rounds)"),
        Case("ε < 1", {"h": 1}, observations=2),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`c_momentum = "heavy_ball"`', {"c_momentum": "heavy_ball"}),
    ),
    "fedveca": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`grad_norm = "current"`', {"grad_norm": "current"}),
    ),
    "gradma": (Case(), Case('`mode = "code"`, a model of six tensors', {"mode": "code"})),
    "gradma_w": (Case(), Case('`mode = "code"`', {"mode": "code"})),
    "moon": (Case(), Case("`buffer = 2`", {"buffer": 2})),
    "moonm": (Case(), Case("`buffer = 2`", {"buffer": 2})),
    "fedbn": (Case("a model with BatchNorm", norm=True), Case("a model without")),
}


class Amount(Counter[str]):
    """How many numbers, by unit: ``Amount({"d": 2, "1": 1})`` is 2d + 1."""

    def __str__(self) -> str:
        parts = [_times(count, unit) for unit, count in self.items() if count]
        return (parts[0].strip("()") if len(parts) == 1 else " + ".join(parts)) if parts else "0"


def _times(count: int, unit: str) -> str:
    if unit == "1":
        return str(count)
    if count == 1:
        return unit
    return f"{count} × {unit}" if " " in unit else f"{count}{unit}"


@dataclass(frozen=True)
class Sizes:
    """The lengths by which a measured tensor is known again."""

    d: int
    v: int
    """Coordinates of the algorithm's ``mask``; 0 without one."""
    norm: int
    """Coordinates of normalisation layers, d_BN."""
    N: int

    def unit(self, numbers: int) -> tuple[str, int]:
        """The unit in which a tensor of so many numbers is counted, and how many of them it has."""
        for unit, length in (("d", self.d), ("v", self.v), ("d_BN", self.norm), ("N", self.N), ("N²", self.N**2)):
            if length and numbers == length:
                return unit, 1
        if self.norm and numbers == self.d - self.norm:
            return "(d − d_BN)", 1
        for unit, length in (("d", self.d), ("N²", self.N**2)):
            if numbers and numbers % length == 0:
                return unit, numbers // length
        return "1", numbers

    def amount(self, value: Any) -> Amount:
        """What one named value of a message or a state holds."""
        if isinstance(value, Rows):
            total: Amount = Amount()
            for row in value.values():
                total.update(self.amount(row))
            each, count = next(iter(total.items()), ("d", 0))
            return Amount({f"N·{each}": 1}) if count == self.N else total
        if not isinstance(value, Tensor):
            return Amount({"1": 1})
        unit, count = self.unit(value.numel())
        return Amount({f"{unit} bits" if value.dtype == torch.bool and unit != "1" else unit: count})


@dataclass(frozen=True)
class Measured:
    """What one round of an algorithm sends and keeps."""

    case: Case
    sizes: Sizes
    bytes_down: float
    """Of one client, as the run records it."""
    bytes_up: float
    down: dict[str, Amount]
    up: dict[str, Amount]
    client: dict[str, Amount]
    server: dict[str, Amount]
    models: tuple[str, ...]
    """The models that an evaluation reports."""
    has_drift: bool


class _Keeps(Serial):
    """The reference executor, remembering the last round."""

    job: Job
    outcome: Outcome

    def run(self, job: Job) -> Outcome:
        self.job, self.outcome = job, super().run(job)
        return self.outcome


def measure(name: str, case: Case) -> Measured:
    """Run one round of a tiny federation in which everybody takes part."""
    executor = _Keeps()
    # No incomplete batches: one of a single sample has no statistics for BatchNorm.
    simulation = tiny_simulation(
        ALGORITHMS[name](**case.params), (12, 7, 20, 10, 16), case.norm, executor, drop_last=True
    )
    state = simulation.start()
    for _ in range(case.observations or int(simulation.algorithm.observes)):
        state = simulation.observe(state, Score(0.5, 1.0, 1))
    state, record = simulation.step(state)
    known = _sizes(simulation)
    K = len(record.cohort)
    down = {
        key: known.amount(value.rows[0] if isinstance(value, PerClient) else value)
        for key, value in executor.job.message.items()
    }
    return Measured(
        case,
        known,
        record.bytes_down / K,
        record.bytes_up / K,
        down,
        {key: known.amount(value[0]) for key, value in executor.outcome.message.items()},
        {key: known.amount(value) for key, value in simulation.algorithm.client_init(simulation.problem).items()},
        {key: known.amount(value) for key, value in state.server.items()},
        tuple(simulation.evaluate(state)),
        bool(record.drifts),
    )


def _sizes(simulation: Simulation) -> Sizes:
    layout, params = simulation.task.layout, simulation.algorithm.params
    v = int(layout.mask(params.mask).sum()) if isinstance(getattr(params, "mask", None), str) else 0
    return Sizes(layout.d, v, int(layout.mask("norm").sum()), simulation.federation.N)


def total(named: Mapping[str, Amount]) -> Amount:
    """All values together, vectors first."""
    added: Amount = Amount()
    for amount in named.values():
        added.update(amount)
    order = ["d", "(d − d_BN)", "N·d", "v", "d_BN", "N²", "N"]
    return Amount({unit: added[unit] for unit in [*order, *sorted(set(added) - {*order, "1"}), "1"] if added[unit]})


@cache
def measure_all(name: str) -> list[Measured]:
    """Every case of an algorithm."""
    return [measure(name, case) for case in CASES.get(name, (Case(),))]
