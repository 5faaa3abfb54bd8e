"""The tables of a run's database, and how a database of an earlier version becomes one of this."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from typing import Any

from fedkeel.runs.encoding import checksum, checksum_of_rows

SCHEMA = 2
"""Version of the tables below."""

_HISTORY = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, lr REAL, clients INTEGER, steps INTEGER, samples INTEGER,
    train_loss REAL, drift REAL, bytes_down INTEGER, bytes_up INTEGER, seconds REAL
);
CREATE TABLE metrics (
    round INTEGER, model TEXT, split TEXT, accuracy REAL, loss REAL, PRIMARY KEY (round, model, split)
);
CREATE TABLE clients (
    round INTEGER, client INTEGER, steps INTEGER, loss REAL, drift REAL, PRIMARY KEY (round, client)
);
CREATE TABLE client_metrics (
    round INTEGER, client INTEGER, split TEXT, accuracy REAL, loss REAL, PRIMARY KEY (round, client, split)
);
"""
# tensors: the state after the last round; `round` is the one that last changed a row.
# kept: the same rows as they were at kept rounds, each only where it changed since the kept round before.
# checks: a checksum over a round's rows in rounds and metrics.
_SINCE_2 = """
CREATE TABLE events (id INTEGER PRIMARY KEY, time TEXT NOT NULL, round INTEGER, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE checks (round INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE checkpoints (round INTEGER PRIMARY KEY);
CREATE TABLE tensors (
    owner TEXT, name TEXT, client INTEGER, round INTEGER, dtype TEXT, shape TEXT, crc INTEGER, data BLOB,
    PRIMARY KEY (owner, name, client)
);
CREATE TABLE kept (
    owner TEXT, name TEXT, client INTEGER, round INTEGER, dtype TEXT, shape TEXT, crc INTEGER, data BLOB,
    PRIMARY KEY (owner, name, client, round)
);
"""
HISTORY_TABLES = ("rounds", "metrics", "clients", "client_metrics", "checks")
"""Tables whose first column is a round and whose rows never change."""


def create(db: sqlite3.Connection) -> None:
    """All tables, inside the caller's transaction."""
    _execute_all(db, _HISTORY + _SINCE_2)
    db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))


def version(db: sqlite3.Connection) -> str | None:
    """The schema of a database; None for one without tables, as a process leaves that was killed while starting."""
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return None
    found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    return "unknown" if found is None else str(found[0])


def migrate_from_1(db: sqlite3.Connection, configuration: str) -> None:
    """Bring a database of schema 1, which knew no events and no checksums, to this one in the caller's transaction."""
    db.execute("ALTER TABLE tensors RENAME TO tensors_1")
    _execute_all(db, _SINCE_2)
    done = int(db.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()[0])
    for row in db.execute("SELECT owner, name, client, dtype, shape, data FROM tensors_1"):
        owner, name, client, dtype, shape, data = row
        crc = checksum((owner, name, client), dtype, shape, data)
        db.execute(
            "INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (owner, name, client, done, dtype, shape, crc, data)
        )
    db.execute("DROP TABLE tensors_1")
    for round in list(rows_by_round(db)):
        add_check(db, round)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('configuration', ?)", (configuration,))
    db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA),))
    add_event(db, "migrated", done, f"from schema 1 to {SCHEMA}")


def rows_by_round(db: sqlite3.Connection, only: int | None = None) -> dict[int, list[list[Any]]]:
    """What ``checks`` covers: of every round its row in ``rounds``, then those in ``metrics``, as SQLite keeps them."""
    found: dict[int, list[list[Any]]] = {}
    for table in ("rounds", "metrics"):
        query = f"SELECT * FROM {table} WHERE round = coalesce(?, round) ORDER BY round, rowid"
        for row in db.execute(query, (only,)):
            found.setdefault(row[0], []).append(list(row))
    return found


def add_check(db: sqlite3.Connection, round: int) -> None:
    """The checksum over what was just written of a round, read back, so that it is of what SQLite made of it."""
    rows = rows_by_round(db, round).get(round)
    if rows is not None:
        db.execute("INSERT INTO checks VALUES (?, ?)", (round, checksum_of_rows(rows)))


def add_event(db: sqlite3.Connection, kind: str, round: int, text: str) -> None:
    """A line in the run's diary."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    db.execute("INSERT INTO events (time, round, kind, text) VALUES (?, ?, ?, ?)", (now, round, kind, text))


def server_order(db: sqlite3.Connection) -> list[str]:
    """The names of the server's values in the order in which the algorithm made them."""
    found = db.execute("SELECT value FROM meta WHERE key = 'server_order'").fetchone()
    names = json.loads(found[0]) if found else None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("the list of the server's values is missing")
    return names


def _execute_all(db: sqlite3.Connection, statements: str) -> None:
    # Not executescript(), which would commit the caller's transaction first.
    for statement in statements.split(";"):
        if statement.strip():
            db.execute(statement)
