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
    """Shared memory of a fixed size; every ``write`` starts from the beginning again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size)

    def write(self, tensors: Mapping[str, Tensor]) -> dict[str, Place]:
        """Lay the tensors down and say where they are."""
        places, offset = {}, 0
        for name, tensor in tensors.items():
            places[name] = Place(offset, tensor.dtype, tuple(tensor.shape))
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        if offset > self.size:
            raise ArenaFullError(offset)
        for name, tensor in tensors.items():
            if tensor.numel():
                self._view(places[name]).copy_(tensor)
        return places

    def read(self, places: Mapping[str, Place]) -> dict[str, Tensor]:
        """The tensors at these places, as views that the next ``write`` overwrites."""
        return {name: self._view(place) for name, place in places.items()}

    def _view(self, place: Place) -> Tensor:
        count = int(torch.Size(place.shape).numel())
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        return torch.frombuffer(self._memory, dtype=place.dtype, count=count, offset=place.offset).view(place.shape)
