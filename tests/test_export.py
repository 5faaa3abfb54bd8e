"""``fedkeel export``, and tables for other programs: what is in them is what the run holds, and text stays text."""

import csv
import io
import json
import math
import shutil
import sqlite3
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
from fedkeel.cli.tables import as_csv_text, as_markdown
from fedkeel.comparison.groups import read
from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import FILE, Store
from fedkeel.runs.verify import verify
from tests.runs.test_migration import as_schema_2, as_schema_3

ROUNDS = 4


def experiment(**changes: Any) -> config.Experiment:
    table: dict[str, Any] = {
        "algorithm": {"name": "fedveca"},
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": ROUNDS, "participation": 1.0},
        "evaluation": {"every": 2, "train": True, "clients": True, "metrics": ["f1"]},
        "run": {"executor": "serial"},
    }
    return config.expand(table | changes, [])[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "r"
    api.run(experiment(), path)
    return path


def exported(*words: str) -> str:
    result = CliRunner().invoke(app, ["export", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def test_csv_holds_every_number_of_every_round_exactly(folder: Path) -> None:
    with closing(Store.reading(folder)) as store:
        history = store.history()
    table = rows(exported(str(folder), "--csv"))
    assert [int(row["round"]) for row in table] == [1, 2, 3, 4]
    for row, summary in zip(table, history.rounds, strict=True):
        for name in ("lr", "clients", "bytes_up", "bytes_down", "seconds", "train_loss"):
            assert number(row[name]) == getattr(summary, name)
    for m in history.measured:
        row = table[m.round - 1]
        before = "" if m.split == "test" else f"{m.model} {m.split} "
        assert number(row[f"{before}accuracy"]) == m.accuracy
        assert number(row[f"{before}loss"]) == m.loss
        assert number(row[f"{before}metric f1"]) == m.metrics["f1"]
    assert {(row["accuracy"], row["metric f1"]) for row in (table[0], table[2])} == {("", "")}  # not evaluated
    for round, noted in history.noted.items():
        for name, value in noted.items():
            if isinstance(value, dict):
                mean = sum(value.values()) / len(value)
                assert float(table[round - 1][f"mean value {name}"]) == pytest.approx(mean, nan_ok=True)
            else:
                assert float(table[round - 1][f"value {name}"]) == pytest.approx(value, nan_ok=True)
    for round, times in history.times.items():
        assert {name: number(table[round - 1][name]) for name in times} == times
    for round, even in history.fairness.items():
        assert number(table[round - 1]["fairness worst"]) == even.worst
    assert history.noted
    assert history.times
    assert set(history.fairness) == {2, 4}


def test_the_long_table_has_a_row_for_each_client_of_each_round(folder: Path) -> None:
    table = {(int(r["round"]), int(r["client"])): r for r in rows(exported(str(folder), "--clients"))}
    assert table.keys() == {(t, i) for t in range(1, ROUNDS + 1) for i in range(5)}
    with closing(sqlite3.connect(folder / FILE)) as db:
        for round, client, steps, loss, drift in db.execute("SELECT * FROM clients"):
            row = table[round, client]
            assert (int(row["steps"]), number(row["train_loss"]), number(row["drift"])) == (steps, loss, drift)
        evaluated = db.execute("SELECT * FROM client_metrics").fetchall()
        for round, client, split, accuracy, loss in evaluated:
            row = table[round, client]
            assert (number(row[f"{split} accuracy"]), number(row[f"{split} loss"])) == (accuracy, loss)
            assert row[f"{split} f1"]
        assert len(evaluated) == 10
        for round, name, client, value in db.execute(
            "SELECT round, name, client, value FROM named_values WHERE split = '' AND client >= 0"
        ):
            assert table[round, client][f"value {name}"] == ("nan" if value is None else repr(value))


def test_parquet_has_types_and_tells_unmeasured_from_nan(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    exported(str(folder), "-o", str(tmp_path / "r.parquet"))
    table = parquet.read_table(tmp_path / "r.parquet").to_pydict()
    text = rows(exported(str(folder)))
    assert table["round"] == [1, 2, 3, 4]
    assert table["bytes_up"] == [int(row["bytes_up"]) for row in text]
    assert table["accuracy"] == [number(row["accuracy"]) for row in text]
    assert table["accuracy"][0] is None


def test_parquet_without_pyarrow_is_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    result = CliRunner().invoke(app, ["export", str(folder), "-o", str(tmp_path / "r.parquet")])
    assert isinstance(result.exception, InputError)
    assert "pip install pyarrow, or choose --csv" in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--csv", "--md"], "--csv and --md exclude each other"),
        (["--parquet"], "add -o FILE"),
        (["-o", "table.xls"], "say --csv, --parquet or --md"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["export", str(folder), *words])
    assert isinstance(result.exception, FedkeelError)
    assert said in str(result.exception)


def test_a_folder_without_a_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path), "-o", str(tmp_path / "r.csv")])
    assert isinstance(result.exception, DataError)
    assert "there is no run in" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_run_that_goes_on_can_be_exported(tmp_path: Path) -> None:
    seen = []

    def look(progress: Progress) -> None:
        seen.append(len(rows(exported(str(tmp_path / "r")))))

    api.run(experiment(), tmp_path / "r", watch=look)
    assert seen == [1, 2, 3, 4]


texts = st.text(st.sampled_from("=+-@\t\r\n|`<>*_[]\\'\",;a1 ") | st.characters(), max_size=12)
numbers = st.integers(-(2**53), 2**53) | st.floats()


@given(st.lists(st.tuples(texts, numbers), max_size=5), texts)
def test_no_text_in_csv_is_a_formula_and_no_number_is_changed(cells: list[tuple[str, float]], heading: str) -> None:
    columns = [f"{heading}x", "number"]
    made = as_csv_text(columns, [{columns[0]: text, "number": value} for text, value in cells])
    header, *lines = list(csv.reader(io.StringIO(made)))
    assert len(lines) == len(cells)
    for text in (header[0], *(line[0] for line in lines)):
        assert not text.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        assert text.isprintable()
    for line, (text, value) in zip(lines, cells, strict=True):
        assert float(line[1]) == value or math.isnan(value)
        if text.isprintable() and text[:1] not in "=+-@＝＋－＠":
            assert line[0] == text


@given(st.lists(st.tuples(texts, numbers), max_size=5))
def test_a_markdown_table_keeps_its_shape_whatever_names_hold(cells: list[tuple[str, float]]) -> None:
    made = as_markdown(["a|b", "n"], [{"a|b": text, "n": value} for text, value in cells])
    lines = made.splitlines()
    assert len(lines) == len(cells) + 2
    for line in lines:
        bare = line.replace("\\\\", "").replace("\\|", "")
        assert bare.count("|") == 3
        assert "<" not in bare.replace("\\<", "")


def test_names_in_runs_and_compare_are_no_formulas_either(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "=1+1")
    (listed,) = rows(CliRunner().invoke(app, ["runs", str(tmp_path), "--csv"]).stdout)
    assert listed["name"] == "'=1+1"
    assert float(listed["last"]) > 0
    result = CliRunner().invoke(app, ["compare", str(folder), "--csv"])
    (group,) = rows(result.stdout)
    assert (group["name"], group["seeds"], float(group["last"])) == ("fedveca", "1", float(listed["last"]))


@pytest.mark.parametrize("older", [as_schema_2, as_schema_3])
def test_runs_of_earlier_versions_are_read_as_they_are(folder: Path, tmp_path: Path, older: Any) -> None:
    """All that their version could hold, and their files stay as they were."""
    api.run(experiment(evaluation={"every": 2}, algorithm={"name": "scaffold"}), tmp_path / "r")
    rounds, clients = rows(exported(str(tmp_path / "r"))), exported(str(tmp_path / "r"), "--clients")
    known = [{name: value for name, value in row.items() if not name.startswith("time.")} for row in rounds]
    assert known != rounds  # what named values hold came later
    older(tmp_path / "r")
    bytes_before = (tmp_path / "r" / FILE).read_bytes()
    assert (rows(exported(str(tmp_path / "r"))), exported(str(tmp_path / "r"), "--clients")) == (known, clients)
    assert len(read(tmp_path / "r").history.rounds) == ROUNDS
    (listed,) = json.loads(CliRunner().invoke(app, ["runs", str(tmp_path), "--json"]).stdout)
    assert listed["state"] == "finished"
    with pytest.raises(DataError, match="continue that run once with --resume"):
        verify(tmp_path / "r")  # which must not call digests sound that a copy just got
    assert (tmp_path / "r" / FILE).read_bytes() == bytes_before
