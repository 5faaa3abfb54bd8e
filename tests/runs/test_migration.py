"""A run written by the first version of the store goes on under this one."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Rows
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.simulation import RunState
from fedkeel.errors import DataError
from fedkeel.runs.history import Measured
from fedkeel.runs.store import FILE, Store

SCHEMA_1 = """
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
INSERT INTO meta VALUES ('schema', '1');
"""


def old_store(directory: Path, state: RunState) -> None:
    """The file as version 1 wrote it: same history tables, tensors without rounds and checksums."""
    db = sqlite3.connect(directory / FILE)
    db.executescript(SCHEMA_1)
    put = "INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?)"

    def write(owner: str, name: str, client: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            dtype, shape = str(value.dtype).removeprefix("torch."), json.dumps(list(value.shape))
            db.execute(put, (owner, name, client, dtype, shape, value.numpy().tobytes()))
        elif isinstance(value, Rows):
            db.execute(put, (owner, name, -1, "rows", "[]", b""))
            for i, row in value.items():
                write(owner, name, i, row)
        else:
            db.execute(put, (owner, name, client, "json", "[]", json.dumps(value).encode()))

    with db:
        for t in range(1, state.t + 1):
            db.execute("INSERT INTO rounds VALUES (?, 0.1, 5, 10, 50, 1.5, NULL, 8, 8, 0.1)", (t,))
            db.execute("INSERT INTO metrics VALUES (?, 'global', 'test', 0.5, 1.25)", (t,))
        write("engine", "t", -1, state.t)
        write("engine", "b", -1, state.b)
        write("engine", "client_buffers", -1, state.client_buffers)
        for name, value in state.server.items():
            write("server", name, -1, value)
        for name, rows_ in state.clients.items():
            write("client", name, -1, rows_)
        db.execute("INSERT INTO meta VALUES ('server_order', ?)", (json.dumps(list(state.server)),))
    db.close()


def test_a_run_of_schema_1_goes_on(tmp_path: Path) -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"), participation=0.6)
    half = rounds(simulation, 3)
    old_store(tmp_path, half)
    (tmp_path / "experiment.toml").write_text("seed = 7\n")

    with pytest.raises(DataError, match=r"schema 1\); continue that run once with --resume"):
        Store.reading(tmp_path)
    store = Store.open(tmp_path)
    state = store.read_state()
    assert state is not None
    assert torch.equal(rounds(simulation, 2, state).server.w, rounds(simulation, 2, half).server.w)
    assert store.configuration() == "seed = 7\n"
    assert store.history().measured[2] == Measured(3, "global", "test", 0.5, 1.25)
    assert [(event.kind, event.round) for event in store.events()] == [("migrated", 3)]
    store.close()
    Store.open(tmp_path).close()  # and it stays of this version


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    """Without its experiment.toml there is nothing to compare a resume with; the file is still of schema 1 after."""
    old_store(tmp_path, rounds(tiny_simulation(make_algorithm("fedavg")), 1))
    with pytest.raises(DataError, match=r"has no experiment\.toml"):
        Store.open(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("1",)
        assert db.execute("SELECT count(*) FROM tensors").fetchone()[0] > 2
