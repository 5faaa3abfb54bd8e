"""What the bits of a run depend on beside its configuration: how clients were grouped, and on which machine.

It is kept with the run. A resumed run keeps to what can be kept, and says what cannot: another processor, another
build of torch, other switches. A run that is started from the state of another is a new run, with a record of its own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedkeel.engine.choice import Auto, Choice
from fedkeel.engine.executors import Computing
from fedkeel.errors import DataError

KEY = "machine"
"""Under which the record stands in a store."""
_VARIABLES = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
)
"""Of the environment: each makes a library compute in another way."""
Value = TypeVar("Value")


class Machine(BaseModel):
    """Everything outside the configuration that can change a bit of a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    executor: str
    """The one that computes, which ``auto`` may have chosen."""
    lanes: int = Field(ge=1)
    """Workers for whom clients are grouped; there may be fewer processes."""
    processor: str
    capability: str
    """The vector instructions that torch uses."""
    architecture: str
    torch: str
    build: str
    """Digest of how torch was built."""
    numpy: str
    scipy: str
    device: str
    threads: int = Field(ge=1)
    dtype: str
    """What torch makes of a Python float."""
    precision: str
    """Of products of float32 matrices."""
    switches: str
    """Of torch: oneDNN on or off, deterministic algorithms, …"""
    variables: dict[str, str]


NAMES = {
    "processor": "processor",
    "capability": "instructions",
    "architecture": "architecture",
    "torch": "torch",
    "build": "build of torch",
    "numpy": "numpy",
    "scipy": "scipy",
    "device": "device",
    "threads": "threads",
    "dtype": "default dtype",
    "precision": "float32 matmul precision",
    "switches": "switches of torch",
    "variables": "variables of the environment",
}


def here(executor: Computing, device: torch.device) -> Machine:
    """This machine, as a run with this executor uses it."""
    return Machine(
        executor=taken(executor),
        lanes=executor.lanes,
        processor=_processor(),
        capability=torch.backends.cpu.get_cpu_capability(),
        architecture=f"{platform.machine()}, {sys.byteorder} endian, {platform.system()}",
        torch=torch.__version__,
        build=_build(),
        numpy=np.__version__,
        scipy=_scipy(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        precision=torch.get_float32_matmul_precision(),
        switches=_switches(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )


def taken(executor: Computing) -> str:
    """The name of the executor that computes: of ``auto``, the one that it chose."""
    choice = executor.choice if isinstance(executor, Auto) else None
    return executor.name if choice is None else choice.executor


def differences(was: Machine, now: Machine) -> list[str]:
    """What differs and can change bits, as people say it: ``torch 2.12.0, now 2.13.0``."""
    found = []
    for field, name in NAMES.items():
        before, after = getattr(was, field), getattr(now, field)
        if before != after and not (field == "build" and was.torch != now.torch):  # the version says it already
            found.append(f"{name} {_shown(before)}, now {_shown(after)}")
    return found


def warning(found: list[str], done: int) -> str:
    """The sentence for a run that goes on after ``done`` rounds although something differs."""
    return (
        f"the rounds up to {done} were computed on another machine or with other software ({'; '.join(found)}): the "
        "bits of later rounds may differ from those of a run that was not interrupted"
    )


def recorded(text: str, whose: Path) -> Machine:
    """The record that a store holds."""
    return _parsed(TypeAdapter(Machine), text, "machine", whose)


def chosen(text: str, whose: Path) -> Choice:
    """What ``auto`` chose, as a store holds it."""
    return _parsed(TypeAdapter(Choice), text, "executor", whose)


def _parsed(kind: TypeAdapter[Value], text: str, name: str, whose: Path) -> Value:
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise DataError(
            f"the record {name!r} of the run in {whose} is damaged ({reason}); restore the run from a copy or start a "
            "new one."
        ) from None


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return str(value)


@cache
def _scipy() -> str:
    return version("scipy")  # importing it would take longer


@cache
def _processor() -> str:
    """The model of the processor: libraries choose by it how they compute."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or "unknown")


@cache
def _build() -> str:
    """A digest of torch's own description, without the instructions, which have a field of their own."""
    lines = [line for line in torch.__config__.show().splitlines() if "CPU capability" not in line]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _switches() -> str:
    named = {
        "oneDNN": torch.backends.mkldnn.enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }
    return ", ".join(f"{name} {'on' if value else 'off'}" for name, value in named.items())
