"""Files of records: what is kept of a run for good, as JSON with one line for each field.

So a change of one field is a change of one line. What a record holds is decided by those who keep them (``papers``,
``tuning``); a file that is damaged, of another version or under another's name is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from fedkeel.algorithms.validate import Settings, checked
from fedkeel.errors import DataError, InputError
from fedkeel.runs.atomic import write_atomically

R = TypeVar("R", bound=Settings)
FORMAT = 1
"""Version of the form of records."""
RECORDS = "records"
"""The folder of records inside a working folder."""


def read_record(path: Path, kind: type[R]) -> R:
    """A record from its file."""
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise ValueError("it is no record, or one of another version of fedkeel")
        return checked("record", kind, table)
    except (OSError, ValueError) as error:  # InputError is a ValueError
        raise DataError(
            f"the record {path} cannot be used: {error}; restore it, or remove it to run it again."
        ) from None


def write_record(path: Path, record: Settings) -> Path:
    """Put a record into its file, in the place of an earlier one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json(record))
    except OSError as error:
        raise InputError(
            f"the record {path} cannot be written: {error.strerror}; make room, or choose another folder."
        ) from None
    return path


def as_json(record: Settings) -> str:
    """One line for each field."""
    fields = record.model_dump(mode="json")
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
