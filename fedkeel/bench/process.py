"""How long this process has lived and how much memory it and its children hold."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

SAMPLED_EVERY = 0.05


def age() -> float | None:
    """Seconds since the operating system started this process; None where it does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), in ticks since boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError):
        return None


def memory(pids: list[int]) -> int:
    """Bytes that processes hold together, shared pages counted once; where only RSS is known, its sum."""
    return sum(_proportional(pid) for pid in pids)


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except ProcessLookupError:
        return 0  # it ended meanwhile
    except OSError:
        if pid != os.getpid():
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def give_back() -> None:
    """Return freed memory to the system, where the C library can: what others used must not count as ours."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class PeakMemory:
    """Watches this process and its children while a block of code runs; ``bytes`` is the most that was seen."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._sample_on, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._watch.join()
        self._sample()

    def _sample_on(self) -> None:
        while not self._over.wait(SAMPLED_EVERY):
            self._sample()

    def _sample(self) -> None:
        children = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        self.bytes = max(self.bytes, memory([os.getpid(), *children]))
