"""Pictures of pages that are drawn again only when what they show has changed.

A picture keeps the digest of its drawing in a text field of its own, so that other fonts or another version of the
converter on somebody's machine do not rewrite pictures whose data are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedkeel.theme import save_chart, specification

FIELD = b"fedkeel drawing"
NAMED_BY_CONTENT = re.compile(r"data-[0-9a-f]{32}")
"""Names that Altair gives data after all of their digits."""
HEAD = 8
"""Bytes before the first part of a PNG."""


def drawn(chart: Any, path: Path) -> Path:
    """A chart as a PNG, drawn unless the one that is there shows the same."""
    digest = digest_of(chart)
    if path.exists() and drawing_of(path.read_bytes()) == digest:
        return path
    save_chart(chart, path)
    path.write_bytes(_with_text(path.read_bytes(), FIELD + b"\0" + digest.encode()))
    return path


def digest_of(chart: Any) -> str:
    """Of all that a chart shows, and how, to six digits: another processor's last ones are no other picture."""
    drawing = dict(_rounded(specification(chart)))
    data = drawing.pop("datasets", {})
    text = json.dumps(drawing, sort_keys=True)
    in_their_order = dict.fromkeys(NAMED_BY_CONTENT.findall(text))
    others = {name: values for name, values in data.items() if name not in in_their_order}
    for number, name in enumerate(in_their_order):
        text = text.replace(name, f"data {number}")
    whole = [text, [data.get(name) for name in in_their_order], others]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
