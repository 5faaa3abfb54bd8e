"""Digests of rows: sums that follow a changing set, and a chain over rounds that only grow.

They find damage, not forgery: whoever can write a file can also write digests that fit it.
"""

from __future__ import annotations

import hashlib
import json

_BYTES = 16
_MODULUS = 1 << (8 * _BYTES)


class DamagedError(ValueError):
    """Rows and their digests do not fit."""


def entry(*fields: object) -> int:
    """128 bits that stand for one row, numbers and texts, in a sum."""
    return int.from_bytes(_hash(fields), "big")


class Sum:
    """A digest of a set of rows that is brought up to date by what comes and goes, in whatever order."""

    def __init__(self, text: str = "") -> None:
        """An empty set, or the one whose ``text`` was kept."""
        try:
            self._value = int(text or "0", 16)
        except ValueError:
            raise DamagedError("a checksum is damaged") from None

    def add(self, *fields: object) -> None:
        self._value = (self._value + entry(*fields)) % _MODULUS

    def remove(self, *fields: object) -> None:
        self._value = (self._value - entry(*fields)) % _MODULUS

    def include(self, other: Sum) -> None:
        """Add all rows of another set."""
        self._value = (self._value + other._value) % _MODULUS

    @property
    def text(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._value:0{2 * _BYTES}x}"


def chained(before: str, *parts: object) -> str:
    """The digest of a round, given that of the round before it ("" for the first): 32 hexadecimal digits."""
    return _hash((before, *parts)).hex()


def _hash(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=_BYTES).digest()
