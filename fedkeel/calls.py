"""A call of ``fedkeel.train`` as data, so that the run in a directory goes on only with what it was begun with.

Data and model are objects there, not names: what of them can be compared is kept by ``runs.same_data`` and
``runs.same_model``.
"""

from __future__ import annotations

import tomllib
from typing import Any, Literal

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import is_registered
from fedkeel.algorithms.validate import Settings
from fedkeel.config import AlgorithmConfig, RunConfig, as_toml
from fedkeel.engine.clock import Clock
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.errors import shown
from fedkeel.measure.settings import Measuring
from fedkeel.runs.runner import Evaluation


class Call(Settings):
    """What ``fedkeel.train`` was told beside data and model."""

    made_by: Literal["fedkeel.train"] = "fedkeel.train"
    seed: int = 0
    algorithm: AlgorithmConfig = AlgorithmConfig()
    attributes: dict[str, str] = {}
    """What an algorithm object of one's own holds beside its parameters."""
    training: Training = Training()
    faults: Faults = Faults()
    robust: Robust = Robust()
    clock: Clock = Clock()
    evaluation: Evaluation = Evaluation()
    measure: Measuring = Measuring()
    run: RunConfig = RunConfig()

    @property
    def label(self) -> str:
        """A short name for tables."""
        return self.algorithm.name


def call_of(
    algorithm: Algorithm,
    seed: int,
    training: Training,
    faults: Faults,
    robust: Robust,
    clock: Clock,
    evaluation: Evaluation,
    measure: Measuring,
    run: RunConfig,
) -> Call:
    """The call as it is read back from its own text, so that only true differences are found later."""
    own = {} if is_registered(algorithm) else {k: shown(v) for k, v in vars(algorithm).items() if k != "params"}
    table = {
        "seed": seed,
        "algorithm": {"name": name_of(algorithm), **algorithm.params.model_dump(mode="json", exclude_none=True)},
        "attributes": own,
        "training": training,
        "faults": faults,
        "robust": robust,
        "clock": clock,
        "evaluation": evaluation,
        "measure": measure,
        "run": run,
    }
    return Call(**tomllib.loads(write(Call(**table))))


def name_of(algorithm: Algorithm) -> str:
    """Its registered name, or ``module:Class`` of one's own."""
    cls = type(algorithm)
    return str(algorithm.name) if is_registered(algorithm) else f"{cls.__module__}:{cls.__qualname__}"


def write(call: Call) -> str:
    """The call as TOML."""
    table: dict[str, Any] = call.model_dump(exclude_none=True)
    return as_toml(table)
