"""What the system says of this process: the cores and the memory it may use; and a lock for what a process shares."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ASSUMED_MEMORY = 4 << 30
"""Bytes, where the system does not say how much memory there is."""


def cores() -> int:
    """The cores that this process may use, where the system keeps such a list, else all there are; at least one."""
    with suppress(AttributeError, OSError):  # macOS and Windows have no such list
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory() -> int:
    """The machine's memory in bytes; ``ASSUMED_MEMORY`` where the system does not tell."""
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf; others may not know the names
        pages = os.sysconf("SC_PHYS_PAGES")
        if pages > 0:
            return pages * os.sysconf("SC_PAGE_SIZE")
    return ASSUMED_MEMORY


class ProcessLock:
    """A lock for what all threads of a process share; whoever holds it may take it again.

    A process is forked with the locks as they are, but without the threads that would let them go. So a child begins
    with one that nobody holds.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and hold it."""
        lock = self._lock
        with lock:
            yield

    def _renew(self) -> None:
        self._lock = threading.RLock()
