"""The tables of a run's database, and whether a file holds exactly them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache, lru_cache

SCHEMA = 4
"""Version of the tables that ``create`` makes."""

META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);"
_HISTORY = """
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
_TENSORS_1 = """
CREATE TABLE tensors (
    owner TEXT, name TEXT, client INTEGER, dtype TEXT, shape TEXT, data BLOB, PRIMARY KEY (owner, name, client)
);
"""
# tensors: the state after the last round; `round` is the one that last changed a row, also by marking it as gone.
# kept: the same rows as they were at kept rounds, each only where it changed since the kept round before.
SINCE_2 = """
CREATE TABLE events (id INTEGER PRIMARY KEY, time TEXT NOT NULL, round INTEGER, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE tensors (
    owner TEXT, name TEXT, client INTEGER, round INTEGER, dtype TEXT, shape TEXT, crc INTEGER, data BLOB,
    PRIMARY KEY (owner, name, client)
);
CREATE TABLE kept (
    owner TEXT, name TEXT, client INTEGER, round INTEGER, dtype TEXT, shape TEXT, crc INTEGER, data BLOB,
    PRIMARY KEY (owner, name, client, round)
);
"""
_CHECKS_2 = """
CREATE TABLE checks (round INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE checkpoints (round INTEGER PRIMARY KEY);
"""
# checks: of every round the sum over tensors, the sum over kept where the round was kept, and the digest of all that
# the round wrote and of the round before (fedkeel/runs/ledger.py).
# seal: one row about everything else: the last round and its digest, the sums over meta and events.
CHECKS_3 = """
CREATE TABLE checks (round INTEGER PRIMARY KEY, state TEXT NOT NULL, kept TEXT, digest TEXT NOT NULL);
CREATE TABLE seal (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, digest TEXT NOT NULL, meta TEXT NOT NULL, events TEXT NOT NULL
);
"""
# named_values: what has a name of its own. Of a model: metrics beside accuracy and loss, on a split. Of a client on a
# split: the same of what it would use. Without a split: what was noted of the round or of a client, and where its
# time went (``time.``).
# `client` is -1 where a value is of no client; `model` is empty where it is of no model.
NAMED_4 = """
CREATE TABLE named_values (
    round INTEGER, model TEXT, split TEXT, name TEXT, client INTEGER, value REAL,
    PRIMARY KEY (round, model, split, name, client)
);
"""
_VERSIONS = {
    "1": META + _HISTORY + _TENSORS_1,
    "2": META + _HISTORY + SINCE_2 + _CHECKS_2,
    "3": META + _HISTORY + SINCE_2 + CHECKS_3,
    str(SCHEMA): META + _HISTORY + SINCE_2 + CHECKS_3 + NAMED_4,
}
EARLIER = frozenset(_VERSIONS) - {str(SCHEMA)}
"""Versions that ``migration`` knows."""
NAMED = "named_values"
HISTORY_TABLES = {
    "rounds": "ifiiiffiif",
    "metrics": "ittff",
    "clients": "iiiff",
    "client_metrics": "iitff",
    NAMED: "itttif",
}
"""Tables whose first column is a round and whose rows never change; their columns: integer, float or NULL, text."""


def create(db: sqlite3.Connection) -> None:
    """All tables, inside the caller's transaction."""
    execute_all(db, _VERSIONS[str(SCHEMA)])


def identify(db: sqlite3.Connection) -> str | None:
    """The version of a database whose tables are exactly those of that version; before, nothing else of it is read.

    None for one without tables, as a process leaves that was killed while starting; the number alone for one of a later
    version. ``ValueError`` says what is foreign.
    """
    found = _objects(db)
    if not found:
        return None
    (meta,) = _expected(META)[:1]
    if meta not in found:
        raise ValueError("it has no table of a run's settings: it was made by something else")
    stored = db.execute("SELECT value FROM meta NOT INDEXED WHERE +key = 'schema'").fetchall()
    version = stored[0][0] if len(stored) == 1 else None
    if version not in _VERSIONS:
        if isinstance(version, str) and re.fullmatch(r"[1-9]\d{0,3}", version):
            return version
        raise ValueError("the version of its tables is missing")
    expected = _expected(_VERSIONS[version])
    for kind, name, _, _ in sorted(set(found) - set(expected), key=str):
        raise ValueError(f"the {str(kind)[:20]} {str(name)[:60]!r} in it is none of fedkeel's, and nothing was run")
    for _, name, _, _ in sorted(set(expected) - set(found), key=str):
        raise ValueError(f"the table {name!r} is missing")
    if len(found) != len(expected):
        raise ValueError("a table is there twice")
    return str(version)


def columns_fit(row: Iterable[object], kinds: str) -> bool:
    """Whether a row holds what its columns are for; SQLite itself takes anything anywhere."""
    types: dict[str, tuple[type, ...]] = {"i": (int,), "f": (float, type(None)), "t": (str,)}
    return all(type(value) in types[kind] for value, kind in zip(row, kinds, strict=True))


def execute_all(db: sqlite3.Connection, statements: str) -> None:
    # Not executescript(), which would commit the caller's transaction first.
    for statement in statements.split(";"):
        if statement.strip():
            db.execute(statement)


Object = tuple[object, object, object, object]
"""Kind, name, table and definition of something in a database."""


def _objects(db: sqlite3.Connection) -> list[Object]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return [(kind, name, table, _plain(sql)) for kind, name, table, sql in rows]


@cache
def _expected(statements: str) -> list[Object]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        execute_all(db, statements)
        return _objects(db)


@lru_cache(maxsize=256)
def _plain(sql: object) -> object:
    """A definition without the layout of its text."""
    return re.sub(r" ?([(),]) ?", r"\1", " ".join(sql.split())) if isinstance(sql, str) else sql
