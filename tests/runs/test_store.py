"""A run on disk: what is written, what comes back, what is refused."""

import sqlite3
from pathlib import Path

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds, tiny_simulation
from fedkeel.errors import DataError
from fedkeel.runs.runner import Evaluation, Progress, execute
from fedkeel.runs.store import FILE, Beginning, Store, StoreError, holds_run
from fedkeel.state.rows import Rows


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


def test_what_clients_did_comes_back(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    _, history = execute(tiny_simulation(make_algorithm("fedavg"), rounds=3), Evaluation(clients=True), store)
    did, scores = store.client_rounds(), store.client_scores()
    store.close()
    assert [(one.round, one.client) for one in did] == [(t, client) for t in (1, 2, 3) for client in range(5)]
    for summary in history.rounds:
        of_round = [one for one in did if one.round == summary.round]
        assert sum(one.steps for one in of_round) == summary.steps
        assert sum(one.drift for one in of_round) / 5 == pytest.approx(summary.drift)
    assert {(score.round, score.client) for score in scores} == {(one.round, one.client) for one in did}


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
    fewer = type(state)(state.t + 1, state.server.replace(last=last.drop([0, 2])), state.b, state.clients, Rows())
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


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(bytes(content))


def test_a_flipped_bit_in_a_vector_is_noticed(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    state = rounds(tiny_simulation(make_algorithm("fedavg")), 1)
    store.commit(state, None, None, [])
    store.close()
    place = (tmp_path / FILE).read_bytes().index(state.server.w.numpy().tobytes())
    flipped(tmp_path / FILE, place + 100)
    store = Store.open(tmp_path)  # its structure is sound
    with pytest.raises(DataError, match=r"the value server\.w is damaged, its checksum does not fit"):
        store.read_state()
    store.close()


def test_a_changed_number_of_the_history_is_noticed(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    execute(tiny_simulation(make_algorithm("fedavg"), rounds=2), Evaluation(), store)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE metrics SET accuracy = 0.999 WHERE round = 2")
    with pytest.raises(DataError, match="the numbers of round 2 do not fit their checksum"):
        store.history()
    store.close()


def test_rows_cannot_change_places(tmp_path: Path) -> None:
    """The checksum covers whose a row is: client 1's vector under client 2's name is refused."""
    store = Store.create(tmp_path)
    store.commit(rounds(tiny_simulation(make_algorithm("scaffold")), 1), None, None, [])
    with sqlite3.connect(tmp_path / FILE) as db:
        for was, now in ((1, 99), (2, 1), (99, 2)):
            db.execute("UPDATE tensors SET client = ? WHERE owner = 'client' AND client = ?", (now, was))
    with pytest.raises(DataError, match=r"client\.c is damaged"):
        store.read_state()
    store.close()


def test_a_reader_sees_whole_rounds_while_the_run_goes_on(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    seen = []

    def look(progress: Progress) -> None:
        with sqlite3.connect(tmp_path / FILE) as db:
            seen.append(db.execute("SELECT max(round), count(*) FROM rounds").fetchone())
        reader = Store.reading(tmp_path)
        state = reader.read_state()
        assert state is not None
        assert state.t == len(reader.history().rounds) == progress.round
        reader.close()

    execute(tiny_simulation(make_algorithm("feddc"), rounds=3), Evaluation(), store, look)
    assert seen == [(1, 1), (2, 2), (3, 3)]
    store.close()


def test_a_failed_commit_leaves_the_round_before(tmp_path: Path) -> None:
    """Round 2 comes twice: the second is refused as a whole, its state included."""
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("scaffold"), rounds=2)
    state, history = execute(simulation, Evaluation(), store)
    later, record = simulation.step(state)
    with pytest.raises(StoreError, match=r"round 3 could not be written to .*; the last whole round is 2: make room"):
        store.commit(later, record, history.rounds[1], [])
    kept = store.read_state()
    assert kept is not None
    assert kept.t == 2
    assert torch.equal(kept.server.w, state.server.w)
    store.close()


def test_events_say_when_and_what(tmp_path: Path) -> None:
    store = Store.create(tmp_path, Beginning(text="fedkeel 0"))
    execute(tiny_simulation(make_algorithm("fedavg"), rounds=2), Evaluation(), store)
    store.event("stopped", "by hand")
    store.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        rows = db.execute("SELECT round, kind, text FROM events ORDER BY id").fetchall()
    assert rows == [(0, "started", "fedkeel 0"), (2, "stopped", "by hand")]


def test_a_file_without_tables_is_no_run(tmp_path: Path) -> None:
    """What a process leaves that was killed between making the file and its first transaction."""
    (tmp_path / FILE).touch()
    assert not holds_run(tmp_path)
    Store.create(tmp_path).close()
    assert holds_run(tmp_path)
    with pytest.raises(DataError, match="holds a run already"):
        Store.create(tmp_path)
