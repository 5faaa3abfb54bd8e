"""Databases that somebody else made, or added to: nothing of them runs, and nothing is written to them."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.errors import DataError
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store, holds_run, rounds_done
from fedkeel.runs.verify import verify

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS round, i AS value FROM n"
ADDITIONS = {
    "trigger": "CREATE TRIGGER harm AFTER INSERT ON events BEGIN UPDATE meta SET value = 'seed = 9'; END",
    "view": f"CREATE VIEW harm AS {ENDLESS}",
    "index": "CREATE INDEX harm ON rounds (abs(lr))",
    "table": "CREATE TABLE harm (a)",
    "virtual table": "CREATE VIRTUAL TABLE harm USING fts5(a)",
    "view in place of a table": f"DROP TABLE rounds; CREATE VIEW rounds AS {ENDLESS}",
    "generated column": "ALTER TABLE metrics ADD COLUMN harm AS (abs(accuracy))",
    "column": "ALTER TABLE metrics ADD COLUMN harm",
    "missing table": "DROP TABLE kept",
    "view in place of the settings": f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS}",
    "statistics": "ANALYZE",
}
READERS: list[Callable[[Path], object]] = [Store.open, Store.reading, Store.create, holds_run, rounds_done, verify]


def a_run(folder: Path) -> None:
    store = Store.create(folder, "seed = 7\n")
    execute(tiny_simulation(make_algorithm("fedavg"), rounds=2), Evaluation(), store)
    store.close()


@pytest.mark.parametrize("statements", ADDITIONS.values(), ids=ADDITIONS)
def test_what_is_not_ours_is_refused_and_does_not_run(statements: str, tmp_path: Path) -> None:
    a_run(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.executescript(statements)
    before = (tmp_path / FILE).read_bytes()
    for reader in READERS:
        with pytest.raises(DataError, match=r"none of fedkeel's|is missing|made by something else"):
            reader(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    before = (tmp_path / FILE).read_bytes()
    for reader in READERS:
        with pytest.raises(DataError, match="made by something else"):
            reader(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_later_version_is_named(tmp_path: Path) -> None:
    a_run(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE meta SET value = '5' WHERE key = 'schema'")
        db.execute("CREATE TABLE new (a)")
    with pytest.raises(DataError, match="has format 5, this version reads 4"):
        Store.reading(tmp_path)


def test_a_tree_of_pages_without_an_end(tmp_path: Path) -> None:
    """Twelve pages, each of which names the next one sixty times: 60^12 times the diary, in a file of some KB."""
    a_run(tmp_path)
    page, depth, fan = 512, 12, 60
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {page}")
        db.execute("VACUUM")
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
    content = bytearray((tmp_path / FILE).read_bytes())
    place = slice((root - 1) * page, root * page)
    leaf, count = bytes(content[place]), len(content) // page

    def naming(child: int) -> bytes:
        """A page of a table's tree whose children are all the same page."""
        number, start = child.to_bytes(4, "big"), page - 5 * fan
        header = b"\x05\x00\x00" + fan.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\x00" + number
        pointers = b"".join((start + 5 * i).to_bytes(2, "big") for i in range(fan))
        return (header + pointers).ljust(start, b"\x00") + b"".join(number + bytes([i + 1]) for i in range(fan))

    content[place] = naming(count + 1)
    for level in range(1, depth):
        content += naming(count + level + 1)
    content += leaf
    content[28:32] = (len(content) // page).to_bytes(4, "big")
    (tmp_path / FILE).write_bytes(bytes(content))
    with closing(Store.reading(tmp_path)) as store, pytest.raises(DataError, match="its pages lead in circles"):
        store.events()
    with pytest.raises(DataError, match="is not a readable run"):
        Store.open(tmp_path)
