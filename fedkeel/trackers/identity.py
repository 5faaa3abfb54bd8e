"""Under which id a tracking library knows a run, kept in the run's directory so that it goes on there."""

from __future__ import annotations

import re
from pathlib import Path

from fedkeel.runs.atomic import write_atomically


def known_id(directory: Path | None, name: str) -> str | None:
    """The id that a library gave a run; None where there is none."""
    if directory is None:
        return None
    try:
        text = _file(directory, name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return text if re.fullmatch(r"[0-9A-Za-z]{1,64}", text) else None


def keep_id(directory: Path | None, name: str, text: str) -> None:
    """Keep the id of a run that is on disk."""
    if directory is not None:
        write_atomically(_file(directory, name), f"{text}\n")


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}-id.txt"
