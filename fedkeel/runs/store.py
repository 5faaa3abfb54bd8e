"""A run on disk: one SQLite file that holds a round wholly or not at all.

History tables (``rounds``, ``metrics``, ``clients``, ``named_values``, ``events``) are plain and may be read by any
SQLite client while the run goes on. The ``tensors`` table holds the state that the next round depends on; of client
rows only changed ones are written. ``kept`` holds the states of earlier rounds from which a new run may start. Whatever
is read is compared with digests (``ledger``) before it is believed.

A committed round survives the death of the process (SIGKILL, out of memory). After a loss of power the file is whole,
but rounds of the last half minute or so may be missing: the log is not forced to disk after every round.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.state import State
from fedkeel.engine.averaging import Averaged
from fedkeel.engine.names import TIMED, Noted
from fedkeel.engine.rounds import RunState
from fedkeel.engine.server import RoundRecord
from fedkeel.errors import DataError, FedkeelError
from fedkeel.learning.task import Score
from fedkeel.runs import ledger, migration, schema
from fedkeel.runs.connection import FILE as FILE
from fedkeel.runs.connection import (
    bounded,
    closed_on_error,
    connect,
    connect_reading,
    connect_scratch,
    prepare_to_write,
    readable,
)
from fedkeel.runs.digests import DamagedError, Sum
from fedkeel.runs.encoding import GONE, ROWS, Encoded, decode, encode, marker
from fedkeel.runs.fairness import fairness
from fedkeel.runs.history import History, Measured, RoundSummary
from fedkeel.runs.writeback import WriteBack
from fedkeel.state.rows import Rows, keep_row

NO_CLIENT = -1
MOST_CLIENTS = 1 << 30
SMALLEST = 512
"""Bytes of the smallest page that SQLite knows; a file is 0 or more pages."""


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


@dataclass(frozen=True)
class ClientRound:
    """What a client did in a round in which its upload counted."""

    round: int
    client: int
    steps: int
    loss: float
    """Mean local objective."""
    drift: float
    """‖y_i − w‖; NaN where it uploads no model."""


@dataclass(frozen=True)
class Beginning:
    """What a run's store holds from the start, or else there is no store."""

    configuration: str = ""
    text: str = ""
    """Of its first event."""
    records: Mapping[str, str] = field(default_factory=dict)
    """Texts by which a later resume knows data and model again."""
    changed: str | None = None
    """In what a fork differs from its parent beside its settings."""


@dataclass(frozen=True)
class ClientScore:
    """What a client would use after a round, on its own samples."""

    round: int
    client: int
    split: str
    """``test``: samples that it held out; ``train``: those that it trains on."""
    accuracy: float
    """In [0, 1]; NaN where no answer is right or wrong."""
    loss: float


class Store:
    """The database of one run."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._db = connection
        self._saved: dict[tuple[str, str], Rows] = {}
        self._write_back = WriteBack(directory / FILE)

    @classmethod
    def create(
        cls,
        directory: Path,
        beginning: Beginning | str = "",
        origin: tuple[Store, RunState] | None = None,
    ) -> Store:
        """A new store, in one transaction with what the run is started with (a text is its configuration).

        ``origin`` makes it begin as a copy of another run: the history of that store up to the state, and the state.
        """
        path, first = directory / FILE, Beginning(beginning) if isinstance(beginning, str) else beginning
        try:
            with readable(path, but=sqlite3.OperationalError), closed_on_error(connect(path)) as connection:
                store = cls(directory, connection)
                if schema.identify(connection) is not None:
                    raise DataError(f"{path} holds a run already; continue it with --resume, or choose another folder.")
                prepare_to_write(connection)
                with store._transaction():
                    schema.create(connection)
                    ledger.Seal().write(connection)
                    ledger.put_meta(connection, "schema", str(schema.SCHEMA))
                    for key, value in {"configuration": first.configuration, **first.records}.items():
                        ledger.put_meta(connection, key, value)
                    ledger.add_event(connection, "started", 0, first.text)
                    if origin is not None:
                        store._copy(*origin)
                    if first.changed is not None:
                        ledger.add_event(connection, "changed", store._last(), first.changed)
        except sqlite3.OperationalError as error:
            raise StoreError(f"{path} cannot be made: {error}; make room there, or choose another folder.") from None
        return store

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The store of an earlier run, to go on with it; brought to this version's schema where it is older.

        What SQLite itself keeps must be sound before anything is written through it: pages, free pages and indexes.
        """
        path = directory / FILE
        if not holds_run(directory):
            raise DataError(f"there is no run in {directory} (no {FILE}); check the path, or start without --resume.")
        with readable(path), closed_on_error(connect(path)) as connection:
            store = cls(directory, connection)
            with bounded(connection, path):
                found = schema.identify(connection)
                complaint = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
                if complaint != "ok":
                    raise DamagedError(complaint.splitlines()[-1])
            prepare_to_write(connection)
            if found in schema.EARLIER:
                with store._transaction():
                    migration.migrate(connection, str(found), lambda: _text_beside(directory))
            store._require_schema(path)
            with bounded(connection, path):
                ledger.meta(connection)
                ledger.events(connection)
        return store

    @classmethod
    def reading(cls, directory: Path, earlier: bool = True) -> Store:
        """The store of a run that may be going on: reads only, and sees whole rounds only.

        One of an earlier version is read from a temporary copy brought to this version's schema; its file stays as it
        is. Such a copy has digests that are as new as the copy: whoever is after digests says ``earlier=False``.
        """
        path = directory / FILE
        if not path.is_file():
            raise DataError(f"there is no run in {directory} (no {FILE}); check the path.")
        with readable(path), closed_on_error(connect_reading(path)) as connection:
            if earlier and (found := schema.identify(connection)) in schema.EARLIER:
                with closing(connection):
                    return cls(directory, _brought_here(connection, str(found), directory))
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
        measured: Sequence[Measured],
        client_scores: Sequence[tuple[int, str, Score]] = (),
        keep: bool = False,
    ) -> None:
        """Write a round and the state after it in one transaction (without a record: the state before round 1).

        ``keep`` also keeps this state, so that a new run may start from it when this one has gone on.
        """
        saved = dict(self._saved)
        with self._writing(f"round {state.t}"):
            named = _named_rows(state.t, record, measured, client_scores)
            written = ledger.Written(self._db, bool(named))
            if summary is not None:
                self._insert("rounds", [list(astuple(summary))])
            if record is not None:
                drifts = record.drifts or (None,) * len(record.cohort)
                each = zip(record.cohort, record.steps, record.losses, drifts, strict=True)
                self._insert("clients", [[record.t, *row] for row in each])
                for fault in record.faults:
                    detail = f": {fault.detail}" if fault.detail else ""
                    ledger.add_event(self._db, fault.kind, record.t, f"client {fault.client}{detail}")
            self._insert("metrics", [[m.round, m.model, m.split, m.accuracy, m.loss] for m in measured])
            each_score = [[state.t, client, split, s.accuracy, s.loss] for client, split, s in client_scores]
            self._insert("client_metrics", each_score)
            self._insert(schema.NAMED, named)
            before = ledger.last_check(self._db)
            total = self._write_state(state, saved, Sum(before.state if before else ""))
            kept = self._keep(state.t) if keep else None
            ledger.add_check(self._db, state.t, total.text, kept, written.rows())
        self._saved = saved
        self._write_back.after_commit()

    def event(self, kind: str, text: str, round: int | None = None) -> None:
        """Note what happened; by default after the last committed round."""
        with self._writing(f"the event {kind!r}"):
            ledger.add_event(self._db, kind, self._last() if round is None else round, text)

    def put_meta(self, key: str, value: str) -> None:
        """Keep one of the run's texts; its checksum covers the key, too."""
        with self._writing(f"the value {key!r}"):
            ledger.put_meta(self._db, key, value)

    def change_configuration(self, text: str, changes: Iterable[str]) -> None:
        """Go on with another configuration, and note each change."""
        with self._writing("the configuration"):
            ledger.put_meta(self._db, "configuration", text)
            for change in changes:
                ledger.add_event(self._db, "changed", self._last(), change)

    def force_to_disk(self) -> None:
        """Let every commit be on the disk before it is done, also if the power fails: others count on it meanwhile."""
        self._db.execute("PRAGMA synchronous = FULL")

    def rounds_done(self) -> int:
        """The last committed round."""
        with readable(self.directory / FILE):
            return self._last()

    def history(self, until: int | None = None) -> History:
        """Everything measured, up to and including a round."""
        history = History()
        with self._reading():
            for check, rows in ledger.walk(self._db):
                if until is None or check.round <= until:
                    history.rounds += [RoundSummary(*_floats(row)) for row in rows["rounds"]]
                    metrics, noted, times = _by_name(rows[schema.NAMED])
                    for row in map(_floats, rows["metrics"]):
                        history.measured.append(Measured(*[*row, metrics.get((row[1], row[2]), {})]))
                    if noted:
                        history.noted[check.round] = noted
                    if times:
                        history.times[check.round] = times
                    accuracies = [row[3] for row in map(_floats, rows["client_metrics"])]
                    if accuracies:
                        history.fairness[check.round] = fairness(accuracies)
        return history

    def client_scores(self) -> list[ClientScore]:
        """How clients did after every evaluated round; nothing where ``evaluation.clients`` was off."""
        with self._reading():
            found = [row for _, rows in ledger.walk(self._db) for row in rows["client_metrics"]]
        return [ClientScore(*_floats(row)) for row in found]

    def of_clients(self) -> dict[tuple[int, int], dict[str, float]]:
        """What is known of single clients, by (round, client) and name.

        ``steps``, ``train_loss`` and ``drift`` of whoever took part; ``test accuracy``, ``test loss`` and ``test f1``
        (or ``train …``) of whoever was evaluated; ``value tau`` of what the algorithm noted.
        """
        found: dict[tuple[int, int], dict[str, float]] = {}
        with self._reading():
            for _, rows in ledger.walk(self._db):
                for round, client, *values in map(_floats, rows["clients"]):
                    found.setdefault((round, client), {}).update(_under(("steps", "train_loss", "drift"), values))
                for round, client, split, *values in map(_floats, rows["client_metrics"]):
                    names = (f"{split} accuracy", f"{split} loss")
                    found.setdefault((round, client), {}).update(_under(names, values))
                for round, _, split, name, client, value in map(_floats, rows[schema.NAMED]):
                    if client != NO_CLIENT:
                        found.setdefault((round, client), {})[f"{split or 'value'} {name}"] = value
        return dict(sorted(found.items()))

    def client_rounds(self) -> list[ClientRound]:
        """What clients did in every round."""
        with self._reading():
            found = [row for _, rows in ledger.walk(self._db) for row in rows["clients"]]
        return [ClientRound(*_floats(row)) for row in found]

    def events(self) -> list[Event]:
        """The run's diary, oldest first."""
        with self._reading():
            return [Event(*row) for row in ledger.events(self._db)]

    def configuration(self) -> str:
        """The configuration that the run goes on with, as TOML."""
        return self.meta("configuration") or ""

    def meta(self, key: str) -> str | None:
        """One of the run's texts: configuration, executor, parent, parent_round, …"""
        with self._reading():
            return ledger.meta(self._db).get(key)

    def kept_rounds(self) -> list[int]:
        """Every round whose state can be read: the kept ones and the last."""
        with self._reading():
            checks = [check for check, _ in ledger.walk(self._db)]
        return [check.round for check in checks if check.kept or check is checks[-1]] or [0]

    def read_state(self, round: int | None = None) -> RunState | None:
        """The state after the last committed round, or after a kept one; None in an empty store."""
        with self._reading():
            checks = [check for check, _ in ledger.walk(self._db)]
            if not checks and round is None:
                if self._db.execute("SELECT count(*) FROM tensors NOT INDEXED").fetchone()[0]:
                    raise DamagedError("it has a state but no rounds")
                return None
            there = {check.round: check for check in checks if check.kept or check is checks[-1]}
            if round is not None and round not in there:
                raise DataError(
                    f"the run in {self.directory} does not hold the state after round {round}; it holds those after "
                    f"{', '.join(map(str, there))} (run.checkpoint_every keeps more)."
                )
            last = round is None or round == checks[-1].round
            check = checks[-1] if round is None else there[round]
            state = self._assembled(self._live(check) if last else self._kept(check), remember=last)
            if state.t != check.round:
                raise DamagedError(f"its state is that of round {state.t}, its last round {check.round}")
            return state

    def verify_pages(self) -> None:
        """Compare what SQLite itself keeps: pages, free pages, and indexes with their tables."""
        with self._reading():
            complaint = str(self._db.execute("PRAGMA integrity_check(1)").fetchone()[0])
            if complaint != "ok":
                raise DamagedError(complaint.splitlines()[-1])

    def verify_kept(self) -> int:
        """Compare every kept row with its checksum, and those of each round with its sum; how many rounds are kept."""
        with self._reading():
            kept = {check.round: check.kept for check, _ in ledger.walk(self._db) if check.kept}
            sums = {round: Sum() for round in kept}
            for *row, data in self._db.execute(f"SELECT {ledger.TENSOR_FIELDS}, data FROM kept NOT INDEXED"):
                if row[3] not in kept:
                    raise DamagedError(f"it keeps a value of round {row[3]}, which was not kept")
                sums[row[3]].add(*row)
                _decoded(row, data)
            total = Sum()
            for round, of_round in sums.items():
                total.include(of_round)
                if total.text != kept[round]:
                    raise DamagedError(f"the state kept at round {round} does not fit its checksum")
            return len(kept)

    def _live(self, check: ledger.Check) -> Iterator[tuple[Any, ...]]:
        """The rows of the state after the last round; after the last row their set is compared with its sum."""
        total = Sum()
        for row in self._db.execute(f"SELECT {ledger.TENSOR_FIELDS}, data FROM tensors NOT INDEXED"):
            total.add(*row[:-1])
            yield row
        if total.text != check.state:
            raise DamagedError(f"the state does not fit the checksum of round {check.round}")

    def _kept(self, check: ledger.Check) -> Iterator[tuple[Any, ...]]:
        """The rows of the state after a kept round: of every value the last row up to it."""
        total = Sum()
        latest: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}
        for number, *row in self._db.execute(f"SELECT rowid, {ledger.TENSOR_FIELDS} FROM kept NOT INDEXED"):
            if row[3] <= check.round:
                total.add(*row)
                key = tuple(row[:3])
                if key not in latest or latest[key][1][3] < row[3]:
                    latest[key] = (number, row)
        if total.text != check.kept:
            raise DamagedError(f"the state kept at round {check.round} does not fit its checksum")
        for number, row in latest.values():
            found = self._db.execute(f"SELECT {ledger.TENSOR_FIELDS}, data FROM kept WHERE rowid = ?", (number,))
            (full,) = found.fetchall()
            if list(full[:-1]) != row:
                raise DamagedError(f"the state kept at round {check.round} is damaged")
            yield full

    def _copy(self, source: Store, state: RunState) -> None:
        """Begin with another run's history and the state after its last round."""
        total = self._write_state(state, self._saved, Sum())
        with source._reading():
            for check, rows in ledger.walk(source._db):
                if check.round <= state.t:
                    for table, of_table in rows.items():
                        self._insert(table, of_table)
                    # The states of earlier rounds stay where they are.
                    ledger.add_check(self._db, check.round, total.text if check.round == state.t else "", None, rows)
        ledger.put_meta(self._db, "parent", str(source.directory))
        ledger.put_meta(self._db, "parent_round", str(state.t))
        ledger.add_event(self._db, "forked", state.t, f"from round {state.t} of {source.directory}")

    def _assembled(self, rows: Iterable[tuple[Any, ...]], remember: bool) -> RunState:
        values: dict[str, dict[str, Any]] = {}
        for *row, data in rows:
            value = _decoded(row, data)
            owner, name, client, _, dtype, _, _ = row
            named = values.setdefault(owner, {})
            if dtype == ROWS:
                named.setdefault(name, {})
            elif client == NO_CLIENT:
                named[name] = value
            elif dtype != GONE:
                of_clients = named.setdefault(name, {})
                if not isinstance(of_clients, dict):
                    raise DamagedError(f"the value {owner}.{name} is damaged, it is one and many")
                of_clients[client] = keep_row(value)
        tables: dict[str, dict[str, Any]] = {
            o: {n: Rows(v) if isinstance(v, dict) else v for n, v in named.items()} for o, named in values.items()
        }
        if remember:
            self._saved = {(o, n): v for o, named in tables.items() for n, v in named.items() if isinstance(v, Rows)}
        try:
            engine, server = tables["engine"], tables["server"]
            ordered = State(**{name: server[name] for name in self._server_order()})
            t, clients, clock = int(engine["t"]), tables.get("client", {}), State(**tables.get("clock", {}))
            average = tables.get("average")
            averaged = (
                None if average is None else Averaged(**{each.name: average[each.name] for each in fields(Averaged)})
            )
            buffers = engine["client_buffers"]
            return RunState(t, ordered, engine["b"], clients, buffers, self._counted(t), averaged, clock)
        except KeyError as error:
            raise DamagedError(f"the value {error} of the state is missing") from None

    def _server_order(self) -> list[str]:
        """The names of the server's values in the order in which the algorithm made them."""
        found = ledger.meta(self._db).get("server_order")
        names = json.loads(found) if found else None
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise DamagedError("the list of the server's values is missing")
        return names

    def _counted(self, t: int) -> Tensor:
        """The last round up to t in which each client's upload counted; 0 if none did. Clients at the end may lack."""
        query = "SELECT client, max(round) FROM clients WHERE round <= ? GROUP BY client"
        last = {int(client): int(round) for client, round in self._db.execute(query, (t,))}
        if last and not 0 <= min(last) <= max(last) < MOST_CLIENTS:
            raise DamagedError("the list of clients has some that cannot be")
        counted = torch.zeros(max(last, default=-1) + 1, dtype=torch.int32)
        counted[list(last)] = torch.tensor(list(last.values()), dtype=torch.int32)
        return counted

    def _write_state(self, state: RunState, saved: dict[tuple[str, str], Rows], total: Sum) -> Sum:
        """Write what changed, and bring the sum over all values up to date."""
        values: dict[tuple[str, str], Any] = {
            ("engine", "t"): state.t,
            ("engine", "b"): state.b,
            ("engine", "client_buffers"): state.client_buffers,
        }
        values |= {("server", name): value for name, value in state.server.items()}
        values |= {("client", name): rows for name, rows in state.clients.items()}
        if state.averaged is not None:
            values |= {("average", each.name): getattr(state.averaged, each.name) for each in fields(Averaged)}
        values |= {("clock", name): value for name, value in state.clock.items()}
        for (owner, name), value in values.items():
            if isinstance(value, Rows):
                self._write_rows(total, owner, name, state.t, value, saved.get((owner, name)))
                saved[owner, name] = value
            else:
                key = (owner, name, NO_CLIENT)
                self._write(total, key, state.t, encode(key, value))
        ledger.put_meta(self._db, "server_order", json.dumps(list(state.server)))
        return total

    def _write_rows(self, total: Sum, owner: str, name: str, t: int, rows: Rows, before: Rows | None) -> None:
        """The rows that differ from those written before; unchanged ones are the same objects."""
        if before is None:
            key = (owner, name, NO_CLIENT)
            self._write(total, key, t, marker(key, ROWS))
        old = before or Rows()
        for client, row in rows.changed_since(old):
            key = (owner, name, client)
            self._write(total, key, t, encode(key, row))
        for client in rows.gone_since(old):
            key = (owner, name, client)
            self._write(total, key, t, marker(key, GONE))  # so that the next kept round knows that it went

    def _write(self, total: Sum, key: tuple[str, str, int], t: int, encoded: Encoded) -> None:
        find = "SELECT rowid, round, dtype, shape, crc FROM tensors WHERE owner = ? AND name = ? AND client = ?"
        old = self._db.execute(find, key).fetchone()
        if old is None:
            self._db.execute("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*key, t, *encoded))
        else:
            # An update in place: REPLACE would free and take anew all pages of a vector.
            update = "UPDATE tensors SET round = ?, dtype = ?, shape = ?, crc = ?, data = ? WHERE rowid = ?"
            self._db.execute(update, (t, *encoded, old[0]))
            total.remove(*key, *old[1:])
        total.add(*key, t, encoded.dtype, encoded.shape, encoded.crc)

    def _keep(self, t: int) -> str:
        """Copy what changed since the last kept round; the sum over everything kept."""
        kept = "SELECT round, kept FROM checks WHERE kept IS NOT NULL ORDER BY round DESC LIMIT 1"
        last, before = self._db.execute(kept).fetchone() or (-1, "")
        first = self._db.execute("SELECT max(rowid) FROM kept").fetchone()[0] or 0
        self._db.execute(
            "INSERT INTO kept SELECT owner, name, client, ?, dtype, shape, crc, data FROM tensors WHERE round > ?",
            (t, last),
        )
        total = Sum(before)
        for row in self._db.execute(f"SELECT {ledger.TENSOR_FIELDS} FROM kept WHERE rowid > ?", (first,)):
            total.add(*row)
        return total.text

    def _insert(self, table: str, rows: list[list[Any]]) -> None:
        if rows:
            self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def _last(self) -> int:
        return ledger.Seal.read(self._db).round

    def _require_schema(self, path: Path) -> None:
        found = schema.identify(self._db)
        if found is None:
            raise DataError(f"there is no run in {path.parent} yet; wait for its start, or start it.")
        if found in schema.EARLIER:
            raise DataError(f"{path} is of an earlier version (schema {found}); continue that run once with --resume.")
        if found != str(schema.SCHEMA):
            raise DataError(f"{path} has format {found}, this version reads {schema.SCHEMA}; start a new run.")

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """A transaction; what goes wrong with it is said of ``what``."""
        try:
            with self._transaction():
                yield
        except sqlite3.Error as error:
            raise self._failure(what, error) from None
        except DamagedError as error:
            with readable(self.directory / FILE):
                raise error from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Queries that see the same round, while another process may commit the next; damage becomes one sentence."""
        path = self.directory / FILE
        with readable(path), bounded(self._db, path), self._snapshot():
            yield

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
    with readable(path), closing(connect_reading(path)) as connection:
        return schema.identify(connection) is not None


def rounds_done(directory: Path) -> int:
    """The last committed round of the run in a directory, 0 where there is none, whatever its schema."""
    path = directory / FILE
    if not holds_run(directory):
        return 0
    with readable(path), closing(connect_reading(path)) as connection, bounded(connection, path):
        found = connection.execute("SELECT max(round) FROM rounds").fetchone()[0]
        return 0 if found is None else int(found)


def _decoded(row: Sequence[Any], data: Any) -> Any:
    """The value in a row of ``tensors`` or ``kept``."""
    owner, name, client, _, dtype, shape, crc = row
    if not schema.columns_fit((owner, name, client), "tti"):
        raise DamagedError("a value of the state has no name")
    try:
        return decode((owner, name, client), dtype, shape, crc, data)
    except ValueError as error:
        raise DamagedError(f"the value {owner}.{name} is damaged, {error}") from None


def _brought_here(source: sqlite3.Connection, found: str, directory: Path) -> sqlite3.Connection:
    """A copy of a database of an earlier version, brought to this one; it lives as long as the connection."""
    path = directory / FILE
    with closed_on_error(connect_scratch()) as copy:
        try:
            source.backup(copy)
        except sqlite3.OperationalError as error:
            raise DataError(
                f"{path} is of an earlier version (schema {found}) and is read from a copy, for which there is no room "
                f"({error}); make room for temporary files, or continue that run once with --resume."
            ) from None
        with bounded(copy, path):
            complaint = str(copy.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if complaint != "ok":
            raise DamagedError(complaint.splitlines()[-1])
        copy.execute("BEGIN")
        migration.migrate(copy, found, lambda: _text_beside(directory))
        copy.execute("COMMIT")
        return copy


def _text_beside(directory: Path) -> str:
    """The configuration of a run of schema 1, which stood only in the file beside the database."""
    try:
        return (directory / "experiment.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"the run in {directory} has no experiment.toml ({error.strerror}); put it back.") from None


def _named_rows(
    t: int,
    record: RoundRecord | None,
    measured: Iterable[Measured],
    client_scores: Iterable[tuple[int, str, Score]],
) -> list[list[Any]]:
    """The rows of ``named_values``: what was noted of the round, times, and the metrics of models and of clients."""
    rows: list[list[Any]] = []
    kept: dict[str, Noted] = {} if record is None else {**record.noted, **record.times}
    for name, noted in kept.items():
        each = noted if isinstance(noted, dict) else {NO_CLIENT: noted}
        rows += [[t, "", "", name, client, value] for client, value in each.items()]
    for m in measured:
        rows += [[t, m.model, m.split, name, NO_CLIENT, value] for name, value in m.metrics.items()]
    for client, split, score in client_scores:
        rows += [[t, "", split, name, client, value] for name, value in score.metrics.items()]
    return rows


def _by_name(
    rows: Iterable[Sequence[Any]],
) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, Noted], dict[str, float]]:
    """A round's rows of ``named_values``: metrics by model and split, what was noted, and times."""
    metrics: dict[tuple[str, str], dict[str, float]] = {}
    noted: dict[str, Noted] = {}
    times: dict[str, float] = {}
    for _, model, split, name, client, stored in rows:
        value = float("nan") if stored is None else stored
        if split:
            if client == NO_CLIENT:
                metrics.setdefault((model, split), {})[name] = value
        elif client == NO_CLIENT:
            (times if name.startswith(TIMED) else noted)[name] = value
        else:
            of_clients = noted.setdefault(name, {})
            if not isinstance(of_clients, dict):
                raise DamagedError(f"the value {name} is one and many")
            of_clients[client] = value
    return metrics, noted, times


def _under(names: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


def _floats(row: Iterable[Any]) -> list[Any]:
    """A row with the NaN that SQLite keeps as NULL."""
    return [float("nan") if value is None else value for value in row]
