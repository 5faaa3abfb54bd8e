"""Runs as earlier versions left them."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedkeel.runs.digests import Sum
from fedkeel.runs.ledger import Seal
from fedkeel.runs.store import FILE


def forget(directory: Path, key: str) -> None:
    """Take one of a run's texts away, and out of the sum over them."""
    with closing(sqlite3.connect(directory / FILE)) as db, db:
        row = db.execute("DELETE FROM meta WHERE key = ? RETURNING key, value", (key,)).fetchone()
        seal = Seal.read(db)
        total = Sum(seal.meta)
        total.remove(*row)
        replace(seal, meta=total.text).write(db)
