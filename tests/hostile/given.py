"""What every kind of input needs: a folder, tiny data, and a word on what is given."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.check import tiny_federation
from fedkeel.data import Dataset, Federation
from fedkeel.errors import FedkeelError
from tests.hostile import values

_MUCH = {"steps", "epochs", "P", "tau_0", "tau_min", "tau_max", "workers"}
"""Numbers that ask for work or processes: what is run has few of either, what is only read has any."""

Give = Callable[[], object]


@dataclass(frozen=True)
class Input:
    """What is given, for people, and the act of giving it."""

    what: str
    give: Give


def clean_folder() -> Path:
    """The empty folder in which an input is given."""
    folder = Path(scratch())
    for old in folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    os.chdir(folder)
    return folder


@cache
def scratch() -> str:
    """One folder for all inputs of this process, in memory where there is such a place."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.mkdtemp(prefix="fedkeel-inputs-", dir=base)


def shown(value: object) -> str:
    """A value in ASCII, not too long."""
    try:
        text = ascii(value)
    except RecursionError:
        text = "deeply nested"
    return text if len(text) < 400 else text[:400] + "…"


def described(**given: Any) -> str:
    """Arguments by name."""
    return ", ".join(f"{name}={shown(value)}" for name, value in given.items())


@cache
def federation() -> Federation:
    """Five tiny clients."""
    return tiny_federation()


@cache
def dataset() -> Dataset:
    """Their data."""
    return federation().dataset


class _EnoughError(FedkeelError):
    """Two rounds are enough to see whether settings work."""


def watch(progress: Any) -> None:
    """Ends a training after two rounds."""
    if progress.round >= 2:
        raise _EnoughError("two rounds were enough")


def small(given: dict[str, Any]) -> dict[str, Any]:
    """Without demands that are honest but take long."""
    return {
        name: 3 if name in _MUCH and isinstance(value, int | float) and value > 3 else value
        for name, value in given.items()
    }


def replaced(rng: random.Random, given: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """A call with some arguments replaced or added."""
    changed = dict(given)
    for name in rng.sample(list(others), min(len(others), rng.choice((0, 1, 1, 1, 2, 3)))):
        changed[name] = values.anything(rng) if rng.random() < 0.7 else rng.choice(others[name])
    return changed


def write(folder: Path, text: str) -> Path:
    """An experiment file."""
    path = folder / "e.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path
