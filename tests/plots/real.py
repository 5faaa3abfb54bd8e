"""Tiny runs on real data, with everything that pictures and reports can show."""

from pathlib import Path
from typing import Any

from fedkeel import api, config

TABLE: dict[str, Any] = {
    "data": {"name": "mnist5k", "samples": 400, "client_test": 0.25},
    "partition": {"rule": "dirichlet", "clients": 4, "alpha": 0.5},
    "model": {"name": "logistic"},
    "training": {"rounds": 3, "steps": 2, "batch_size": 20},
    "evaluation": {"clients": True},
    "measure": {"every": 1},
    "clock": {"speed": 100.0, "speed_sigma": 1.0},
    "run": {"executor": "serial"},
    "algorithm": {"name": "fedavg"},
}


def make(folder: Path, sweep: dict[str, list[Any]] | None = None, **parts: Any) -> Path:
    """The runs of a sweep in a folder; ``parts`` take the place of the table's."""
    for experiment in config.expand({**TABLE, **parts, **({"sweep": sweep} if sweep else {})}, []):
        api.run(experiment, folder / experiment.label)
    return folder
