"""The directory of a run: configuration and environment as plain files beside the store, and the final model."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedkeel import __version__, arguments
from fedkeel.data.sources.files import regular
from fedkeel.engine.rounds import Rounds, RunState
from fedkeel.errors import DataError, FedkeelError, InputError, ModelError
from fedkeel.runs.atomic import remove_leftovers, replacing, write_atomically

CONFIGURATION = "experiment.toml"
ENVIRONMENT = "environment.json"
MODEL = "model.safetensors"
DIGEST = "sha256 of names, types, shapes and bytes"
"""The key of the digest in the metadata of a model file."""
RESEMBLES = 0.7
"""How much of that key a damaged one still has; keys of other programs have nothing like it."""
_RECORDED = ("torch", "numpy", "scipy", "pydantic", "safetensors")


def make(directory: Path) -> None:
    """The directory of a run, if it is not there yet."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the run directory {directory} cannot be made: {error.strerror}; choose another with --out."
        ) from None


def describe(directory: Path, configuration: str) -> None:
    """Write what the run goes on with, and where, for people and other programs; the store has its own copy."""
    remove_leftovers(directory)
    try:
        write_atomically(directory / CONFIGURATION, configuration)
        if not (directory / ENVIRONMENT).exists():
            write_atomically(directory / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
    except OSError as error:
        raise InputError(
            f"the run directory {directory} cannot be written: {error.strerror}; make room there, then go on with "
            "--resume, or choose another with --out."
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


def export_model(simulation: Rounds, state: RunState, path: Path) -> str:
    """The model that a run ends with as safetensors: ``fedkeel.load_model(module, path)`` reads it back.

    That is the global model, or the average over rounds where one is reported.

    The digest of its tensors stands in the file and is returned.
    """
    result = simulation.reported(state)
    tensors = simulation.task.state_dict(result.server.w, result.b)
    if not path.parent.is_dir():
        raise InputError(
            f"the model cannot be written to {path}: there is no folder {path.parent}; make it first, or choose "
            "another path."
        )
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"the model's {name!r} is {type(value).__name__}, not a tensor; safetensors has no place for it: "
                "use state_dict() and save it yourself, or return a tensor from get_extra_state."
            )
    digest = digest_of(tensors)
    try:
        with replacing(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, {DIGEST: digest})
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise ExportError(f"the model could not be written to {path}: {reason}") from None
    return digest


class ExportError(FedkeelError):
    """A model that could not be written; the rest of the sentence, what to do, depends on whose it is."""


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order of their names."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def check_model(path: Path) -> str:
    """The digest of the tensors in a safetensors file; ``DataError`` where they are not those that were written."""
    try:
        with safe_open(path, framework="pt") as stored:
            written = _written(stored.metadata() or {})
            digest = digest_of({name: stored.get_tensor(name) for name in stored.keys()})  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable safetensors file ({error}).") from None
    _require_digest(path, written, digest)
    return digest


def _written(metadata: Mapping[str, str]) -> str | None:
    """The digest in a model file; "" where its name is damaged, which must not make the file one without a digest."""
    if DIGEST in metadata or not get_close_matches(DIGEST, metadata, n=1, cutoff=RESEMBLES):
        return metadata.get(DIGEST)
    return ""


def _require_digest(path: str | Path, written: str | None, digest: str) -> None:
    if written is not None and written != digest:
        raise DataError(
            f"{path} is damaged: its tensors do not fit their digest; restore it, or let --resume write it."
        )


def load_model(module: nn.Module, path: str | Path) -> None:
    """Give a module the weights in a safetensors file, whose names, shapes and types must be the module's own.

    Nothing in such a file can be executed, and nothing is read before its header was checked against the module. Where
    the file has a digest, as those have that fedkeel writes, its tensors must fit it.
    """
    path = regular(arguments.path("path", path))
    expected = arguments.instance("module", module, nn.Module, "a torch.nn.Module").state_dict()
    for name, value in expected.items():
        if not isinstance(value, Tensor):
            raise ModelError(f"the model's {name!r} is {type(value).__name__}, not a tensor, and cannot be loaded.")
    try:
        with safe_open(path, framework="pt") as stored:
            names = set(stored.keys())
            for name in sorted(names ^ expected.keys()):
                where = "lacks" if name in expected else "has too much: there is no place for"
                raise ModelError(f"{path} does not fit the model: it {where} {name!r}.")
            for name, tensor in expected.items():
                got, wanted = stored.get_slice(name).get_shape(), list(tensor.shape)
                if got != wanted:
                    raise ModelError(
                        f"{path} does not fit the model: {name!r} must have the shape {wanted}, got {got}."
                    )
            loaded = {name: stored.get_tensor(name) for name in expected}
            written = _written(stored.metadata() or {})
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable safetensors file ({error}); pickles (.pt) are never read.") from None
    if written is not None:
        _require_digest(path, written, digest_of(loaded))
    for name, tensor in expected.items():
        if loaded[name].dtype != tensor.dtype:
            raise ModelError(
                f"{path} does not fit the model: {name!r} must be {tensor.dtype}, got {loaded[name].dtype}."
            )
    _check_ties(expected, loaded, path)
    expected.update(loaded)  # which has torch's versions of the layers as well
    module.load_state_dict(expected)


def _check_ties(expected: dict[str, Tensor], loaded: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a file with two values for one tensor that the module knows by two names."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in expected.items():
        if not tensor.numel():
            continue
        other = first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
        one, two = (loaded[which].reshape(-1).view(torch.uint8) for which in (other, name))
        if not torch.equal(one, two):
            raise ModelError(
                f"{path} does not fit the model, in which {other!r} and {name!r} are one tensor: it has two values."
            )
