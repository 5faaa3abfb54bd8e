"""``fedkeel runs``: what a line says of runs that go on, ended one way or another, or are no runs at all."""

import csv
import io
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedkeel import api, config
from fedkeel.cli.main import app
from fedkeel.runs import overview as runs_overview
from fedkeel.runs.lock import FILE as LOCK
from fedkeel.runs.lock import RunLock, holder, is_held
from fedkeel.runs.overview import Overview, Overviews, overview, overviews, thinned
from fedkeel.runs.reported import reported
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import FILE, Store
from tests.hostile import values


def experiment(rounds: int = 3, seed: int = 0) -> config.Experiment:
    table: dict[str, Any] = {
        "seed": seed,
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "participation": 0.4, "steps": 2},
        "run": {"executor": "serial"},
    }
    return config.expand(table, [])[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "r"
    api.run(experiment(), folder)
    return folder


def shown(*words: str) -> str:
    result = CliRunner().invoke(app, ["runs", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_line_says_what_the_history_says(finished: Path) -> None:
    with closing(Store.reading(finished)) as store:
        history = store.history()
    line = overview(finished)
    last, best = history.final(), history.best()
    assert last is not None
    assert best is not None
    assert (line.name, line.state, line.algorithm, line.data, line.seed) == ("r", "finished", "fedavg", "mnist5k", 0)
    assert (line.done, line.rounds, line.bytes) == (3, 3, history.bytes_to(3))
    assert (line.accuracy.last, line.accuracy.best) == (last.accuracy, best.accuracy)
    assert line.seconds == pytest.approx(history.seconds)


def test_every_state_is_told(tmp_path: Path) -> None:
    seen: list[Overview] = []

    def look(progress: Progress) -> None:
        seen.append(overview(tmp_path / "a"))
        assert is_held(tmp_path / "a")  # looking let nobody else in

    api.run(experiment(), tmp_path / "a", watch=look)
    assert [(line.state, line.done) for line in seen] == [("running", 1), ("running", 2), ("running", 3)]
    assert overview(tmp_path / "a").state == "finished"

    api.run(experiment(), tmp_path / "b", stop=lambda: True)
    assert overview(tmp_path / "b").state == "stopped"

    def fail(progress: Progress) -> None:
        raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError):
        api.run(experiment(), tmp_path / "c", watch=fail)
    line = overview(tmp_path / "c")
    assert (line.state, line.done, line.note) == ("interrupted", 1, "RuntimeError: out of paper")

    api.run(experiment(), tmp_path / "b", resume=True)
    assert overview(tmp_path / "b").state == "finished"


def test_a_lock_of_another_process_is_seen_and_not_taken(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    code = "import sys; from pathlib import Path; from fedkeel.runs.lock import RunLock\n"
    code += f"with RunLock(Path({str(folder)!r})): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        assert overview(folder).state == "running"
        holder.stdin.close()
    assert overview(folder).state == "finished"
    with RunLock(folder):
        assert is_held(folder)
    assert not is_held(folder)


def test_what_is_no_sound_run_is_a_line_with_a_sentence(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "good")
    for name in ("foreign", "short", "text", "changed", "empty", "pipe", "folder"):
        (tmp_path / name).mkdir()
    with closing(sqlite3.connect(tmp_path / "foreign" / FILE)) as db:
        db.execute("CREATE TABLE mine (x)")
    (tmp_path / "short" / FILE).write_bytes((finished / FILE).read_bytes()[:70_000])
    (tmp_path / "text" / FILE).write_text("not a database, but long enough to look at\n" * 50)
    shutil.copy(finished / FILE, tmp_path / "changed" / FILE)
    with closing(sqlite3.connect(tmp_path / "changed" / FILE)) as db:
        db.execute("UPDATE meta SET value = replace(value, 'fedavg', 'feddyn') WHERE key = 'configuration'")
        db.commit()
    (tmp_path / "empty" / FILE).touch()
    os.mkfifo(tmp_path / "pipe" / FILE)
    os.mkfifo(tmp_path / "pipe" / LOCK)
    (tmp_path / "folder" / FILE).mkdir()
    lines = {line.name: line for line in overviews(tmp_path)}
    assert lines.pop("good").state == "finished"
    assert lines.pop("empty").state == "interrupted"
    assert {name: line.state for name, line in lines.items()} == dict.fromkeys(
        ("foreign", "short", "text", "changed", "pipe", "folder"), "damaged"
    )
    assert all(line.note.endswith(".") for line in lines.values()), lines


def test_reading_changes_nothing(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    overview(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before} == before


def test_names_reach_terminal_and_files_as_text(finished: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    names = ["\x1b[31mred\x1b[0m", "[bold]x[/bold]", "[/]", "a\nb", "\u202eevil", "=1+1", '"q",', "x" * 200]
    names += [values.text(rng) for _ in range(20)]
    made = set()
    for name in names:
        folder = name.replace("/", "_").replace("\x00", "")[:60]
        try:
            os.fsencode(folder)
            if folder in ("", ".", "..") or (tmp_path / folder).exists():
                continue
            (tmp_path / folder).mkdir()
        except (OSError, UnicodeError):
            continue
        shutil.copy(finished / FILE, tmp_path / folder / FILE)
        made.add(folder)
    raw = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
    table, listed, as_json = shown(str(tmp_path)), shown(str(tmp_path), "--csv"), shown(str(tmp_path), "--json")
    for text in (table, listed, as_json):
        assert not raw.search(text)
    assert "[bold]x[_bold]" in table
    assert {line["name"] for line in json.loads(as_json)} == made
    assert len(list(csv.DictReader(io.StringIO(listed)))) == len(made)


def test_the_table_holds_at_80_columns(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkeel.cli import screen

    monkeypatch.setattr(screen.console, "_width", 80)
    shutil.copytree(finished, tmp_path / ("long-" * 12))
    shutil.copytree(finished, tmp_path / "deep" / "er" / "r")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE).write_text("no database at all\n" * 100)
    text = shown(str(tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    assert "finished" in text
    assert "damaged" in text


def test_orders(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "z")
    api.run(experiment(1, seed=4), tmp_path / "a")
    api.run(experiment(5), tmp_path / "m")
    rows = json.loads(shown(str(tmp_path), "--json", "--sort", "rounds"))
    assert [row["done"] for row in rows] == [5, 3, 1]
    rows = json.loads(shown(str(tmp_path), "--json", "--sort", "best"))
    assert [row["best"] for row in rows] == sorted((row["best"] for row in rows), reverse=True)
    assert [row["name"] for row in json.loads(shown(str(tmp_path), "--json"))] == ["a", "m", "z"]


def test_the_three_accuracies_by_hand() -> None:
    """Of 20 rounds the last tenth are 19 and 20: (0.5 + 0.7) / 2 = 0.6."""
    found = reported([(5, 0.9), (18, 0.1), (19, 0.5), (20, 0.7)], 20)
    assert (found.last, found.late, found.best, found.best_round) == (0.7, pytest.approx(0.6), 0.9, 5)
    assert reported([(5, 0.9)], 20).late == 0.9
    assert str(reported([], 3)) == "no accuracy measured"


def test_a_run_that_did_not_change_is_not_read_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    kept = Overviews(tmp_path)
    monkeypatch.setattr(runs_overview, "SETTLED", -(10**18))  # the copy was made just now
    first = kept.line(folder)
    with monkeypatch.context() as blind:
        blind.setattr(runs_overview, "_read", None)
        assert kept.line(folder) == first
        with RunLock(folder):
            assert kept.line(folder).state == "running"  # which is asked all the same
        kept.forget(but=set())
        with pytest.raises(TypeError):
            kept.line(folder)
    status = (folder / FILE).stat()
    with closing(sqlite3.connect(folder / FILE)) as db:
        db.execute("UPDATE metrics SET accuracy = 0.125 WHERE round = 3")
        db.commit()
    os.utime(folder / FILE, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had been
    assert kept.line(folder).accuracy.last == 0.125


def test_what_is_kept_of_a_run_that_goes_on_is_never_behind(tmp_path: Path) -> None:
    """Rounds follow each other faster than clocks of file systems tick, so that times alone would not tell."""
    kept = Overviews(tmp_path)
    seen: list[bool] = []

    def look(progress: Progress) -> None:
        seen.append(kept.line(tmp_path / "a") == overview(tmp_path / "a"))

    api.run(experiment(rounds=12), tmp_path / "a", watch=look)
    assert seen == [True] * 12
    assert kept.line(tmp_path / "a") == overview(tmp_path / "a")
    assert kept.line(tmp_path / "a").state == "finished"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.integers(2, 80))
def test_a_thinned_curve_keeps_its_ends_and_its_order(values: list[int], most: int) -> None:
    found = thinned(values, most)
    assert (found[0], found[-1], len(found)) == (values[0], values[-1], min(len(values), most))
    rest = iter(values)
    assert all(value in rest for value in found)


def test_the_system_knows_who_holds_a_run(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with RunLock(tmp_path):
        assert holder(tmp_path) == os.getpid()
        code = "import sys; from pathlib import Path; from fedkeel.runs.lock import holder; "
        code += f"print(holder(Path({str(tmp_path)!r})))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert int(told.stdout) == os.getpid()
    assert holder(tmp_path) is None
