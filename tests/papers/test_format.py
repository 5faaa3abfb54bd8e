"""Papers as data: what is read, and what a slip in a file is answered with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedkeel.errors import DataError, InputError
from fedkeel.papers.format import exhibit, exhibits, merged, papers, read
from fedkeel.papers.published import Published, parsed
from fedkeel.papers.records import Record, Records, path_of, publish, rounded, series, write
from fedkeel.papers.records import read as read_record

PAPER = """
[paper]
title = "T"
authors = "A"
venue = "V"
own = ["feddc"]
[smoke]
data = { name = "mnist5k" }
[settings.base]
where = "here"
open = ["one"]
data = { name = "mnist", normalise = "unit" }
training = { rounds = 4, lr = 0.1 }
[settings.child]
base = "base"
open = ["two"]
needs = ["gpu"]
data = { name = "cifar10" }
training = { lr = 0.2 }
[methods.feddc]
[methods.fedavg]
title = "FedAvg"
[exhibits.t]
where = "Table 1"
kind = "table"
title = "t"
shows = "s"
methods = ["fedavg", "feddc"]
[[exhibits.t.columns]]
id = "c"
title = "C"
setting = "child"
measures = [{ kind = "best" }, { kind = "final", metric = "loss" }]
published = { feddc = [98.5, "~0.3 ± 0.02"] }
"""


def test_a_setting_has_what_its_base_has_and_a_section_of_another_name_starts_anew() -> None:
    child = read("p", PAPER).settings["child"]
    assert child.where == "here"
    assert child.open == ("one", "two")
    assert child.data == {"name": "cifar10"}  # normalise belonged to mnist
    assert child.training == {"rounds": 4, "lr": 0.2}


def test_a_table_has_a_line_for_every_method_and_a_number_for_every_measure() -> None:
    column = read("p", PAPER).exhibits["t"].columns[0]
    assert [line.method for line in column.lines] == ["fedavg", "feddc"]
    assert column.printed("feddc") == (Published("value", 98.5), Published("value", 0.3, 0.02, True))
    assert [one.kind for one in column.printed("fedavg")] == ["missing", "missing"]
    assert [measure.printed_scale for measure in column.measures] == [100, 1]
    assert [measure.lower_is_better for measure in column.measures] == [False, True]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('where = "here"', 'wher = "here"', "settings.base"),
        ("[settings.child]", "[setings.child]", "setings"),
        ('base = "base"', 'base = "bass"', "settings.child.base"),
        ('base = "base"', 'base = "child"', "leads back"),
        ('setting = "child"', 'setting = "kid"', "exhibits.t.columns.1.setting"),
        ('setting = "child"', "", "has no setting"),
        ('methods = ["fedavg", "feddc"]', 'methods = ["fedavg", "fedc"]', "feddc"),
        ('kind = "best"', 'kind = "bets"', "exhibits.t.columns.1.measures.0.kind"),
        ('metric = "loss"', 'metric = "los"', "metric"),
        ('kind = "best"', 'kind = "rounds_to"', "target"),
        ('kind = "best"', 'kind = "at"', "round"),
        ('feddc = [98.5, "~0.3 ± 0.02"]', "feddc = 98.5", "2 values"),
        ('feddc = [98.5, "~0.3 ± 0.02"]', "fedprox = [1, 2]", "fedprox"),
        ('"~0.3 ± 0.02"', '"about 0.3"', "published.feddc"),
        ('needs = ["gpu"]', 'needs = ["gpus"]', "settings.child.needs"),
        ('needs = ["gpu"]', 'needs = ["data"]', "settings.child.needs"),
        ('kind = "table"', 'kind = "curves"', "columns"),
        ('title = "FedAvg"', 'titel = "FedAvg"', "methods.fedavg"),
        ('title = "FedAvg"', 'work_of = "fedveca"', "methods.fedavg.work_of"),
        ('title = "FedAvg"', "training = { rounds = 3 }", "methods.fedavg.training.rounds"),
        ('title = "FedAvg"', "[methods.fedavg.at.kid]", "methods.fedavg.at"),
        ('own = ["feddc"]', "", "own"),
        ('title = "T"', "title = ", "not valid TOML"),
    ],
)
def test_a_slip_is_named_with_its_file_and_key(was: str, now: str, said: str) -> None:
    assert was in PAPER
    with pytest.raises(InputError) as caught:
        read("slip", PAPER.replace(was, now, 1))
    assert "slip.toml" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        (62, Published("value", 62.0)),
        (">600", Published("beyond", 600.0)),
        ("97.86 ± 0.2", Published("value", 97.86, 0.2)),
        ("~77.07", Published("value", 77.07, uncertain=True)),
        ("*", Published("never")),
    ],
)
def test_published_values_are_read_as_printed(printed: object, meant: Published) -> None:
    assert parsed("x", printed) == meant
    assert parsed("x", str(meant)) == meant


@pytest.mark.parametrize("printed", [True, None, math.nan, "", ">", "> 6 ± 1", "1,000", "~", [1], "-3"])
def test_what_no_paper_prints_is_refused(printed: object) -> None:
    with pytest.raises(InputError, match="x must be"):
        parsed("x", printed)


def test_the_shipped_papers_are_whole() -> None:
    for name, paper in papers().items():
        assert paper.exhibits
        for method in paper.own:
            assert method in paper.methods
        assert all(one.id.startswith(f"{name}.") for one in paper.exhibits.values())
    with pytest.raises(InputError, match=r"feddc\.table1"):
        exhibit("feddc.tabel1")
    assert exhibit("feddc.table1") is exhibits()["feddc.table1"]


def test_tables_merge_field_by_field() -> None:
    below = {"partition": {"rule": "iid", "clients": 3}, "training": {"lr": 1}}
    assert merged(below, {"partition": {"clients": 5}})["partition"] == {"rule": "iid", "clients": 5}
    assert merged(below, {"partition": {"rule": "dirichlet"}})["partition"] == {"rule": "dirichlet"}
    assert below["partition"] == {"rule": "iid", "clients": 3}


def record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "paper": "feddc",
        "setting": "mnist",
        "scale": "reduced",
        "method": "fedavg",
        "seed": 0,
        "key": "k",
        "experiment": {"seed": 0},
        "fedkeel": "0",
        "rounds": 2,
        "ended": "finished",
        "series": {"accuracy": series([(1, 0.123456789), (2, math.nan)])},
        "values": {"tau": ((1, 2), ((2.0, 3.0), (4.0, None)))},
        "steps": 4,
        "bytes_up": 1,
        "bytes_down": 1,
        "seconds": 0.5,
    }
    return Record.model_validate(fields | changes)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    one = record()
    path = write(tmp_path, one)
    assert path == tmp_path / "feddc" / "mnist--fedavg--seed0--reduced.json"
    assert read_record(path) == one
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(Record.model_fields) + 2
    assert one.series["accuracy"] == ((1, 2), (0.123457, None))
    found = Records.of(tmp_path)
    assert found.get("feddc", "mnist", "fedavg", 0, "reduced") == one
    assert found.get("feddc", "mnist", "fedavg", 0) is None
    assert rounded(math.inf) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "feddc" / "a.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json cannot be used"):
        Records.of(tmp_path)


def test_a_record_under_another_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, record())
    path.rename(path.with_name("mnist--fedavg--seed1--reduced.json"))
    with pytest.raises(DataError, match="is that of mnist--fedavg--seed0--reduced"):
        Records.of(tmp_path)


def test_publishing_replaces_only_by_what_came_further(tmp_path: Path) -> None:
    source, target = tmp_path / "paper-runs", tmp_path / "results"

    def published(one: Record, replace: bool = False) -> str:
        write(source / "records", one)
        (done,) = publish(source, target, replace)
        return done.done

    write(source / "records", record(scale="smoke"))  # says nothing about a paper
    assert published(record(rounds=5)) == "new"
    assert published(record(rounds=5)) == "same"
    assert published(record(rounds=4)) == "kept"
    assert published(record(rounds=6, key="other")) == "kept"
    assert read_record(path_of(target, record())).rounds == 5
    assert published(record(rounds=7)) == "longer"
    assert published(record(rounds=4), replace=True) == "replaced"
    assert read_record(path_of(target, record())).rounds == 4
