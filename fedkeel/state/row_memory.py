"""Where clients' rows lie: in memory up to a budget, beyond it in a file that is mapped into memory.

Some algorithms remember a vector as large as the model for every client that was ever seen. What does not fit the
budget goes to slots of nameless files, whose pages the system loads when they are read and may drop again. Room in such
a file is taken before it is mapped, since a write to a mapped page for which the disk has no room ends the process.
Memory is handed out in slots in the same way, and used again: pages that are new to a process cost more than what is
written to them. A slot is free when the last tensor that looks at it is gone, so that rows stay values as everywhere.

A run has a memory of its own; threads may share one.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkeel.errors import FedkeelError
from fedkeel.system import memory

SEGMENT = 1 << 26
"""Memory and files are mapped in pieces of at most this many bytes (more where a single row is larger)."""
FIRST_FILE = 1 << 20
"""Bytes of the first file for rows of a size; every further one has twice as many, up to ``SEGMENT``."""
_ALIGNMENT = 64
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class RowSpaceError(FedkeelError):
    """There is no room on disk for further rows."""


@dataclass
class _Shelf:
    """Slots of one size, in memory or in files."""

    size: int
    on_disk: bool
    segments: list[mmap.mmap] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)
    """(segment, offset) of slots that were used before."""
    unused: int = 0
    """Where the unused slots of the last segment begin."""
    rows: int = 0
    """Slots in use."""

    @property
    def slot(self) -> int:
        return -(-self.size // _ALIGNMENT) * _ALIGNMENT


class RowMemory:
    """Copies of rows, the first ``budget`` bytes of them in memory, further ones in files in ``directory``."""

    def __init__(self, budget: int | None = None, directory: Path | None = None) -> None:
        self.budget = a_quarter_of_memory() if budget is None else budget
        self.directory = directory
        self._in_memory = 0
        self._on_disk = 0
        self._shelves: dict[tuple[int, bool], _Shelf] = {}
        self._lock = threading.Lock()
        self._returned: deque[tuple[_Shelf, int, int]] = deque()
        """Slots that nobody looks at any more and that are not counted as free yet."""
        _memories.add(self)

    @property
    def in_memory(self) -> int:
        """Bytes of living rows in memory."""
        with self._lock:
            self._take_back()
            return self._in_memory

    @property
    def on_disk(self) -> int:
        """Bytes of living rows in files."""
        with self._lock:
            self._take_back()
            return self._on_disk

    def keep(self, row: Tensor) -> Tensor:
        """A copy of a row, which never changes."""
        return self.room(row).copy_(row)

    def room(self, like: Tensor) -> Tensor:
        """Memory for a row like this one, to be written once."""
        size = like.numel() * like.element_size()
        if size == 0:
            return torch.empty_like(like)
        with self._lock:
            self._take_back()
            on_disk = self._in_memory + size > self.budget
            shelf = self._shelves.setdefault((size, on_disk), _Shelf(size, on_disk))
            number, offset = shelf.free.pop() if shelf.free else self._next(shelf)
            self._count(shelf, 1)
            array = np.frombuffer(shelf.segments[number], dtype=np.uint8, count=size, offset=offset)
        # At the end of the program nothing has to be given back.
        weakref.finalize(array, self._release, shelf, number, offset).atexit = False
        # from_numpy holds on to the array for as long as any tensor or view looks at its memory.
        return torch.from_numpy(array).view(like.dtype).view(like.shape)

    def settle(self) -> None:
        """Let the system take the files' pages out of this process; they come back when they are read."""
        with self._lock:
            for shelf in self._shelves.values():
                for segment in shelf.segments if shelf.on_disk else []:
                    segment.madvise(mmap.MADV_DONTNEED)

    def _next(self, shelf: _Shelf) -> tuple[int, int]:
        """A slot that was never used."""
        if not shelf.segments or shelf.unused == len(shelf.segments[-1]):
            most = min(SEGMENT, FIRST_FILE << min(len(shelf.segments), 40)) if shelf.on_disk else SEGMENT
            length = max(most // shelf.slot, 1) * shelf.slot
            shelf.segments.append(self._file(length) if shelf.on_disk else _anonymous(length))
            shelf.unused = 0
        shelf.unused += shelf.slot
        return len(shelf.segments) - 1, shelf.unused - shelf.slot

    def _file(self, length: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(prefix="fedkeel-rows-", dir=self.directory) as file:
                _reserve(file.fileno(), length)
                return mmap.mmap(file.fileno(), length)
        except OSError as error:
            raise RowSpaceError(
                f"clients' vectors beyond {self.budget >> 20:,} MB go to a file in "
                f"{self.directory or tempfile.gettempdir()}, where {length:,} bytes more could not be had: "
                f"{error.strerror}; make room there, or allow more memory (run.memory_mb)."
            ) from None

    def _count(self, shelf: _Shelf, rows: int) -> None:
        shelf.rows += rows
        if shelf.on_disk:
            self._on_disk += rows * shelf.size
        else:
            self._in_memory += rows * shelf.size

    def _release(self, shelf: _Shelf, number: int, offset: int) -> None:
        """Called by Python whenever it collects a row: in any thread, also in the middle of the methods above."""
        self._returned.append((shelf, number, offset))
        if self._lock.acquire(blocking=False):  # otherwise whoever comes next takes it back
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        while self._returned:
            shelf, number, offset = self._returned.popleft()
            self._count(shelf, -1)
            shelf.free.append((number, offset))
            if shelf.rows == 0:  # another model is next, if any: its rows have another size
                self._shelves.pop((shelf.size, shelf.on_disk), None)


def _reserve(file: int, length: int) -> None:
    """Give a file its length, with room on disk for every byte."""
    try:
        os.posix_fallocate(file, 0, length)
    except AttributeError:  # not on every system
        _write_zeros(file, length)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
        _write_zeros(file, length)


def _write_zeros(file: int, length: int) -> None:
    zeros = bytes(min(length, 1 << 20))
    done = 0
    while done < length:
        done += os.pwrite(file, zeros[: length - done], done)


def _anonymous(length: int) -> mmap.mmap:
    """Memory that takes no space before it is written."""
    try:
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError(f"{length} bytes for clients' vectors") from None


def a_quarter_of_memory() -> int:
    """The budget where none is given, in bytes."""
    return memory() // 4


_memories: weakref.WeakSet[RowMemory] = weakref.WeakSet()


def _unlock_all() -> None:
    for each in _memories:
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A child has the locks as they were, but not the threads that would let them go.
    os.register_at_fork(after_in_child=_unlock_all)


_everywhere_else = RowMemory()
_current: ContextVar[RowMemory] = ContextVar("row_memory", default=_everywhere_else)


def current_memory() -> RowMemory:
    """The memory of the run that is going on in this thread, or the one for everything outside of runs."""
    return _current.get()


@contextmanager
def remember_within(budget: int | None, directory: Path | None = None) -> Iterator[RowMemory]:
    """Tables made in the ``with`` block keep at most ``budget`` bytes of rows in memory (None: a quarter of it).

    Further rows go to temporary files in ``directory``. Tables keep to the memory that they began with.
    """
    memory = RowMemory(budget, directory)
    before = _current.set(memory)
    try:
        yield memory
    finally:
        _current.reset(before)
