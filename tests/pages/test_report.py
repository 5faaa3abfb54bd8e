"""The report of runs: what it says, that it stands alone, and that text stays text in it."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedkeel
from fedkeel import api, config, data, theme
from fedkeel.algorithms.state import State
from fedkeel.cli.main import app
from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.pages.document import Part, page, parts_of
from fedkeel.pages.facts import short_names
from fedkeel.pages.markup import Markup, inner, table, tag
from fedkeel.pages.pictures import NARROW
from fedkeel.pages.style import style
from fedkeel.plots.kinds import KINDS
from tests.plots import made, real
from tests.plots.looking import Page

EVIL = "</td></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return real.make(folder, {"algorithm": ["fedavg", "fedveca"], "seed": [0, 1]})


@pytest.fixture(scope="module")
def found(runs: Path) -> Page:
    return Page(fedkeel.report(runs, runs / "report.html", target=0.2).read_text(encoding="utf-8"))


def test_the_answer_comes_first_and_everything_follows(found: Page) -> None:
    order = ["has the highest accuracy over the last 10 %", "Difference to FedAvg", "Test accuracy over rounds"]
    order += ["Accuracy of single clients", "Settings that differ", "Environment", "torch", "Repeat it"]
    places = [found.text.index(words) for words in order]
    assert places == sorted(places)
    assert "fedkeel run fedavg-mnist5k-seed0/experiment.toml --out again" in found.text
    assert "[training]" in found.text


def test_numbers_are_those_of_the_histories(runs: Path, found: Page) -> None:
    """Mean ± standard deviation of two seeds: |a − b|/√2."""
    for name in ("fedavg", "fedveca"):
        first, second = (api.stored.read_run(runs / f"{name}-mnist5k-seed{seed}")[2].reported().last for seed in (0, 1))
        assert f"{50 * (first + second):.2f} ± {100 * abs(first - second) / 2**0.5:.2f}" in found.text


def test_it_stands_alone(runs: Path, found: Page) -> None:
    assert (found.loads, found.handlers, found.all("script")) == ([], [], [])
    text = (runs / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(text) < 1_000_000


def test_a_run_that_is_there_twice_is_told_by_name(runs: Path, tmp_path: Path) -> None:
    """The copy lies beside it, and no folder of the machine is named."""
    for name in ("fedavg-mnist5k-seed0", "fedveca-mnist5k-seed0"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    shutil.copytree(runs / "fedavg-mnist5k-seed0", tmp_path / "runs" / "once-more")
    text = Page(fedkeel.report(tmp_path / "runs", tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "2 runs; made" in text
    told = "once-more is left out: it has the settings and the seed 0 of fedavg-mnist5k-seed0, which comes first."
    assert told in text
    assert str(tmp_path) not in text


def test_pictures_are_laid_out_for_narrow_screens_too(runs: Path, found: Page) -> None:
    """What a telephone would shrink is there twice, and the style sheet shows one of them; names inside are unique."""
    text = (runs / "report.html").read_text(encoding="utf-8")
    widths = [
        (way, float(width))
        for way, width in re.findall(r'<div class="picture ?([\w-]*)"><svg .*?\bwidth="([\d.]+)"', text)
    ]
    wide = [width for way, width in widths if way == "on-wide"]
    narrow = [width for way, width in widths if way == "on-narrow"]
    assert len(wide) == len(narrow) >= 6
    assert min(wide) > NARROW
    assert max(narrow) < 1.1 * NARROW
    assert all(width <= NARROW for way, width in widths if not way)
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(names)) == len(names)
    by_screen = re.search(r"@media \(max-width: 640px\) \{(.*?)\n\}", style(), re.DOTALL)
    assert by_screen is not None
    assert ".on-wide { display: none; }" in by_screen[1]


def test_it_names_no_folder_of_the_machine(runs: Path, found: Page) -> None:
    assert str(runs) not in (runs / "report.html").read_text(encoding="utf-8")
    assert str(runs.parent) not in found.text


def test_it_can_be_read_by_those_who_do_not_see(found: Page) -> None:
    assert found.all("html")[0]["lang"] == "en"
    assert len(found.all("h1")) == 1
    assert len(found.all("table")) == len(found.all("caption")) > 5
    pictures = found.all("svg")
    assert len(pictures) >= 6
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert all(head["scope"] in ("row", "col") for head in found.all("th"))


def test_names_inside_pictures_are_their_own(found: Page) -> None:
    names = [a["id"] for _, a in found.elements if a.get("id")]
    assert len(names) == len(set(names))
    text = " ".join(str(value) for _, a in found.elements for value in a.values())
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(names)


def test_colours_keep_their_contrast_by_day_and_by_night() -> None:
    for colour in (*theme.COLOURS, theme.INK, theme.FAINT):
        assert theme.contrast(theme.legible(colour), theme.PAPER) >= theme.LEGIBLE
        assert theme.contrast(theme.legible(colour, theme.NIGHT), theme.NIGHT) >= theme.LEGIBLE
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
    day, _, night = style().partition("@media screen and (prefers-color-scheme: dark)")
    for sheet, ground in ((day, theme.PAPER), (night, theme.NIGHT)):
        for name in ("ink", "faint", "mark", "link"):
            (colour,) = re.findall(rf"--{name}: (#\w{{6}})", sheet)
            assert theme.contrast(colour, ground) >= theme.LEGIBLE, name


def test_whatever_a_name_holds_is_text() -> None:
    noted = {1: {EVIL: 1.0, "measure.drift/" + EVIL: 1.0}}
    evil = made.source(0, [0.1, 0.2], noted=noted, algorithm=EVIL, **{EVIL: EVIL, "data.name": EVIL})
    chosen = made.chosen(**{EVIL: evil})
    looked = Page(page([Part(EVIL, chosen, EVIL)], 0.5, EVIL))
    assert (looked.all("script"), looked.all("img"), looked.handlers, looked.loads) == ([], [], [], [])
    assert looked.text.count("alert(1)") > 5


def test_a_real_run_with_an_evil_name_is_a_name(tmp_path: Path) -> None:
    name = "<script>alert(1)<b>"
    (experiment,) = config.expand({**real.TABLE, "name": name}, [])
    api.run(experiment, tmp_path / experiment.label)
    looked = Page(fedkeel.report(tmp_path, tmp_path / "r.html", title=EVIL).read_text(encoding="utf-8"))
    assert (looked.all("script"), looked.all("b"), looked.handlers) == ([], [], [])
    assert name in looked.text


def test_markup_escapes_text_attributes_and_what_cannot_be_seen() -> None:
    assert inner(["<", Markup("<b>")]) == "&lt;<b>"
    assert tag("p", "a\x1b[31m\nb", aria_label='"<') == '<p aria-label="&quot;&lt;">a\\x1b[31m\nb</p>'
    assert "<td>&lt;i&gt;</td>" in table("c", ["a", "b"], [["x", "<i>"]])


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    (experiment,) = config.expand(real.TABLE, [])
    pages: list[str] = []

    def look(progress: object) -> None:
        if not pages:
            pages.append(fedkeel.report(tmp_path / "a", tmp_path / "r.html").read_text(encoding="utf-8"))

    api.run(experiment, tmp_path / "a", watch=look)
    assert "a is running after round 1 of 3" in pages[0]
    assert "1 of 3" in Page(pages[0]).text
    after = fedkeel.report(tmp_path / "a", tmp_path / "r.html").read_text(encoding="utf-8")
    assert "is running" not in after


def test_a_run_without_a_round_has_a_report(tmp_path: Path) -> None:
    class Falls(type(fedkeel.make_algorithm("fedavg"))):  # type: ignore[misc]
        name = "falls"

        def aggregate(self, *given: object) -> State:
            raise ZeroDivisionError

    fed = data.load("mnist5k").take(100).partition("dirichlet", clients=2, alpha=0.5, seed=0)
    with pytest.raises(ZeroDivisionError):
        fedkeel.train(Falls(), model="logistic", data=fed, rounds=2, steps=1, directory=tmp_path / "a")
    looked = Page(fedkeel.report(tmp_path / "a", tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "interrupted after round 0 of 2" in looked.text
    assert "no round was evaluated yet" in looked.text
    assert "Made by a Python program with fedkeel.train: a." in looked.text
    with pytest.raises(InputError, match="no test accuracy"):
        fedkeel.plot(tmp_path / "a")


def test_runs_in_memory_have_a_report(tmp_path: Path) -> None:
    fed = data.load("mnist5k").take(100).partition("dirichlet", clients=2, alpha=0.5, seed=0)
    run = fedkeel.train("fedavg", model="logistic", data=fed, rounds=1, steps=1)
    looked = Page(fedkeel.report(run, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Test accuracy over rounds" in looked.text
    assert "Repeat it" not in looked.text


def test_what_cannot_be_read_is_named_and_the_rest_reported(runs: Path, tmp_path: Path) -> None:
    real.make(tmp_path)
    for name in ("foreign", "cut"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "run.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "cut" / "run.sqlite").write_bytes(b"SQLite format 3\0")
    text = fedkeel.report(tmp_path, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "These runs cannot be read and are not in the report" in text
    assert "foreign: " in text
    assert str(tmp_path) not in text
    for place in (tmp_path / "foreign", tmp_path / "none", tmp_path / "r.html"):
        with pytest.raises(DataError):
            fedkeel.report(place, tmp_path / "s.html")
    with pytest.raises(InputError, match=r"ending in \.html"):
        fedkeel.report(runs, tmp_path / "r.pdf")
    with pytest.raises(InputError, match="target"):
        fedkeel.report(runs, tmp_path / "r.html", target=3)
    (tmp_path / "dir.html").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        fedkeel.report(tmp_path, tmp_path / "dir.html")


def test_runs_on_other_data_stand_apart(runs: Path, tmp_path: Path) -> None:
    other = real.make(tmp_path, data={"name": "mnist5k", "samples": 300})
    parts, failed = parts_of([runs, other])
    assert [len(part.chosen.sources) for part in parts] == [4, 1]
    assert failed == []


def test_the_command_says_where_and_how_large(runs: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(runs), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    assert "MB)" in result.output
    result = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert isinstance(result.exception, FedkeelError)


def test_names_are_seen_from_the_folder_that_holds_all(tmp_path: Path) -> None:
    a, b = tmp_path / "x" / "a", tmp_path / "x" / "y" / "b"
    assert short_names([a, b]) == {a: "a", b: "y/b"}
    assert short_names([a]) == {a: "a"}
    assert short_names([]) == {}


def test_the_page_about_it_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == list(KINDS)
    for picture in re.findall(r"\]\((pictures/[^)]+)\)", text):
        assert 0 < (docs / picture).stat().st_size <= 300_000
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "report.md", "exec"), {})
    assert Page((tmp_path / "report.html").read_text(encoding="utf-8")).all("svg")
