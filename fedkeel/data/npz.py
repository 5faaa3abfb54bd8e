"""Arrays out of an ``.npz`` file that nobody vouches for: types, shapes and sizes are checked before anything is read.

``np.load`` allocates what a header asks for; here a header has to agree with the bytes that the archive holds, and the
archive may not promise far more than it takes on disk.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fedkeel.data.sources.files import DAMAGE, regular
from fedkeel.errors import DataError

LARGEST = 8 << 30
"""Bytes of the largest array that is read."""
SWELLS = 100
"""Times that packed numbers may grow, where they grow to more than ``HARMLESS`` bytes; real data grow tenfold."""
HARMLESS = 256 << 20
CHUNK = 1 << 24
_NUMBERS = "buif"


def read_npz(path: Path, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """The named arrays, which must hold plain numbers; whatever else the file holds is not looked at."""
    regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return [_read(archive, name) for name in names]
    except DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} must be an .npz file with numeric arrays {' and '.join(names)}, but {reason}."
        ) from None


def _read(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > LARGEST:
        raise ValueError(f"{name} has {info.file_size:,} bytes, more than the {LARGEST:,} that are read")
    if info.file_size > max(HARMLESS, SWELLS * info.compress_size):
        raise ValueError(
            f"{name} would grow from {info.compress_size:,} to {info.file_size:,} bytes, as no real data do; if these "
            "do, save them with np.savez, which does not compress"
        )
    with archive.open(info) as member:
        shape, fortran, dtype = _header(member)
        if dtype.hasobject or dtype.kind not in _NUMBERS:
            raise ValueError(f"{name} holds {dtype}, not plain numbers")
        expected = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or expected > info.file_size:
            raise ValueError(f"{name} says that it holds {list(shape)} numbers, which its bytes do not")
        content = np.empty(expected, np.uint8)
        got = _fill(member, content.data)
        if got != expected or member.read(1):
            more = "more" if got == expected else f"{got:,}"
            raise ValueError(f"{name} should have {expected:,} bytes of numbers, got {more}")
    values = content.view(dtype).reshape(shape, order="F" if fortran else "C")
    return values.astype(dtype.newbyteorder("="), copy=False)


def _fill(member: IO[bytes], content: memoryview) -> int:
    """Read into memory that is there already; how many bytes came."""
    got = 0
    while block := member.read(min(CHUNK, len(content) - got)) if got < len(content) else b"":
        content[got : got + len(block)] = block
        got += len(block)
    return got


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(member)
    if version == (1, 0):
        return npy.read_array_header_1_0(member)
    if version == (2, 0):
        return npy.read_array_header_2_0(member)
    raise ValueError(f"the .npy format {version} is not read")
