"""fedkeel: federated learning on non-IID data.

    import fedkeel as fk

    fed = fk.data.load("mnist5k").partition("dirichlet", clients=50, alpha=0.3, seed=0)
    run = fk.train("feddc", model="2nn", data=fed, rounds=30, participation=0.2, epochs=5)

Names are imported when first used, so that ``import fedkeel`` itself does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedkeel import data, trackers
    from fedkeel.algorithms.contract import (
        Algorithm,
        AlgorithmParams,
        Clients,
        Law,
        Local,
        Paper,
        Problem,
        Round,
        Uploads,
    )
    from fedkeel.algorithms.registry import make_algorithm
    from fedkeel.algorithms.state import Message, State
    from fedkeel.api import Run, conformal, read_run, run, train
    from fedkeel.check import check_algorithm
    from fedkeel.engine.clock import Clock
    from fedkeel.engine.settings import Faults, Robust, Training
    from fedkeel.engine.simulation import Simulation
    from fedkeel.errors import DivergedError, FedkeelError
    from fedkeel.learning.staged import Staged
    from fedkeel.learning.task import Task
    from fedkeel.pages import report
    from fedkeel.plots import plot
    from fedkeel.progress_bar import progress
    from fedkeel.runs.directory import load_model

_HOMES = {
    "Algorithm": "fedkeel.algorithms.contract",
    "AlgorithmParams": "fedkeel.algorithms.contract",
    "Clients": "fedkeel.algorithms.contract",
    "Clock": "fedkeel.engine.clock",
    "DivergedError": "fedkeel.errors",
    "Faults": "fedkeel.engine.settings",
    "FedkeelError": "fedkeel.errors",
    "Law": "fedkeel.algorithms.contract",
    "Local": "fedkeel.algorithms.contract",
    "Message": "fedkeel.algorithms.state",
    "Paper": "fedkeel.algorithms.contract",
    "Problem": "fedkeel.algorithms.contract",
    "Robust": "fedkeel.engine.settings",
    "Round": "fedkeel.algorithms.contract",
    "Run": "fedkeel.api",
    "Simulation": "fedkeel.engine.simulation",
    "Staged": "fedkeel.learning.staged",
    "State": "fedkeel.algorithms.state",
    "Task": "fedkeel.learning.task",
    "Training": "fedkeel.engine.settings",
    "Uploads": "fedkeel.algorithms.contract",
    "check_algorithm": "fedkeel.check",
    "conformal": "fedkeel.api",
    "load_model": "fedkeel.runs.directory",
    "make_algorithm": "fedkeel.algorithms.registry",
    "plot": "fedkeel.plots",
    "progress": "fedkeel.progress_bar",
    "read_run": "fedkeel.api",
    "report": "fedkeel.pages",
    "run": "fedkeel.api",
    "train": "fedkeel.api",
}

__all__ = [
    "Algorithm",
    "AlgorithmParams",
    "Clients",
    "Clock",
    "DivergedError",
    "Faults",
    "FedkeelError",
    "Law",
    "Local",
    "Message",
    "Paper",
    "Problem",
    "Robust",
    "Round",
    "Run",
    "Simulation",
    "Staged",
    "State",
    "Task",
    "Training",
    "Uploads",
    "check_algorithm",
    "conformal",
    "data",
    "load_model",
    "make_algorithm",
    "plot",
    "progress",
    "read_run",
    "report",
    "run",
    "trackers",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in ("data", "trackers"):
        return importlib.import_module(f"fedkeel.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")
