"""What the digests of a run's database cover, and whether they still fit.

``checks`` has a row for every round: a sum over the rows of ``tensors`` after it, where the round was kept a sum over
the rows of ``kept``, and a digest over both, the round's rows in the history and the digest of the round before.
``seal`` has one row: the last round and its digest, and sums over ``meta`` and ``events``. The tables lie in different
pages, and each transaction renews the seal, so that one page of an earlier time does not fit the others. (A whole file
of an earlier time does: it is the run as it was then.)

Rows are read in the order of the tables themselves, never through an index: an index that is wrong can hide rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from fedkeel.runs.digests import DamagedError, Sum, chained
from fedkeel.runs.schema import HISTORY_TABLES, NAMED, columns_fit

Rows = dict[str, list[list[Any]]]
"""Rows by the table of the history that they are in."""
TENSOR_FIELDS = "owner, name, client, round, dtype, shape, crc"
"""What the sums over ``tensors`` and ``kept`` take of a row; its checksum stands for its bytes."""


@dataclass(frozen=True)
class Check:
    """What ``checks`` holds about a round."""

    round: int
    state: str
    """Sum over ``tensors`` after this round; "" where that was in another database."""
    kept: str | None
    """Sum over the rows of ``kept`` up to this round, if it was kept."""
    digest: str


@dataclass(frozen=True)
class Seal:
    """What ``seal`` holds: the last round (0 with the digest "" before the first commit), and sums."""

    round: int = 0
    digest: str = ""
    meta: str = Sum().text
    events: str = Sum().text

    @classmethod
    def read(cls, db: sqlite3.Connection) -> Seal:
        rows = db.execute("SELECT id, round, digest, meta, events FROM seal").fetchall()
        if len(rows) != 1 or not columns_fit(rows[0], "iittt"):
            raise DamagedError("the seal over its rounds is damaged")
        return cls(*rows[0][1:])

    def write(self, db: sqlite3.Connection) -> None:
        values = (self.round, self.digest, self.meta, self.events)
        db.execute("INSERT OR REPLACE INTO seal VALUES (1, ?, ?, ?, ?)", values)


def put_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    """Keep a text under a key, in the caller's transaction; nothing is written where it is there already."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found == (value,):
        return
    seal = Seal.read(db)
    total = Sum(seal.meta)
    if found is not None:
        total.remove(key, *found)
    total.add(key, value)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    replace(seal, meta=total.text).write(db)


def meta(db: sqlite3.Connection) -> dict[str, str]:
    """All texts of a run."""
    total, found = Sum(), {}
    for row in db.execute("SELECT key, value FROM meta NOT INDEXED"):
        if not columns_fit(row, "tt"):
            raise DamagedError("a setting is not a text")
        total.add(*row)
        found[row[0]] = row[1]
    if total.text != Seal.read(db).meta:
        raise DamagedError("the settings of the run do not fit their checksum")
    return found


def add_event(db: sqlite3.Connection, kind: str, round: int, text: str) -> None:
    """A line in the run's diary, in the caller's transaction."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    new = db.execute("INSERT INTO events (time, round, kind, text) VALUES (?, ?, ?, ?)", (now, round, kind, text))
    seal = Seal.read(db)
    total = Sum(seal.events)
    total.add(new.lastrowid, now, round, kind, text)
    replace(seal, events=total.text).write(db)


def events(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """The diary: time, round, kind, text."""
    rows = db.execute("SELECT id, time, round, kind, text FROM events NOT INDEXED ORDER BY rowid").fetchall()
    total = Sum()
    for row in rows:
        if not columns_fit(row, "ititt"):
            raise DamagedError("a line of the diary is damaged")
        total.add(*row)
    if total.text != Seal.read(db).events:
        raise DamagedError("the diary does not fit its checksum")
    return [row[1:] for row in rows]


def last_check(db: sqlite3.Connection) -> Check | None:
    """The row of ``checks`` that the next one builds on."""
    seal = Seal.read(db)
    if not seal.digest:
        return None
    found = db.execute("SELECT round, state, kept, digest FROM checks WHERE round = ?", (seal.round,)).fetchone()
    if found is None or found[3] != seal.digest:
        raise DamagedError("its last round does not fit the seal")
    return Check(*found)


def add_check(db: sqlite3.Connection, round: int, state: str, kept: str | None, rows: Rows) -> None:
    """The digest of a round whose rows were just written, in the caller's transaction."""
    seal = Seal.read(db)
    digest = _digest(seal.digest, round, state, kept, rows)
    db.execute("INSERT INTO checks VALUES (?, ?, ?, ?)", (round, state, kept, digest))
    replace(seal, round=round, digest=digest).write(db)


class Written:
    """The rows that a transaction adds to the history, as SQLite keeps them: NaN as NULL, numbers as columns want."""

    def __init__(self, db: sqlite3.Connection, named: bool) -> None:
        """``named`` says whether there will be any named values, which most rounds have not."""
        tables = [table for table in HISTORY_TABLES if named or table != NAMED]
        self._db = db
        self._before = {table: db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or -1 for table in tables}

    def rows(self) -> Rows:
        """Everything since this object was made, read back."""
        query = "SELECT * FROM {} NOT INDEXED WHERE rowid > ? ORDER BY rowid"
        found = {t: self._db.execute(query.format(t), (last,)).fetchall() for t, last in self._before.items()}
        return {table: [list(row) for row in rows] for table, rows in found.items()}


def walk(db: sqlite3.Connection) -> Iterator[tuple[Check, Rows]]:
    """Every round in order with its rows in the history, each compared with its digest.

    The last comparison comes after the last round, so go to the end before anything is believed.
    """
    streams = {table: _Stream(db, table) for table in HISTORY_TABLES}
    before, last = "", 0
    for row in db.execute("SELECT round, state, coalesce(kept, ''), digest FROM checks NOT INDEXED ORDER BY rowid"):
        if not columns_fit(row, "ittt"):
            raise DamagedError("a checksum is damaged")
        check = Check(row[0], row[1], row[2] or None, row[3])
        rows = {table: stream.of_round(check.round) for table, stream in streams.items()}
        if _digest(before, check.round, check.state, check.kept, rows) != check.digest:
            raise DamagedError(f"the numbers of round {check.round} do not fit their checksum")
        before, last = check.digest, check.round
        yield check, rows
    for table, stream in streams.items():
        if stream.round is not None:
            raise DamagedError(f"{table} has rows of round {stream.round}, which has no checksum")
    seal = Seal.read(db)
    if (seal.round, seal.digest) != (last, before):
        raise DamagedError(f"its last round is {last}, but its seal is that of round {seal.round} or damaged")


def sum_over(db: sqlite3.Connection, table: str, until: int | None = None) -> str:
    """The sum over ``tensors`` or ``kept``, all of it or up to a round."""
    total = Sum()
    for row in db.execute(f"SELECT {TENSOR_FIELDS} FROM {table} NOT INDEXED"):
        if until is None or row[3] <= until:
            total.add(*row)
    return total.text


class _Stream:
    """A table of the history, round by round."""

    def __init__(self, db: sqlite3.Connection, table: str) -> None:
        self._table, self._kinds = table, HISTORY_TABLES[table]
        rows = db.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY rowid")
        self._groups = groupby(rows, key=lambda row: row[0])
        self.round: Any = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self._next()

    def of_round(self, round: int) -> list[list[Any]]:
        """The rows of a round, none if the next ones are of another."""
        if self.round != round:
            return []
        rows = [list(row) for row in self._rows]
        for row in rows:
            if not columns_fit(row, self._kinds):
                raise DamagedError(f"a row of {self._table} in round {round} holds what it cannot")
        self._next()
        return rows

    def _next(self) -> None:
        self.round, self._rows = next(self._groups, (None, iter(())))


def _digest(before: str, round: int, state: str, kept: str | None, rows: Rows) -> str:
    # Most rounds have no named values, and those of schema 3 could have none: these digests know nothing of the table.
    covered = [table for table in HISTORY_TABLES if table != NAMED or rows.get(NAMED)]
    return chained(before, round, state, kept, [rows.get(table, []) for table in covered])
