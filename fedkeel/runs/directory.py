"""The directory of a run: configuration and environment as plain files beside the store, and the final model."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fedkeel import __version__
from fedkeel.engine.simulation import RunState, Simulation
from fedkeel.errors import InputError

CONFIGURATION = "experiment.toml"
ENVIRONMENT = "environment.json"
MODEL = "model.safetensors"
_RECORDED = ("torch", "numpy", "scipy", "pydantic", "safetensors")


def prepare(directory: Path, configuration: str) -> None:
    """Make the directory of a new run and write what it was started with."""
    if (directory / CONFIGURATION).exists():
        raise InputError(
            f"{directory} already holds a run; continue it with --resume, or choose another directory with --out."
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / CONFIGURATION, configuration)
        write_atomically(directory / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
    except OSError as error:
        raise InputError(
            f"the run directory {directory} cannot be written: {error.strerror}; choose another."
        ) from None


def environment() -> dict[str, Any]:
    """Versions and machine, so that a result can be placed later."""
    return {
        "fedkeel": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in _RECORDED},
    }


def export_model(simulation: Simulation, state: RunState, path: Path) -> None:
    """The global model as safetensors: ``module.load_state_dict(safetensors.torch.load_file(path))``."""
    tensors = simulation.task.state_dict(state.server.w, state.b)
    temporary = path.with_suffix(".tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    temporary.replace(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is either wholly there or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
