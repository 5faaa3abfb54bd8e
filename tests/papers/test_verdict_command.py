"""``fedkeel paper verdict`` and ``fedkeel paper figure`` as a person types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fedkeel.papers
from fedkeel.cli.main import app
from fedkeel.errors import DataError, InputError
from fedkeel.papers.format import exhibits, papers
from fedkeel.papers.records import Record, write
from tests.papers.test_pages import run_of


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, ["paper", *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("records")
    for seed, reached in enumerate((61, 62, 63)):
        write(made, run_of("feddc", "mnist-d2-15", "feddc", reached, seed))
    write(made, run_of("feddc", "mnist-d2-15", "scaffold", 72))
    return made


def test_a_table_on_the_screen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = typed("verdict", "feddc.table1", "--from", str(folder))
    assert found.exit_code == 0, found.output
    assert "62 ± 1" in found.stdout
    assert "2 reproduced" in found.stdout


def test_columns_that_nobody_has_run_are_named_and_shown_on_request(folder: Path) -> None:
    """A column is a table headed by its title; the others are only named. Where nothing is run, all are tables."""
    columns = {column.title for column in fedkeel.papers.verdict("feddc.table1", records=folder).columns}

    def tables(*more: str) -> set[str]:
        return {
            line.partition(": ")[0] for line in typed("verdict", "feddc.table1", *more).stdout.splitlines()
        } & columns

    assert tables("--from", str(folder)) == {"MNIST D2, 15 %"}
    shown = " ".join(typed("verdict", "feddc.table1", "--from", str(folder)).stdout.split())
    assert all(title in shown for title in columns)
    assert tables("--from", str(folder), "--all") == columns
    assert tables("--from", str(folder), "--scale", "smoke") == columns


def test_where_nothing_is_run_the_next_command_is_named(folder: Path, tmp_path: Path) -> None:
    """An empty folder: a column without declared needs; a smoke run: how to see it; a record: neither."""

    def last(where: Path, name: str = "feddc.table1", *more: str) -> str:
        return typed("verdict", name, "--from", str(where), *more).stdout.splitlines()[-1]

    begin = "To begin with a part of it: fedkeel paper run"
    assert last(tmp_path) == f"{begin} feddc.table1 --only mnist-d1-all"
    assert last(tmp_path, "feddc.table3").startswith(f"{begin} feddc.table3 --only mnist-iid-all")
    assert begin not in last(tmp_path, "feddc.table2")
    write(tmp_path, run_of("feddc", "mnist-d2-15", "feddc", 2, scale="smoke"))
    assert last(tmp_path).endswith("--scale smoke shows them.")
    assert begin not in last(tmp_path, "feddc.table1", "--scale", "smoke")
    assert begin not in last(folder)


def test_the_same_for_a_program(folder: Path) -> None:
    found = typed("verdict", "feddc.table1", "--from", str(folder), "--json")
    (table,) = json.loads(found.stdout)
    column = next(one for one in table["columns"] if one["id"] == "mnist-d2-15")
    cell = next(one for one in column["cells"] if one["method"] == "feddc")
    assert (cell["published"], cell["verdict"], cell["scale"]) == ("62", "reproduced", "full")
    assert (cell["ours"]["value"], cell["ours"]["sd"], cell["ours"]["seeds"]) == (62.0, 1.0, 3)
    assert sum(table["counts"].values()) == sum(len(one["cells"]) for one in table["columns"])


def test_the_same_as_markdown(folder: Path) -> None:
    found = typed("verdict", "feddc.table1", "--from", str(folder), "--md")
    assert "| FedDC | 62 | 62 ± 1 | 66.0 | 3 | reproduced | Ours 62 ± 1, printed 62: 0 apart," in found.stdout


def test_the_same_from_python(folder: Path) -> None:
    found = fedkeel.papers.verdict("feddc.table1", records=folder)
    assert found.counts["reproduced"] == 2
    assert fedkeel.papers.verdict("feddc.table1", records=folder, scale="reduced").counts["reproduced"] == 0
    assert fedkeel.papers.figure("feddc.figure3", records=folder).to_dict()["title"]["text"]
    with pytest.raises(InputError, match="there is no folder nowhere"):
        fedkeel.papers.verdict("feddc.table1", records="nowhere")


def test_all_of_a_paper_and_every_exhibit_without_records(tmp_path: Path) -> None:
    for name in papers():
        found = typed("verdict", name, "--from", str(tmp_path), "--json")
        assert found.exit_code == 0, found.output
        assert [one["id"] for one in json.loads(found.stdout)] == [i for i in exhibits() if i.startswith(f"{name}.")]
    found = typed("verdict", "fedveca", "--from", str(tmp_path))
    assert "In all: 0 reproduced" in found.stdout


def test_a_figure_becomes_a_file(folder: Path, tmp_path: Path) -> None:
    line = papers()["feddc"].exhibits["figure3"].panels[0].lines[0]
    write(tmp_path, run_of("feddc", line.setting, line.method, 60))
    found = typed("figure", "feddc.figure3", "-o", str(tmp_path / "f.svg"), "--from", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert "not run" in (tmp_path / "f.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verdict", "feddc.table9"], r"no table or figure named 'feddc.table9'\. Did you mean"),
        (["verdict", "feddc.table1", "--from", "nowhere"], "there is no folder nowhere"),
        (["verdict", "feddc.table1", "--scale", "big"], "there is no scale named 'big'"),
        (["figure", "feddc.table1", "-o", "f.png"], "is a table, not a figure"),
        (["figure", "feddc.figure1", "-o", "f.png"], "drawn by hand"),
        (["figure", "feddc.figure3", "-o", "f.gif"], "chart path must be a file name ending in"),
    ],
)
def test_mistakes_are_told(words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = typed(*words)
    assert isinstance(found.exception, InputError)
    with pytest.raises(InputError, match=says):
        raise found.exception


def test_a_record_that_is_not_described_any_more_is_refused(tmp_path: Path) -> None:
    made: Record = run_of("feddc", "mnist-d2-15", "feddc", 60).model_copy(update={"key": "0" * 64})
    write(tmp_path, made)
    assert isinstance(typed("verdict", "feddc.table1", "--from", str(tmp_path)).exception, DataError)
