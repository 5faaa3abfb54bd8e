"""A run on disk: one SQLite file that holds a round wholly or not at all.

History tables (``rounds``, ``metrics``, ``clients``) are plain and may be read by any SQLite client while the run goes
on. The ``tensors`` table holds the state that the next round depends on; of client rows only changed ones are written.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.state import Rows, State
from fedkeel.engine.simulation import RoundRecord, RunState
from fedkeel.errors import DataError
from fedkeel.runs.history import History, Measured, RoundSummary

SCHEMA = 1
"""Version of the tables below."""
FILE = "run.sqlite"
NO_CLIENT = -1

_TABLES = """
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
CREATE TABLE tensors (
    owner TEXT, name TEXT, client INTEGER, dtype TEXT, shape TEXT, data BLOB, PRIMARY KEY (owner, name, client)
);
"""
_DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
}


class Store:
    """The database of one run."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._db = connection
        self._saved: dict[tuple[str, str], Rows] = {}

    @classmethod
    def create(cls, directory: Path) -> Store:
        """A new, empty store in a directory that has none yet."""
        connection = _connect(directory / FILE)
        with connection:
            connection.executescript(_TABLES)
            connection.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
        return cls(directory, connection)

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The store of an earlier run."""
        path = directory / FILE
        if not path.is_file():
            raise DataError(f"there is no run in {directory} (no {FILE}); check the path, or start without --resume.")
        try:
            connection = _connect(path)
            found = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} is not a readable run ({error}); restore it or start a new run.") from None
        if found is None or int(found[0]) != SCHEMA:
            raise DataError(f"{path} has format {found and found[0]}, this version reads {SCHEMA}; start a new run.")
        return cls(directory, connection)

    def close(self) -> None:
        self._db.close()

    def commit(
        self,
        state: RunState,
        record: RoundRecord | None,
        summary: RoundSummary | None,
        measured: Iterable[Measured],
        client_scores: Iterable[tuple[int, str, float, float]] = (),
    ) -> None:
        """Write a round and the state after it in one transaction (without a record: the state before round 1)."""
        with self._db:
            if record is not None and summary is not None:
                self._db.execute(
                    "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        summary.round,
                        summary.lr,
                        summary.clients,
                        summary.steps,
                        summary.samples,
                        summary.train_loss,
                        summary.drift,
                        summary.bytes_down,
                        summary.bytes_up,
                        summary.seconds,
                    ),
                )
                drifts = record.drifts or (None,) * len(record.cohort)
                self._db.executemany(
                    "INSERT INTO clients VALUES (?, ?, ?, ?, ?)",
                    [(record.t, *row) for row in zip(record.cohort, record.steps, record.losses, drifts, strict=True)],
                )
            self._db.executemany(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, ?)",
                [(m.round, m.model, m.split, m.accuracy, m.loss) for m in measured],
            )
            self._db.executemany(
                "INSERT INTO client_metrics VALUES (?, ?, ?, ?, ?)", [(state.t, *row) for row in client_scores]
            )
            self._write_state(state)

    def history(self) -> History:
        """Everything measured so far."""
        rounds = self._db.execute("SELECT * FROM rounds ORDER BY round")
        metrics = self._db.execute("SELECT * FROM metrics ORDER BY round, rowid")
        numbers: list[list[Any]] = [
            [float("nan") if value is None else value for value in row] for row in rounds
        ]  # NULL was NaN
        return History([RoundSummary(*row) for row in numbers], [Measured(*row) for row in metrics])

    def read_state(self) -> RunState | None:
        """The state after the last committed round; None in an empty store."""
        values: dict[str, dict[str, Any]] = {}
        for owner, name, client, dtype, shape, data in self._db.execute("SELECT * FROM tensors"):
            value = _decoded(dtype, shape, data)
            if dtype == "rows":
                values.setdefault(owner, {}).setdefault(name, {})
            elif client == NO_CLIENT:
                values.setdefault(owner, {})[name] = value
            else:
                values.setdefault(owner, {}).setdefault(name, {})[client] = value
        if not values:
            return None
        tables: dict[str, dict[str, Any]] = {
            owner: {name: Rows(v) if isinstance(v, dict) else v for name, v in named.items()}
            for owner, named in values.items()
        }
        for owner, named in tables.items():
            self._saved |= {(owner, name): rows for name, rows in named.items() if isinstance(rows, Rows)}
        engine = tables["engine"]
        return RunState(
            int(engine["t"]),
            State(**{name: tables["server"][name] for name in json.loads(self._meta("server_order"))}),
            engine["b"],
            tables.get("client", {}),
            engine["client_buffers"],
        )

    def _write_state(self, state: RunState) -> None:
        self._write("engine", "t", state.t)
        self._write("engine", "b", state.b)
        self._write("engine", "client_buffers", state.client_buffers)
        for name, value in state.server.items():
            self._write("server", name, value)
        for name, rows in state.clients.items():
            self._write("client", name, rows)
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('server_order', ?)", (json.dumps(list(state.server)),))

    def _write(self, owner: str, name: str, value: Any) -> None:
        put = "INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, ?, ?, ?)"
        if not isinstance(value, Rows):
            self._db.execute(put, (owner, name, NO_CLIENT, *_encoded(value)))
            return
        before = self._saved.get((owner, name))
        if before is None:
            self._db.execute(put, (owner, name, NO_CLIENT, "rows", "[]", b""))
        old = before or Rows()
        changed = [(owner, name, c, *_encoded(row)) for c, row in value.items() if old.get(c) is not row]
        self._db.executemany(put, changed)
        gone = [(owner, name, client) for client in old if client not in value]
        self._db.executemany("DELETE FROM tensors WHERE owner = ? AND name = ? AND client = ?", gone)
        self._saved[owner, name] = value

    def _meta(self, key: str) -> str:
        return str(self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _encoded(value: Any) -> tuple[str, str, bytes]:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return dtype, json.dumps(list(value.shape)), value.contiguous().numpy().tobytes()
    return "json", "[]", json.dumps(value).encode()


def _decoded(dtype: str, shape: str, data: bytes) -> Any:
    if dtype == "json":
        return json.loads(data)
    if dtype == "rows":
        return None
    array = np.frombuffer(data, dtype=np.dtype(dtype)).reshape(json.loads(shape))
    return torch.from_numpy(array.copy()).to(_DTYPES[dtype])
