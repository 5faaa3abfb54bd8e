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

from fedkeel.errors import FedkeelError

TESTED = "1.41"
RECORD = "fedkeel"
CONTENT = "letter"
KIND = "query"
"""Flower's word for a message that is neither training nor evaluation of its own kind."""
UNREACHABLE = (502, 503, 504)
PART = 0.05
"""Seconds after which a part of a message is asked for again that was announced and is still on its way."""
SHORT = 8 << 20
"""Bytes of the longest letter that travels in one piece; the gate takes twice as much."""


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
    """Bytes as Flower carries them: a short letter as one value, a long one as an array, which it cuts into pieces.

    Every part of a message is a request of its own, there and back, and an array has two parts more.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(data) <= SHORT:
        return RecordDict({RECORD: ConfigRecord({CONTENT: data})})
    array = Array(dtype="uint8", shape=(len(data),), stype="fedkeel.letter", data=data)
    return RecordDict({RECORD: ArrayRecord({CONTENT: array})})


def letter_in(message: Any) -> bytes:
    """The bytes that a message brings; ``NetworkError`` if it is none of ours."""
    from flwr.app import ArrayRecord, ConfigRecord

    record = message.content.get(RECORD) if message.has_content() else None
    whole = record[CONTENT] if isinstance(record, ConfigRecord) and list(record) == [CONTENT] else None
    if isinstance(whole, bytes):
        return whole
    if isinstance(record, ArrayRecord) and list(record) == [CONTENT]:
        return bytes(record[CONTENT].data)
    raise NetworkError("a message holds no letter of fedkeel's.")
