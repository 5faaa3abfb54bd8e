"""How a database of an earlier version becomes one of this; all in the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from fedkeel.runs import ledger, schema
from fedkeel.runs.digests import Sum
from fedkeel.runs.encoding import GONE, checksum, marker


def migrate(db: sqlite3.Connection, found: str, configuration: Callable[[], str]) -> None:
    """From an earlier schema to this one; ``configuration`` reads what schema 1 kept in a file beside the database."""
    if found == "1":
        from_1(db, configuration())
    elif found == "2":
        from_2(db)
    else:
        from_3(db)


def from_1(db: sqlite3.Connection, configuration: str) -> None:
    """From schema 1, which knew no events and no checksums, and kept the configuration in a file beside it."""
    db.execute("ALTER TABLE tensors RENAME TO tensors_1")
    schema.execute_all(db, schema.SINCE_2 + schema.NAMED_4)
    done = _done(db)
    for owner, name, client, dtype, shape, data in db.execute(
        "SELECT owner, name, client, dtype, shape, data FROM tensors_1"
    ):
        crc = checksum((owner, name, client), dtype, shape, data)
        row = (owner, name, client, done, dtype, shape, crc, data)
        db.execute("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.execute("DROP TABLE tensors_1")
    _seal(db, [], configuration)
    ledger.add_event(db, "migrated", done, f"from schema 1 to {schema.SCHEMA}")


def from_2(db: sqlite3.Connection) -> None:
    """From schema 2, whose checksums did not know of each other; what they say is compared a last time."""
    checks = dict(db.execute("SELECT round, crc FROM checks NOT INDEXED"))
    found = _rows_by_round(db)
    for round in checks.keys() | found.keys():
        if checks.get(round) != zlib.crc32(json.dumps(found.get(round)).encode()):
            raise ValueError(f"the numbers of round {round} do not fit their checksum")
    for table in ("tensors", "kept"):
        query = f"SELECT owner, name, client, dtype, shape, crc, data FROM {table} NOT INDEXED"
        for owner, name, client, dtype, shape, crc, data in db.execute(query):
            if checksum((owner, name, client), dtype, shape, data) != crc:
                raise ValueError(f"the value {owner}.{name} is damaged, its checksum does not fit")
    kept = [int(row[0]) for row in db.execute("SELECT round FROM checkpoints NOT INDEXED ORDER BY rowid")]
    done = _done(db)
    _mark_gone(db, done)
    schema.execute_all(db, schema.NAMED_4)
    db.execute("DROP TABLE checks")
    db.execute("DROP TABLE checkpoints")
    _seal(db, kept)
    ledger.add_event(db, "migrated", done, f"from schema 2 to {schema.SCHEMA}")


def from_3(db: sqlite3.Connection) -> None:
    """From schema 3, which had no place for named values; its digests stay, once they were seen to fit."""
    schema.execute_all(db, schema.NAMED_4)
    for _ in ledger.walk(db):
        pass
    ledger.meta(db)
    ledger.events(db)
    ledger.put_meta(db, "schema", str(schema.SCHEMA))
    ledger.add_event(db, "migrated", _done(db), f"from schema 3 to {schema.SCHEMA}")


def _done(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()[0])


def _rows_by_round(db: sqlite3.Connection) -> dict[int, list[list[Any]]]:
    """What schema 2 covered with a checksum: of every round its row in ``rounds``, then those in ``metrics``."""
    found: dict[int, list[list[Any]]] = {}
    for table in ("rounds", "metrics"):
        for row in db.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY round, rowid"):
            found.setdefault(row[0], []).append(list(row))
    return found


def _mark_gone(db: sqlite3.Connection, done: int) -> None:
    """Schema 2 deleted a client's row that was dropped; now it is marked, so that the next kept round knows."""
    gone = db.execute(
        "SELECT owner, name, client FROM kept GROUP BY owner, name, client HAVING (SELECT dtype FROM kept AS k "
        "WHERE k.owner = kept.owner AND k.name = kept.name AND k.client = kept.client ORDER BY round DESC LIMIT 1) "
        f"<> '{GONE}' EXCEPT SELECT owner, name, client FROM tensors"
    ).fetchall()
    marked = [(*key, done, *marker(key, GONE)) for key in gone]
    db.executemany("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", marked)


def _seal(db: sqlite3.Connection, kept: Iterable[int], configuration: str | None = None) -> None:
    """Digests over what is there."""
    schema.execute_all(db, schema.CHECKS_3)
    stored = dict(db.execute("SELECT key, value FROM meta NOT INDEXED"))
    diary = db.execute("SELECT id, time, round, kind, text FROM events NOT INDEXED").fetchall()
    settings, events = Sum(), Sum()
    for pair in stored.items():
        settings.add(*pair)
    for row in diary:
        events.add(*row)
    ledger.Seal(meta=settings.text, events=events.text).write(db)
    ledger.put_meta(db, "schema", str(schema.SCHEMA))
    if configuration is not None:
        ledger.put_meta(db, "configuration", configuration)
    _add_checks(db, set(kept))


def _add_checks(db: sqlite3.Connection, kept: set[int]) -> None:
    rows: dict[int, ledger.Rows] = {}
    for table in schema.HISTORY_TABLES:
        for row in db.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY rowid"):
            rows.setdefault(row[0], {}).setdefault(table, []).append(list(row))
    state = ledger.sum_over(db, "tensors")
    there = db.execute("SELECT count(*) FROM tensors").fetchone()[0] > 0
    done = _done(db)
    for round in sorted(rows.keys() | kept | ({done} if there else set())):
        sums = ledger.sum_over(db, "kept", round) if round in kept else None
        ledger.add_check(db, round, state if round == done else "", sums, rows.get(round, {}))
