"""Connections to a run's database that trust the file no more than they must.

A file from elsewhere may bring triggers, views or a tree of pages without an end, and any file may be damaged. So
nothing but the schema is read before ``schema.identify`` has compared it, and no query may take more steps than a sound
file of that size can need.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkeel.errors import DataError, FedkeelError

FILE = "run.sqlite"
PAGE = 65536
"""Bytes of a page: the largest, because a vector of 0.8 MB then is 13 pages of the log instead of 195."""
CACHE = 32 << 20
"""Bytes of changed pages before SQLite writes some to the log early: a round of ten client vectors should fit."""
PATIENCE = 30
"""Seconds to wait for somebody else's write lock."""
_STEPS = 100_000
"""Steps of SQLite's machine between two looks at how many there were."""
_STEPS_PER_BYTE = 8
"""More than any query here takes: reading a row takes two steps for each of its bytes at most."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection that may write; ``prepare_to_write`` comes after the schema was found to be ours."""
    # No implicit transactions: every one is begun and ended by name.
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    with closed_on_error(connection):
        _defend(connection)
    return connection


def prepare_to_write(connection: sqlite3.Connection) -> None:
    """The settings of a run that goes on; the first of them may already change the file."""
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{CACHE >> 10}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # WriteBack does


def connect_reading(path: Path) -> sqlite3.Connection:
    """A connection that reads only, also from a folder that cannot be written."""
    where = path.resolve().as_uri()
    try:
        reading = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=PATIENCE, isolation_level=None)
        with closed_on_error(reading) as connection:
            _defend(connection)
            connection.execute("SELECT count(*) FROM sqlite_master")
            return connection
    except sqlite3.OperationalError:
        # A folder that cannot be written has no room for the index of a log. Without a log there is none to index.
        if path.with_name(path.name + "-wal").exists():
            raise
        connection = sqlite3.connect(f"{where}?immutable=1", uri=True, isolation_level=None)
        with closed_on_error(connection):
            _defend(connection)
        return connection


def connect_scratch() -> sqlite3.Connection:
    """An empty database that is gone with its connection: in memory, or in a temporary file where it is large."""
    connection = sqlite3.connect("", isolation_level=None)
    with closed_on_error(connection):
        _defend(connection)
    return connection


def _defend(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 5),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    ):
        connection.setlimit(limit, value)


@contextmanager
def bounded(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Let queries take as many steps as a sound file of this size can need, and no more."""
    log = path.with_name(path.name + "-wal")
    size = sum(file.stat().st_size for file in (path, log) if file.exists())
    left = 10 + size * _STEPS_PER_BYTE // _STEPS

    def enough() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(enough, _STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if left < 0:
            raise ValueError("its pages lead in circles") from error
        raise
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Leave no connection behind where its first use fails."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def readable(path: Path, but: type[Exception] = FedkeelError) -> Iterator[None]:
    """Whatever a damaged database makes of a query becomes one sentence; ``but`` passes as it is."""
    try:
        yield
    except (but, FedkeelError):
        raise
    except (
        sqlite3.Error,
        sqlite3.Warning,
        ValueError,
        TypeError,
        OverflowError,
        UnicodeError,
        RecursionError,
    ) as error:
        reason = _brief(str(error))
        raise DataError(
            f"{path} is not a readable run ({reason}); restore it from a copy or start a new run."
        ) from None


def _brief(text: str) -> str:
    """A reason in one line: SQLite may quote from the file."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= 150 else plain[:150] + "…"
