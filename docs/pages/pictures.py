"""Pictures of pages that are drawn again only when what they show has changed.

A picture keeps the digest of its drawing in a text field of its own, so that other fonts or another version of the
converter on somebody's machine do not rewrite pictures whose data are the same.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedkeel.theme import save_chart, specification

FIELD = b"fedkeel drawing"
HEAD = 8
"""Bytes before the first part of a PNG."""


def drawn(chart: Any, path: Path) -> Path:
    """A chart as a PNG, drawn unless the one that is there shows the same."""
    digest = hashlib.sha256(json.dumps(specification(chart), sort_keys=True).encode()).hexdigest()
    if path.exists() and drawing_of(path.read_bytes()) == digest:
        return path
    save_chart(chart, path)
    path.write_bytes(_with_text(path.read_bytes(), FIELD + b"\0" + digest.encode()))
    return path


def drawing_of(png: bytes) -> str | None:
    """The digest that a picture keeps."""
    for kind, content in _parts(png):
        name, _, text = content.partition(b"\0")
        if kind == b"tEXt" and name == FIELD:
            return text.decode("latin-1")
    return None


def _parts(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = HEAD
    while at + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _with_text(png: bytes, text: bytes) -> bytes:
    """The picture with one more text field, behind its header."""
    (length,) = struct.unpack_from(">I", png, HEAD)
    behind = HEAD + length + 12
    part = b"tEXt" + text
    return png[:behind] + struct.pack(">I", len(text)) + part + struct.pack(">I", zlib.crc32(part)) + png[behind:]
