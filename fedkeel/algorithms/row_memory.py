"""Where clients' rows lie: in memory up to a budget, beyond it in a file that is mapped into memory.

Some algorithms remember a vector as large as the model for every client that was ever seen. What does not fit the
budget goes to slots of a sparse, nameless file, whose pages the system loads when they are read and may drop again.
A slot is free again when the last tensor that looks at it is gone, so that rows stay values as everywhere else. Memory
of rows is used again in the same way: pages that are new to a process cost more than what is written to them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
SEGMENT = 1 << 26
"""The file is mapped in pieces of this many bytes (more where a single row is larger)."""
_ALIGNMENT = 64
SPARE = 1 << 27
"""At most so many bytes of memory wait for rows to come, beside the budget."""


@dataclass
class _Shelf:
    """Slots of one size: the pieces of the file that hold them, and which slots are free."""

    slot: int
    segments: list[mmap.mmap] = field(default_factory=list)
    free: list[tuple[int, int]] = field(default_factory=list)
    """(segment, offset) of each."""


class RowMemory:
    """Copies of rows, the first ``budget`` bytes of them in memory, further ones in a file in ``directory``."""

    def __init__(self, budget: int, directory: Path | None = None) -> None:
        self.budget = budget
        self.directory = directory
        self.in_memory = 0
        """Bytes of living rows in memory."""
        self.on_disk = 0
        """Bytes of living rows in the file."""
        self.spare = 0
        """Bytes of memory that wait for rows."""
        self._shelves: dict[int, _Shelf] = {}
        self._waiting: dict[int, list[Bytes]] = {}

    def keep(self, row: Tensor) -> Tensor:
        """A copy of a row, which never changes."""
        return self.room(row).copy_(row)

    def room(self, like: Tensor) -> Tensor:
        """Memory for a row like this one, to be written once."""
        size = like.numel() * like.element_size()
        if size == 0:
            return torch.empty_like(like)
        array = self._piece(size) if self.in_memory + size <= self.budget else self._slot(size)
        # from_numpy holds on to the array for as long as any tensor or view looks at its memory.
        return torch.from_numpy(array).view(like.dtype).view(like.shape)

    def settle(self) -> None:
        """Let the system take the file's pages out of this process; they come back when they are read."""
        for shelf in self._shelves.values():
            for segment in shelf.segments:
                segment.madvise(mmap.MADV_DONTNEED)

    def _piece(self, size: int) -> Bytes:
        """Memory in which nobody looks any more, or new one."""
        waiting = self._waiting.get(size)
        if waiting:
            whole = waiting.pop()
            self.spare -= size
        else:
            whole = np.empty(size, dtype=np.uint8)
        array = whole[:]  # its end is that of everything that looks at the memory
        self.in_memory += size
        weakref.finalize(array, self._forget, whole)
        return array

    def _slot(self, size: int) -> Bytes:
        shelf = self._shelves.setdefault(size, _Shelf(-(-size // _ALIGNMENT) * _ALIGNMENT))
        if not shelf.free:
            self._extend(shelf)
        number, offset = shelf.free.pop()
        array = np.frombuffer(shelf.segments[number], dtype=np.uint8, count=size, offset=offset)
        self.on_disk += size
        weakref.finalize(array, self._release, shelf, number, offset, size)
        return array

    def _extend(self, shelf: _Shelf) -> None:
        length = max(SEGMENT // shelf.slot, 1) * shelf.slot
        with tempfile.TemporaryFile(prefix="fedkeel-rows-", dir=self.directory) as file:
            os.ftruncate(file.fileno(), length)  # sparse: takes no space before it is written
            shelf.segments.append(mmap.mmap(file.fileno(), length))
        shelf.free += [(len(shelf.segments) - 1, start) for start in range(length - shelf.slot, -1, -shelf.slot)]

    def _forget(self, whole: Bytes) -> None:
        self.in_memory -= whole.nbytes
        if self.spare + whole.nbytes <= SPARE:
            self._waiting.setdefault(whole.nbytes, []).append(whole)
            self.spare += whole.nbytes

    def _release(self, shelf: _Shelf, number: int, offset: int, size: int) -> None:
        self.on_disk -= size
        shelf.free.append((number, offset))


def a_quarter_of_memory() -> int:
    """The budget where none is given, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
