"""A piece of memory that parent and workers share, into which named tensors are laid one after the other.

Only where they lie travels between processes, never the tensors themselves. The memory is reserved, not used, until it
is written to, so that an arena may be generous.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 64


class ArenaFullError(Exception):
    """More was to be written than the arena holds; ``needed`` bytes would do."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"{needed} bytes needed")
        self.needed = needed

    def __reduce__(self) -> tuple[type[ArenaFullError], tuple[int]]:
        return (ArenaFullError, (self.needed,))


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Arena:
    """Shared memory of a fixed size, in one slot or several of the same size.

    Every ``write`` to a slot starts from its beginning again.
    """

    def __init__(self, size: int, slots: int = 1) -> None:
        self.size = -(-size // _ALIGNMENT) * _ALIGNMENT
        """Bytes of a slot."""
        self.slots = slots
        self._memory = mmap.mmap(-1, self.size * slots)

    def write(self, tensors: Mapping[str, Tensor | list[Tensor]], slot: int = 0) -> dict[str, Place]:
        """Lay the tensors down and say where they are within the slot; rows of a list become one tensor [K, ...]."""
        places, offset = {}, 0
        for name, value in tensors.items():
            row, rows = (value, ()) if isinstance(value, Tensor) else (value[0], (len(value),))
            places[name] = place = Place(offset, row.dtype, (*rows, *row.shape))
            offset += -(-torch.Size(place.shape).numel() * row.element_size() // _ALIGNMENT) * _ALIGNMENT
        if offset > self.size:
            raise ArenaFullError(offset)
        for name, value in tensors.items():
            target = self._view(places[name], slot)
            if isinstance(value, Tensor):
                target.copy_(value)
            else:
                for own, row in zip(target, value, strict=True):
                    own.copy_(row)
        return places

    def read(self, places: Mapping[str, Place], slot: int = 0) -> dict[str, Tensor]:
        """The tensors at these places, as views that the next ``write`` overwrites."""
        return {name: self._view(place, slot) for name, place in places.items()}

    def read_side_by_side(self, places: Mapping[str, Place], slots: int) -> dict[str, Tensor]:
        """The tensors at these places in the first slots, with the slots as first axis; views as of ``read``."""
        found = {}
        for name, place in places.items():
            one = self._view(place, 0)
            if one.numel() == 0:
                found[name] = one.expand(slots, *one.shape)
                continue
            rest = (self.size * self.slots - place.offset) // one.element_size()
            whole = torch.frombuffer(self._memory, dtype=place.dtype, count=rest, offset=place.offset)
            found[name] = whole.as_strided((slots, *one.shape), (self.size // one.element_size(), *one.stride()))
        return found

    def _view(self, place: Place, slot: int) -> Tensor:
        count = int(torch.Size(place.shape).numel())
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        start = slot * self.size + place.offset
        return torch.frombuffer(self._memory, dtype=place.dtype, count=count, offset=start).view(place.shape)
