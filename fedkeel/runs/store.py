"""A run on disk: one SQLite file that holds a round wholly or not at all.

History tables (``rounds``, ``metrics``, ``clients``, ``events``) are plain and may be read by any SQLite client while
the run goes on. The ``tensors`` table holds the state that the next round depends on; of client rows only changed ones
are written. ``kept`` holds the states of earlier rounds from which a new run may start.

A committed round survives the death of the process (SIGKILL, out of memory). After a loss of power the file is whole,
but rounds of the last half minute or so may be missing: the log is not forced to disk after every round.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from fedkeel.algorithms.state import Rows, State, keep_row
from fedkeel.engine.simulation import RoundRecord, RunState
from fedkeel.errors import DataError, FedkeelError
from fedkeel.runs import schema
from fedkeel.runs.encoding import GONE, ROWS, checksum_of_rows, decode, encode, marker
from fedkeel.runs.history import History, Measured, RoundSummary
from fedkeel.runs.writeback import WriteBack

FILE = "run.sqlite"
NO_CLIENT = -1
PAGE = 65536
"""Bytes of a page: the largest, because a vector of 0.8 MB then is 13 pages of the log instead of 195."""
CACHE = 32 << 20
"""Bytes of changed pages before SQLite writes some to the log early: a round of ten client vectors should fit."""
SMALLEST = 512
"""Bytes of the smallest page that SQLite knows; a file is 0 or more pages."""
PATIENCE = 30
"""Seconds to wait for somebody else's write lock."""


class StoreError(FedkeelError):
    """A round could not be written."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    time: str
    round: int
    kind: str
    """started, resumed, changed, forked, stopped, finished, fault, migrated, …"""
    text: str


class Store:
    """The database of one run."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._db = connection
        self._saved: dict[tuple[str, str], Rows] = {}
        self._write_back = WriteBack(directory / FILE)

    @classmethod
    def create(
        cls, directory: Path, configuration: str = "", origin: tuple[Store, RunState] | None = None, text: str = ""
    ) -> Store:
        """A new store, in one transaction with the configuration that the run is started with.

        ``origin`` makes it begin as a copy of another run: the history of that store up to the state, and the state.
        """
        path = directory / FILE
        try:
            with _readable(path, but=sqlite3.OperationalError), _closed_on_error(_connect(path)) as connection:
                store = cls(directory, connection)
                if schema.version(connection) is not None:
                    raise DataError(f"{path} holds a run already; continue it with --resume, or choose another folder.")
                with store._transaction():
                    schema.create(store._db)
                    store._put_meta("configuration", configuration)
                    schema.add_event(store._db, "started", 0, text)
                    if origin is not None:
                        store._copy(*origin)
        except sqlite3.OperationalError as error:
            raise StoreError(f"{path} cannot be made: {error}; make room there, or choose another folder.") from None
        return store

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The store of an earlier run, to go on with it; brought to this version's schema where it is older."""
        path = directory / FILE
        if not holds_run(directory):
            raise DataError(f"there is no run in {directory} (no {FILE}); check the path, or start without --resume.")
        with _readable(path), _closed_on_error(_connect(path)) as connection:
            store = cls(directory, connection)
            complaint = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if complaint != "ok":
                raise ValueError(complaint.splitlines()[-1])
            if schema.version(store._db) == "1":
                with store._transaction():
                    schema.migrate_from_1(store._db, _text_beside(directory))
            store._require_schema(path)
        return store

    @classmethod
    def reading(cls, directory: Path) -> Store:
        """The store of a run that may be going on: reads only, and sees whole rounds only."""
        path = directory / FILE
        if not path.is_file():
            raise DataError(f"there is no run in {directory} (no {FILE}); check the path.")
        with _readable(path), _closed_on_error(_connect_reading(path)) as connection:
            store = cls(directory, connection)
            store._require_schema(path)
        return store

    def close(self) -> None:
        self._write_back.finish()
        # SQLite tidies its log away at the last close; where the disk is full, the next opening does.
        with suppress(sqlite3.Error):
            self._db.close()

    def commit(
        self,
        state: RunState,
        record: RoundRecord | None,
        summary: RoundSummary | None,
        measured: Iterable[Measured],
        client_scores: Iterable[tuple[int, str, float, float]] = (),
        keep: bool = False,
    ) -> None:
        """Write a round and the state after it in one transaction (without a record: the state before round 1).

        ``keep`` also keeps this state, so that a new run may start from it when this one has gone on.
        """
        saved = dict(self._saved)
        try:
            with self._transaction():
                if summary is not None:
                    self._insert("rounds", [list(astuple(summary))])
                if record is not None:
                    drifts = record.drifts or (None,) * len(record.cohort)
                    each = zip(record.cohort, record.steps, record.losses, drifts, strict=True)
                    self._insert("clients", [[record.t, *row] for row in each])
                    for fault in record.faults:
                        detail = f": {fault.detail}" if fault.detail else ""
                        schema.add_event(self._db, fault.kind, record.t, f"client {fault.client}{detail}")
                self._insert("metrics", [list(astuple(m)) for m in measured])
                self._insert("client_metrics", [[state.t, *row] for row in client_scores])
                schema.add_check(self._db, state.t)
                self._write_state(state, saved)
                if keep:
                    self._keep(state.t)
        except sqlite3.Error as error:
            raise self._failure(f"round {state.t}", error) from None
        self._saved = saved
        self._write_back.after_commit()

    def event(self, kind: str, text: str, round: int | None = None) -> None:
        """Note what happened; by default after the last committed round."""
        try:
            with self._transaction():
                schema.add_event(self._db, kind, self.rounds_done() if round is None else round, text)
        except sqlite3.Error as error:
            raise self._failure(f"the event {kind!r}", error) from None

    def put_meta(self, key: str, value: str) -> None:
        """Keep one of the run's texts."""
        try:
            with self._transaction():
                self._put_meta(key, value)
        except sqlite3.Error as error:
            raise self._failure(f"the value {key!r}", error) from None

    def change_configuration(self, text: str, changes: Iterable[str]) -> None:
        """Go on with another configuration, and note each change."""
        try:
            with self._transaction():
                self._put_meta("configuration", text)
                for change in changes:
                    schema.add_event(self._db, "changed", self.rounds_done(), change)
        except sqlite3.Error as error:
            raise self._failure("the configuration", error) from None

    def rounds_done(self) -> int:
        """The last committed round."""
        with _readable(self.directory / FILE):
            return int(self._db.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()[0])

    def history(self, until: int | None = None) -> History:
        """Everything measured, up to and including a round; every row is checked against its checksum."""
        with _readable(self.directory / FILE):
            checks = dict(self._db.execute("SELECT round, crc FROM checks"))
            found = schema.rows_by_round(self._db)
            for round in checks.keys() | found.keys():
                if checks.get(round) != checksum_of_rows(found.get(round)):
                    raise ValueError(f"the numbers of round {round} do not fit their checksum")
            last = math.inf if until is None else until
            rounds = self._db.execute("SELECT * FROM rounds WHERE round <= ? ORDER BY round", (last,))
            metrics = self._db.execute("SELECT * FROM metrics WHERE round <= ? ORDER BY round, rowid", (last,))
            return History(
                [RoundSummary(*_floats(row)) for row in rounds], [Measured(*_floats(row)) for row in metrics]
            )

    def events(self) -> list[Event]:
        """The run's diary, oldest first."""
        with _readable(self.directory / FILE):
            return [Event(*row) for row in self._db.execute("SELECT time, round, kind, text FROM events ORDER BY id")]

    def configuration(self) -> str:
        """The configuration that the run goes on with, as TOML."""
        return self.meta("configuration") or ""

    def meta(self, key: str) -> str | None:
        """One of the run's texts: configuration, executor, parent, parent_round."""
        with _readable(self.directory / FILE):
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return None if found is None else str(found[0])

    def kept_rounds(self) -> list[int]:
        """Every round whose state can be read: the kept ones and the last."""
        with _readable(self.directory / FILE):
            kept = {int(row[0]) for row in self._db.execute("SELECT round FROM checkpoints")}
        return sorted(kept | {self.rounds_done()})

    def read_state(self, round: int | None = None) -> RunState | None:
        """The state after the last committed round, or after a kept one; None in an empty store."""
        with _readable(self.directory / FILE), self._snapshot():
            last = self.rounds_done()
            if round is None or round == last:
                rows = self._db.execute("SELECT owner, name, client, dtype, shape, crc, data FROM tensors")
                return self._assembled(rows, remember=True)
            if round not in self.kept_rounds():
                there = ", ".join(map(str, self.kept_rounds()))
                raise DataError(
                    f"the run in {self.directory} does not hold the state after round {round}; it holds those after "
                    f"{there} (run.checkpoint_every keeps more)."
                )
            latest = (
                "SELECT owner, name, client, dtype, shape, crc, data FROM kept AS k WHERE round = (SELECT max(round) "
                "FROM kept WHERE owner = k.owner AND name = k.name AND client = k.client AND round <= ?)"
            )
            return self._assembled(self._db.execute(latest, (round,)), remember=False)

    def _copy(self, source: Store, state: RunState) -> None:
        for table in schema.HISTORY_TABLES:
            rows = source._db.execute(f"SELECT * FROM {table} WHERE round <= ? ORDER BY rowid", (state.t,))
            self._insert(table, [list(row) for row in rows])
        self._put_meta("parent", str(source.directory))
        self._put_meta("parent_round", str(state.t))
        self._write_state(state, self._saved)
        schema.add_event(self._db, "forked", state.t, f"from round {state.t} of {source.directory}")

    def _assembled(self, rows: Iterable[tuple[Any, ...]], remember: bool) -> RunState | None:
        values: dict[str, dict[str, Any]] = {}
        for owner, name, client, dtype, shape, crc, data in rows:
            try:
                value = decode((owner, name, client), dtype, shape, crc, data)
            except ValueError as error:
                raise ValueError(f"the value {owner}.{name} is damaged, {error}") from None
            named = values.setdefault(owner, {})
            if dtype == ROWS:
                named.setdefault(name, {})
            elif client == NO_CLIENT:
                named[name] = value
            elif dtype != GONE:
                named.setdefault(name, {})[client] = keep_row(value)
        if not values:
            return None
        tables: dict[str, dict[str, Any]] = {
            o: {n: Rows(v) if isinstance(v, dict) else v for n, v in named.items()} for o, named in values.items()
        }
        if remember:
            self._saved = {(o, n): v for o, named in tables.items() for n, v in named.items() if isinstance(v, Rows)}
        try:
            engine, server = tables["engine"], tables["server"]
            ordered = State(**{name: server[name] for name in schema.server_order(self._db)})
            return RunState(int(engine["t"]), ordered, engine["b"], tables.get("client", {}), engine["client_buffers"])
        except KeyError as error:
            raise ValueError(f"the value {error} of the state is missing") from None

    def _write_state(self, state: RunState, saved: dict[tuple[str, str], Rows]) -> None:
        values: dict[tuple[str, str], Any] = {
            ("engine", "t"): state.t,
            ("engine", "b"): state.b,
            ("engine", "client_buffers"): state.client_buffers,
        }
        values |= {("server", name): value for name, value in state.server.items()}
        values |= {("client", name): rows for name, rows in state.clients.items()}
        for (owner, name), value in values.items():
            if isinstance(value, Rows):
                self._write_rows(owner, name, state.t, value, saved.get((owner, name)))
                saved[owner, name] = value
            else:
                self._write(owner, name, NO_CLIENT, state.t, encode((owner, name, NO_CLIENT), value))
        self._put_meta("server_order", json.dumps(list(state.server)))

    def _write_rows(self, owner: str, name: str, t: int, rows: Rows, before: Rows | None) -> None:
        """The rows that differ from those written before; unchanged ones are the same objects."""
        if before is None:
            self._write(owner, name, NO_CLIENT, t, marker((owner, name, NO_CLIENT), ROWS))
        old = before or Rows()
        for client, row in rows.changed_since(old):
            self._write(owner, name, client, t, encode((owner, name, client), row))
        gone = [(owner, name, client) for client in rows.gone_since(old)]
        self._db.executemany("DELETE FROM tensors WHERE owner = ? AND name = ? AND client = ?", gone)

    def _write(self, owner: str, name: str, client: int, t: int, encoded: Any) -> None:
        # An update in place: REPLACE would free and take anew all pages of a vector.
        self._db.execute(
            "INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, name, client) DO UPDATE SET "
            "round = excluded.round, dtype = excluded.dtype, shape = excluded.shape, crc = excluded.crc, "
            "data = excluded.data",
            (owner, name, client, t, *encoded),
        )

    def _keep(self, t: int) -> None:
        """Copy what changed since the last kept round, and mark what is gone since then."""
        last = self._db.execute("SELECT coalesce(max(round), -1) FROM checkpoints").fetchone()[0]
        self._db.execute(
            "INSERT INTO kept SELECT owner, name, client, ?, dtype, shape, crc, data FROM tensors WHERE round > ?",
            (t, last),
        )
        gone = self._db.execute(
            "SELECT owner, name, client FROM kept GROUP BY owner, name, client HAVING (SELECT dtype FROM kept AS k "
            "WHERE k.owner = kept.owner AND k.name = kept.name AND k.client = kept.client ORDER BY round DESC LIMIT 1) "
            f"<> '{GONE}' EXCEPT SELECT owner, name, client FROM tensors"
        ).fetchall()
        marked = [[*key, t, *marker(key, GONE)] for key in gone]
        self._insert("kept", marked)
        self._db.execute("INSERT INTO checkpoints VALUES (?)", (t,))

    def _insert(self, table: str, rows: list[list[Any]]) -> None:
        if rows:
            self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def _put_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _require_schema(self, path: Path) -> None:
        found = schema.version(self._db)
        if found == "1":
            raise DataError(f"{path} is of an earlier version (schema 1); continue that run once with --resume.")
        if found != str(schema.SCHEMA):
            raise DataError(f"{path} has format {found}, this version reads {schema.SCHEMA}; start a new run.")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite itself rolls back after some errors
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several queries that see the same round, while another process may commit the next."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _failure(self, what: str, error: sqlite3.Error) -> StoreError:
        try:
            last = str(self.rounds_done())
        except FedkeelError:
            last = "the one committed before"
        return StoreError(
            f"{what} could not be written to {self.directory / FILE}: {error}; the last whole round is {last}: make "
            "room or make the folder writable, then go on with --resume."
        )


def holds_run(directory: Path) -> bool:
    """Whether a directory holds a run, and not only the empty file of a process that was killed while starting one."""
    path = directory / FILE
    if not path.is_file():
        return False
    if 0 < path.stat().st_size < SMALLEST:  # SQLite would take it for an empty one
        raise DataError(f"{path} is not a readable run (it is cut short); restore it from a copy or start a new run.")
    with _readable(path), closing(_connect_reading(path)) as connection:
        return schema.version(connection) is not None


def rounds_done(directory: Path) -> int:
    """The last committed round of the run in a directory, 0 where there is none, whatever its schema."""
    if not holds_run(directory):
        return 0
    with _readable(directory / FILE), closing(_connect_reading(directory / FILE)) as connection:
        return int(connection.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()[0])


def _connect(path: Path) -> sqlite3.Connection:
    # No implicit transactions: every one is begun and ended by name above.
    with _closed_on_error(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA trusted_schema = OFF")  # a file from elsewhere may bring triggers and views
        connection.execute(f"PRAGMA cache_size = -{CACHE >> 10}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # WriteBack does
        return connection


def _connect_reading(path: Path) -> sqlite3.Connection:
    where = path.resolve().as_uri()
    try:
        reading = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=PATIENCE, isolation_level=None)
        with _closed_on_error(reading) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master")
            return connection
    except sqlite3.OperationalError:
        # A folder that cannot be written has no room for the index of a log. Without a log there is none to index.
        if path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{where}?immutable=1", uri=True, isolation_level=None)


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def _readable(path: Path, but: type[Exception] = FedkeelError) -> Iterator[None]:
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
        raise DataError(f"{path} is not a readable run ({error}); restore it from a copy or start a new run.") from None


def _text_beside(directory: Path) -> str:
    """The configuration of a run of schema 1, which stood only in the file beside the database."""
    try:
        return (directory / "experiment.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"the run in {directory} has no experiment.toml ({error.strerror}); put it back.") from None


def _floats(row: Iterable[Any]) -> list[Any]:
    """A row with the NaN that SQLite keeps as NULL."""
    return [float("nan") if value is None else value for value in row]
