"""A run written by an earlier version of the store goes on under this one."""

import json
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.rounds import RunState
from fedkeel.errors import DataError
from fedkeel.runs.digests import Sum, chained
from fedkeel.runs.history import Measured, RoundSummary
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store
from fedkeel.state.rows import Rows

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


def version(directory: Path) -> str:
    with closing(sqlite3.connect(directory / FILE)) as db:
        return str(db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0])


def test_a_run_of_schema_1_goes_on(tmp_path: Path) -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"), participation=0.6)
    half = rounds(simulation, 3)
    old_store(tmp_path, half)
    (tmp_path / "experiment.toml").write_text("seed = 7\n")

    with closing(Store.reading(tmp_path)) as copy:
        assert (len(copy.history().rounds), copy.configuration()) == (3, "seed = 7\n")
    assert version(tmp_path) == "1"  # whoever only reads leaves the file as it is
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


SCHEMA_2 = """
CREATE TABLE checks (round INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE checkpoints (round INTEGER PRIMARY KEY);
"""


def as_schema_2(directory: Path) -> None:
    """The file as version 2 wrote it: a checksum a round over rounds and metrics, dropped rows deleted, no seal."""
    with closing(sqlite3.connect(directory / FILE)) as db, db:
        kept = db.execute("SELECT round FROM checks WHERE kept IS NOT NULL").fetchall()
        db.execute("DROP TABLE named_values")
        db.execute("DROP TABLE seal")
        db.execute("DROP TABLE checks")
        for statement in SCHEMA_2.split(";"):
            db.execute(statement)
        rows: dict[int, list[Any]] = {}
        for table in ("rounds", "metrics"):
            for row in db.execute(f"SELECT * FROM {table} ORDER BY round, rowid"):
                rows.setdefault(row[0], []).append(list(row))
        checks = [(round, zlib.crc32(json.dumps(of_round).encode())) for round, of_round in rows.items()]
        db.executemany("INSERT INTO checks VALUES (?, ?)", checks)
        db.executemany("INSERT INTO checkpoints VALUES (?)", kept)
        db.execute("DELETE FROM tensors WHERE dtype = 'gone'")
        db.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")


def test_a_run_of_schema_2_goes_on(tmp_path: Path) -> None:
    """With its history, its kept rounds, and a client's row that was dropped after the last of them."""
    simulation = tiny_simulation(make_algorithm("scaffold"), rounds=4)
    store = Store.create(tmp_path, "seed = 7\n")
    half, history = execute(simulation, Evaluation(), store, keep_every=2)
    fewer = replace(half, t=5, clients={name: rows.drop([0, 2]) for name, rows in half.clients.items()})
    store.commit(fewer, None, RoundSummary(5, 0.1, 5, 10, 50, 1.5, 0.5, 8, 8, 0.1), [])
    store.close()
    as_schema_2(tmp_path)

    with closing(Store.reading(tmp_path)) as copy:
        assert (len(copy.history().rounds), copy.configuration()) == (5, "seed = 7\n")
    assert version(tmp_path) == "2"  # whoever only reads leaves the file as it is
    store = Store.open(tmp_path)
    assert store.history(until=4) == history
    assert store.kept_rounds() == [2, 4, 5]
    assert store.configuration() == "seed = 7\n"
    assert [event.kind for event in store.events()] == ["started", "migrated"]
    last, kept = store.read_state(), store.read_state(4)
    assert last is not None
    assert kept is not None
    assert set(last.clients["c"]) == {1, 3, 4}
    assert torch.equal(rounds(simulation, 2, kept).server.w, rounds(simulation, 2, half).server.w)
    store.commit(replace(last, t=6), None, None, [], keep=True)
    store.commit(replace(last, t=7), None, None, [])
    again = store.read_state(6)
    assert again is not None
    assert set(again.clients["c"]) == {1, 3, 4}
    store.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE metrics SET accuracy = 0.999 WHERE round = 2", "the numbers of round 2 do not fit"),
        ("UPDATE kept SET data = zeroblob(length(data)) WHERE name = 'w'", r"server\.w is damaged"),
    ],
)
def test_damage_is_not_migrated(tmp_path: Path, damage: str, said: str) -> None:
    store = Store.create(tmp_path)
    execute(tiny_simulation(make_algorithm("fedavg"), rounds=4), Evaluation(), store, keep_every=2)
    store.close()
    as_schema_2(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute(damage)
    for reader in (Store.reading, Store.open):
        with pytest.raises(DataError, match=said):
            reader(tmp_path)


def as_schema_3(directory: Path) -> None:
    """The file as version 3 wrote it: without the table of named values, of which its digests know nothing."""
    with closing(sqlite3.connect(directory / FILE)) as db, db:
        (before,) = db.execute("SELECT meta FROM seal").fetchone()
        total = Sum(before)
        total.remove("schema", "4")
        total.add("schema", "3")
        db.execute("DROP TABLE named_values")
        last, digest = 0, ""
        for round, state, kept in db.execute("SELECT round, state, kept FROM checks ORDER BY round").fetchall():
            tables = ("rounds", "metrics", "clients", "client_metrics")
            found = [db.execute(f"SELECT * FROM {t} WHERE round = ? ORDER BY rowid", (round,)) for t in tables]
            last, digest = round, chained(digest, round, state, kept, [list(map(list, rows)) for rows in found])
            db.execute("UPDATE checks SET digest = ? WHERE round = ?", (digest, round))
        db.execute("UPDATE seal SET meta = ?, round = ?, digest = ?", (total.text, last, digest))
        db.execute("UPDATE meta SET value = '3' WHERE key = 'schema'")


def test_a_run_of_schema_3_goes_on(tmp_path: Path) -> None:
    """With the digests that it has; what is noted from then on is under the next ones."""
    simulation = tiny_simulation(make_algorithm("scaffold"), rounds=2)
    store = Store.create(tmp_path, "seed = 7\n")
    half, history = execute(simulation, Evaluation(), store)
    store.close()
    as_schema_3(tmp_path)

    with closing(Store.reading(tmp_path)) as copy:
        assert (len(copy.history().rounds), copy.configuration()) == (2, "seed = 7\n")
    assert version(tmp_path) == "3"  # whoever only reads leaves the file as it is
    store = Store.open(tmp_path)
    assert store.history() == history
    assert [event.kind for event in store.events()] == ["started", "migrated"]
    after, record = simulation.step(half)
    noted = replace(record, noted={"eps": 0.5, "tau": {1: 2.0}})
    store.commit(after, noted, RoundSummary(3, 0.1, 5, 10, 50, 1.5, 0.5, 8, 8, 0.1), [])
    store.close()
    with closing(Store.reading(tmp_path)) as store:
        assert store.history().noted == {3: {"eps": 0.5, "tau": {1: 2.0}}}
        assert store.read_state() is not None


def test_a_damaged_run_of_schema_3_is_not_brought_to_this_one(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    execute(tiny_simulation(make_algorithm("fedavg"), rounds=2), Evaluation(), store)
    store.close()
    as_schema_3(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE metrics SET accuracy = 1 WHERE round = 2")
    for reader in (Store.reading, Store.open):
        with pytest.raises(DataError, match="the numbers of round 2 do not fit"):
            reader(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("3",)
