"""Where clients' rows lie: in memory up to a budget, beyond it in a file that is mapped into memory.

Some algorithms remember a vector as large as the model for every client that was ever seen. What does not fit the
budget goes to slots of a sparse, nameless file, whose pages the system loads when they are read and may drop again.
Memory is handed out in slots in the same way, and used again: pages that are new to a process cost more than what is
written to them. A slot is free when the last tensor that looks at it is gone, so that rows stay values as everywhere.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkeel.system import ProcessLock, memory

SEGMENT = 1 << 26
"""Memory and the file are mapped in pieces of this many bytes (more where a single row is larger)."""
_ALIGNMENT = 64
_SLOTS = ProcessLock()
"""Held while slots are handed out or taken back: runs in several threads share them."""


@dataclass
class _Shelf:
    """Slots of one size, in memory or in the file."""

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
    """Copies of rows, the first ``budget`` bytes of them in memory, further ones in a file in ``directory``."""

    def __init__(self, budget: int, directory: Path | None = None) -> None:
        self.budget = budget
        self.directory = directory
        self.in_memory = 0
        """Bytes of living rows in memory."""
        self.on_disk = 0
        """Bytes of living rows in the file."""
        self._shelves: dict[tuple[int, bool], _Shelf] = {}

    def keep(self, row: Tensor) -> Tensor:
        """A copy of a row, which never changes."""
        return self.room(row).copy_(row)

    def room(self, like: Tensor) -> Tensor:
        """Memory for a row like this one, to be written once."""
        size = like.numel() * like.element_size()
        if size == 0:
            return torch.empty_like(like)
        with _SLOTS.held():
            on_disk = self.in_memory + size > self.budget
            shelf = self._shelves.setdefault((size, on_disk), _Shelf(size, on_disk))
            number, offset = shelf.free.pop() if shelf.free else self._next(shelf)
            array = np.frombuffer(shelf.segments[number], dtype=np.uint8, count=size, offset=offset)
            self._count(shelf, 1)
        weakref.finalize(array, self._release, shelf, number, offset)
        # from_numpy holds on to the array for as long as any tensor or view looks at its memory.
        return torch.from_numpy(array).view(like.dtype).view(like.shape)

    def settle(self) -> None:
        """Let the system take the file's pages out of this process; they come back when they are read."""
        for shelf in list(self._shelves.values()):
            for segment in shelf.segments if shelf.on_disk else []:
                segment.madvise(mmap.MADV_DONTNEED)

    def _next(self, shelf: _Shelf) -> tuple[int, int]:
        """A slot that was never used."""
        length = max(SEGMENT // shelf.slot, 1) * shelf.slot
        if not shelf.segments or shelf.unused == length:
            shelf.segments.append(self._on_disk(length) if shelf.on_disk else _in_memory(length))
            shelf.unused = 0
        shelf.unused += shelf.slot
        return len(shelf.segments) - 1, shelf.unused - shelf.slot

    def _on_disk(self, length: int) -> mmap.mmap:
        with tempfile.TemporaryFile(prefix="fedkeel-rows-", dir=self.directory) as file:
            os.ftruncate(file.fileno(), length)  # sparse: takes no space before it is written
            return mmap.mmap(file.fileno(), length)

    def _count(self, shelf: _Shelf, rows: int) -> None:
        shelf.rows += rows
        if shelf.on_disk:
            self.on_disk += rows * shelf.size
        else:
            self.in_memory += rows * shelf.size

    def _release(self, shelf: _Shelf, number: int, offset: int) -> None:
        with _SLOTS.held():
            self._count(shelf, -1)
            shelf.free.append((number, offset))
            if shelf.rows == 0:  # another model is next, if any: its rows have another size
                self._shelves.pop((shelf.size, shelf.on_disk), None)


def _in_memory(length: int) -> mmap.mmap:
    """Memory that takes no space before it is written."""
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def a_quarter_of_memory() -> int:
    """The budget where none is given, in bytes."""
    return memory() // 4
