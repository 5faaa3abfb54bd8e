"""The executors by name."""

from __future__ import annotations

from fedkeel.engine.executors import Executor, Serial
from fedkeel.engine.pool import Pool
from fedkeel.errors import unknown

NAMES = ("serial", "pool")


def make_executor(name: str, workers: int | None = None) -> Executor:
    """An executor; ``workers`` is the number of processes of those that have several (default: one per core)."""
    if name == "serial":
        return Serial()
    if name == "pool":
        return Pool(workers)
    raise unknown("executor", name, list(NAMES))
