"""Values of a state as typed bytes with a checksum, and back; nothing that is read is ever executed or unpickled."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

ROWS, GONE = "rows", "gone"
"""In place of a type: a table of client rows that may be empty; a row that a kept round no longer has."""
_DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
}


class Encoded(NamedTuple):
    """A value as the database holds it."""

    dtype: str
    shape: str
    crc: int
    data: Any
    """Bytes, or a view of a tensor's own memory."""


def encode(key: Sequence[object], value: Any) -> Encoded:
    """A tensor, a number or a text under its key, which the checksum covers too: rows cannot change places."""
    if isinstance(value, Tensor):
        dtype, shape = str(value.dtype).removeprefix("torch."), json.dumps(list(value.shape))
        # A view, not a copy: SQLite copies once when it takes the blob.
        data: Any = value.detach().contiguous().numpy().reshape(-1).view(np.uint8).data
    else:
        dtype, shape, data = "json", "[]", json.dumps(value).encode()
    return Encoded(dtype, shape, checksum(key, dtype, shape, data), data)


def marker(key: Sequence[object], kind: str) -> Encoded:
    """A row without a value: ``ROWS`` or ``GONE``."""
    return Encoded(kind, "[]", checksum(key, kind, "[]", b""), b"")


def decode(key: Sequence[object], dtype: Any, shape: Any, crc: Any, data: Any) -> Any:
    """The value that ``encode`` was given, None for a marker; ``ValueError`` says in a few words what is wrong."""
    if not (isinstance(dtype, str) and isinstance(shape, str) and isinstance(data, bytes)):
        raise ValueError("its types are wrong")
    if checksum(key, dtype, shape, data) != crc:
        raise ValueError("its checksum does not fit")
    if dtype in (ROWS, GONE):
        return None
    if dtype == "json":
        return json.loads(data)
    if dtype not in _DTYPES:
        raise ValueError(f"its type is {dtype!r}")
    sizes = json.loads(shape)
    if not (isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)):
        raise ValueError(f"its shape is {shape!r}")
    kind = np.dtype(dtype)
    if math.prod(sizes) * kind.itemsize != len(data):
        raise ValueError(f"it has {len(data)} bytes for a shape of {shape}")
    return torch.from_numpy(np.frombuffer(data, dtype=kind).reshape(sizes).copy()).to(_DTYPES[dtype])


def checksum(key: Sequence[object], dtype: str, shape: str, data: Any) -> int:
    """CRC-32 of a value and everything that says what it is."""
    return zlib.crc32(data, zlib.crc32(json.dumps([*key, dtype, shape]).encode()))
