"""What Flower needs before it is imported, and the few of its parts that the modules beside this one share.

Everything is meant for the one version that is tested (see constraints.txt): some of it is no public interface of
Flower's. ``require`` says so when another is installed.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedkeel.engine.wire import LARGEST
from fedkeel.errors import FedkeelError

TESTED = "1.41"
RECORD = "fedkeel"
CONTENT = "letter"
KIND = "query"
"""Flower's word for a message that is neither training nor evaluation of its own kind."""
UNREACHABLE = (502, 503, 504)
PART = 0.05
"""Seconds after which a part of a message is asked for again that was announced and is still on its way."""
PIECE = 8 << 20
"""Bytes of a letter that travel in one piece; the gate takes twice as much."""


class NetworkError(FedkeelError):
    """The network, or somebody in it, does not do what it should."""


def require() -> None:
    """Refuse to go on without Flower, or with one that nothing was tested with."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise NetworkError("networks need Flower: pip install 'fedkeel[flower]'.") from None
    if not found.startswith(f"{TESTED}."):
        raise NetworkError(
            f"networks need flwr {TESTED}.*, got {found}: install it with pip install 'flwr=={TESTED}.0'."
        )


def environment(home: Path) -> dict[str, str]:
    """The variables under which Flower sends nothing to its makers, opens no other port, and keeps its files in
    ``home``."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_INTERNAL_GRPC_CONTROL_API": "0",
        "FLWR_INTERNAL_GRPC_FLEET_API": "0",
    }


def prepare(home: Path) -> None:
    """Set this process up for Flower, before it is imported."""
    require()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ.update(environment(home))
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def content(data: bytes) -> Any:
    """Bytes as Flower carries them, in pieces: every part of a message is a request of its own, there and back."""
    from flwr.app import ConfigRecord, RecordDict

    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)] or [b""]
    return RecordDict({f"{RECORD}-{number}": ConfigRecord({CONTENT: piece}) for number, piece in enumerate(pieces)})


def message_of(name: str, parts: dict[str, bytes]) -> Any:
    """The message of a name, made of its parts as they were fetched.

    Only the kinds of parts that ``content`` makes are read. Flower also knows arrays, of which a few bytes can say that
    one piece stands in them a million times.
    """
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_object_type_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    kinds = {get_object_type_from_object_content(part) for part in parts.values()}
    if kinds != {"Message", "RecordDict", "ConfigRecord"}:
        raise NetworkError(f"a message of {', '.join(sorted(kinds))} is no letter of fedkeel's")
    message = inflate_object_from_contents(name, parts)
    if not isinstance(message, Message):
        raise NetworkError("a message turned out to be none")
    message.metadata.__dict__["_message_id"] = name  # a message does not carry its own name
    return message


def letter_in(message: Any, largest: int = LARGEST) -> bytes:
    """The bytes that a message brings; ``NetworkError`` if it is none of ours."""
    from flwr.app import ConfigRecord

    if not message.has_content():
        raise NetworkError("a message holds nothing")
    pieces, size = [], 0
    for number in range(len(message.content)):
        record = message.content.get(f"{RECORD}-{number}")
        piece = record[CONTENT] if isinstance(record, ConfigRecord) and list(record) == [CONTENT] else None
        if not isinstance(piece, bytes):
            raise NetworkError("a message holds no letter of fedkeel's")
        size += len(piece)
        if size > largest:  # one piece may stand in it many times, and has taken room but once so far
            raise NetworkError(f"a letter has more than the {largest:,} bytes that are read")
        pieces.append(piece)
    return b"".join(pieces)
