"""A run on disk: what is written, what comes back, what is refused."""

import sqlite3
from pathlib import Path

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Rows
from fedkeel.check import rounds, tiny_simulation
from fedkeel.errors import DataError
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store


def test_history_is_readable_with_plain_sqlite(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("fedavg"), rounds=3)
    _, history = execute(simulation, Evaluation(train=True, clients=True), store)
    store.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT count(*), sum(samples), max(clients) FROM rounds").fetchone() == (3, 336, 5)
        last = db.execute("SELECT accuracy FROM metrics WHERE round = 3 AND split = 'test'").fetchone()[0]
        assert db.execute("SELECT count(*) FROM clients WHERE round = 2").fetchone() == (5,)
        assert db.execute("SELECT count(*) FROM client_metrics").fetchone() == (15,)
    final = history.final()
    assert final is not None
    assert last == final.accuracy


def test_history_comes_back_equal(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    _, history = execute(tiny_simulation(make_algorithm("feddc"), rounds=3), Evaluation(), store)
    assert store.history() == history
    store.close()


def test_only_changed_client_rows_are_written(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("scaffold"), participation=0.4)
    state = rounds(simulation, 3)
    store.commit(state, None, None, [])
    db = sqlite3.connect(tmp_path / FILE)
    marker = "UPDATE tensors SET data = zeroblob(8) WHERE owner = 'client'"
    with db:
        db.execute(marker)
    after, record = simulation.step(state)
    store.commit(after, None, None, [])
    fresh = {
        row[0]
        for row in db.execute("SELECT client FROM tensors WHERE owner = 'client' AND length(data) > 8")
        if row[0] >= 0
    }
    assert fresh == set(record.cohort)
    store.close()


def test_a_dropped_row_is_gone_after_reading(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("feddyn", evaluate=("global", "all")))
    state = rounds(simulation, 1)
    store.commit(state, None, None, [])
    last: Rows = state.server.last
    fewer = type(state)(state.t, state.server.replace(last=last.drop([0, 2])), state.b, state.clients, Rows())
    store.commit(fewer, None, None, [])
    again = Store.open(tmp_path).read_state()
    assert again is not None
    assert set(again.server.last) == {1, 3, 4}
    assert torch.equal(again.server.last[3], last[3])
    store.close()


def test_an_empty_store_has_no_state(tmp_path: Path) -> None:
    assert Store.create(tmp_path).read_state() is None


def test_a_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no run in"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"not a database at all, but long enough to look at" * 30)
    with pytest.raises(DataError, match="is not a readable run"):
        Store.open(tmp_path)
