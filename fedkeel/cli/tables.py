"""Tables as text for other programs: names in them may come from anybody, so a text stays a text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkeel.errors import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a cell begins with that a spreadsheet may take for a formula."""

Row = Mapping[str, Any]
"""Values by column: text, numbers, or None; a column that lacks is empty."""


def as_csv_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """CSV with a header. Numbers are exact; nothing is an empty cell, a number that is none ``nan``.

    A text that a spreadsheet would compute gets an apostrophe before it.
    """
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow([_harmless(column) for column in columns])
    for row in rows:
        writer.writerow([_harmless(row.get(column)) for column in columns])
    return made.getvalue()


def as_markdown(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A Markdown table with numbers to six digits, for reading; nothing in a name becomes markup."""
    lines = [[_plain(column) for column in columns], ["---:"] * len(columns)]
    lines += [[_shown(row.get(column)) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA) else value)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else _plain(str(value))


def _plain(text: str) -> str:
    """Text as Markdown shows it again, in one cell."""
    return re.sub(r"([\\|`*_\[\]<>&~])", r"\\\1", printable(text))
