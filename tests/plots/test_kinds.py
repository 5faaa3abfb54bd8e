"""Every kind of picture of real runs, in every kind of file; and what cannot be drawn is said."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedkeel
from fedkeel import data, theme
from fedkeel.cli.main import app
from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.notices import FedkeelWarning
from fedkeel.plots import chart, drift, kinds
from fedkeel.plots.figure import Options
from fedkeel.plots.kinds import KINDS, draw, read
from fedkeel.plots.sources import choose
from fedkeel.theme import save_chart
from tests.plots import made, real
from tests.plots.looking import Page

NEEDS: dict[str, dict[str, Any]] = {"rounds": {"target": 0.3}, "values": {"names": ["tau", "L"]}}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_into_every_kind_of_file(runs: Path, kind: str, tmp_path: Path) -> None:
    picture = chart(runs, kind, **NEEDS.get(kind, {}))
    json.dumps(picture.to_dict(), allow_nan=False)
    starts = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF", "html": b"<!DOCTYPE html>"}
    assert starts.keys() == set(theme.SUFFIXES)
    for suffix, start in starts.items():
        content = save_chart(picture, tmp_path / f"a.{suffix}").read_bytes()
        assert content.startswith(start)
        assert len(content) > 1000


def test_kinds_are_listed_with_what_they_show(runs: Path) -> None:
    assert kinds().keys() == KINDS.keys()
    assert fedkeel.plot is chart
    help_text = CliRunner().invoke(app, ["plot", "--help"]).output
    assert all(kind in help_text for kind in KINDS)


def test_an_html_picture_loads_nothing_and_runs_nothing_that_a_name_holds(tmp_path: Path) -> None:
    figure, _ = read(made.chosen(**{EVIL: made.source(0, [0.1, 0.2])}), "accuracy", Options())
    text = save_chart(draw("accuracy", figure), tmp_path / "a.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "alert(1)" in text
    assert len(page.all("script")) == 1
    assert (page.loads, page.all("img"), page.handlers) == ([], [], [])
    svg = save_chart(draw("accuracy", figure), tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<script" not in svg
    assert "<img" not in svg


def test_the_command_draws_and_says_where(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.svg"
    result = CliRunner().invoke(app, ["plot", str(runs), "--kind", "rounds", "--target", "0.2", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert out.name in result.output
    assert "FedVeca" in out.read_text(encoding="utf-8")


def test_groups_are_seeds_of_the_same_settings_under_the_names_in_print(runs: Path) -> None:
    chosen = choose(runs)
    assert {name: [s.run.seed for s in group] for name, group in chosen.groups.items()} == {
        "FedAvg": [0, 1],
        "FedVeca": [0, 1],
    }
    assert "mnist5k · 4 clients, dirichlet 0.5 · logistic · seeds 0, 1" in chosen.setting
    named = choose({"mine": [path for path in sorted(runs.iterdir()) if "fedavg" in path.name]})
    assert list(named.groups) == ["mine"]
    for mixed in (runs, [next(runs.iterdir())] * 2):
        with pytest.raises(InputError, match="must differ in their seed alone"):
            choose({"mine": mixed})


def test_curves_are_those_of_the_stores(runs: Path) -> None:
    figure, told = read(choose(runs), "accuracy", Options())
    assert told == []
    for found in figure.rows[0]:
        group = choose(runs).groups[found.label]
        for round, mean, low, high in found.points:
            stored = [next(m.accuracy for m in s.run.history.series() if m.round == round) for s in group]
            assert (low, mean, high) == pytest.approx((min(stored), sum(stored) / 2, max(stored)))


def test_measured_drift_has_panels_and_a_map_of_its_own(runs: Path) -> None:
    panels = read(choose(runs), "drift", Options())[0].rows
    assert list(panels) == [drift.DISTANCE, *drift.MEASURED.values()]
    layers = read(choose(runs), "drift-layers", Options())[0].rows
    assert {(row["run"], row["layer"].rpartition(".")[2]) for row in layers} == {
        (run, part) for run in ("FedAvg", "FedVeca") for part in ("weight", "bias")
    }


def test_a_run_in_memory_is_drawn_as_it_is() -> None:
    fed = data.load("mnist5k").take(200).partition("dirichlet", clients=3, alpha=0.5, seed=0)
    runs = [fedkeel.train("fedveca", model="logistic", data=fed, rounds=2, seed=seed) for seed in (0, 1)]
    figure, _ = read(choose(runs), "accuracy", Options())
    assert [one.label for one in figure.rows[0]] == ["FedVeca"]
    for kind in ("partition", "fairness", "values", "conformal"):
        assert fedkeel.plot(runs[0], kind, **({"names": "tau"} if kind == "values" else {})).to_dict()
    with pytest.warns(FedkeelWarning, match="fedveca is given more than once, and shown once"):
        fedkeel.plot([runs[0], runs[0]])
    assert fedkeel.plot({"one": runs[0], "two": runs[1]}).to_dict()


def test_of_duplicates_one_is_drawn_and_the_other_named(runs: Path, tmp_path: Path) -> None:
    """A copy of a folder: b/ has all that a/ has, which comes first."""
    for name in ("a", "b"):
        shutil.copytree(runs, tmp_path / name)
    alone = chart(tmp_path / "a").to_dict()
    for kind in ("accuracy", "partition"):
        with pytest.warns(FedkeelWarning) as told:
            both = chart(tmp_path, kind)
        words = "\n".join(str(one.message) for one in told)
        left = re.findall(r"/b/(\w+)-mnist5k-seed\d is left out", words)
        assert left == ["fedavg", "fedavg", "fedveca", "fedveca"]
        if kind == "accuracy":
            assert both.to_dict() == alone


def test_a_run_of_given_data_says_who_can_show_them(tmp_path: Path) -> None:
    fed = data.load("mnist5k").take(200).partition("dirichlet", clients=3, alpha=0.5, seed=0)
    run = fedkeel.train("fedavg", model="logistic", data=fed, rounds=1, steps=1, directory=tmp_path / "a")
    assert fedkeel.plot(run, "partition").to_dict()
    with pytest.raises(InputError, match=r"fedkeel\.plot\(run"):
        fedkeel.plot(tmp_path / "a", "partition")
    assert fedkeel.plot(tmp_path / "a").to_dict()


def test_options_without_effect_and_unknown_ones_are_refused(runs: Path) -> None:
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("accuracy", {"names": ["tau"]}, "names changes nothing"),
        ("partition", {"target": 0.5}, "target changes nothing"),
        ("accuracy", {"band": "ci"}, "there is no band named 'ci'"),
        ("conformal", {"method": "x"}, "there is no method named 'x'"),
        ("accuracy", {"target": 2}, r"target must be a test accuracy in \[0, 1\]"),
        ("acuracy", {}, "Did you mean 'accuracy'"),
    ]
    for kind, options, message in refused:
        with pytest.raises(InputError, match=message):
            chart(runs, kind, **options)


def test_runs_on_other_data_do_not_share_axes(runs: Path, tmp_path: Path) -> None:
    other = real.make(tmp_path, data={"name": "mnist5k", "samples": 300})
    with pytest.raises(InputError, match="cannot be compared"):
        chart([runs, other])
    with pytest.raises(InputError, match="name one of them"):
        chart([runs, other], "partition")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FedkeelError, match="no accuracies of clients"):
            chart(real.make(tmp_path / "b", evaluation={"clients": False}), "fairness")


def test_places_without_runs_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "file").write_text("text")
    for name in ("missing", "empty", "foreign", "file"):
        with pytest.raises(DataError):
            chart(tmp_path / name)
    for given in ([], {}, 3, None, {"a": []}):
        with pytest.raises(InputError, match="runs must be"):
            chart(given)
    result = CliRunner().invoke(app, ["plot", str(tmp_path / "empty")])
    assert isinstance(result.exception, FedkeelError)


def test_a_name_of_a_file_that_no_picture_has_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plot", str(tmp_path / "missing"), "-o", "a.gif"])
    assert "chart path must be" in str(result.exception)
