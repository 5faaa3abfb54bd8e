"""The documentation tells the truth: pages are current, traffic and state are as specified, and code blocks run."""

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from docs.make_pages import build, stale
from docs.pages.data import NOTES, PAGES
from docs.pages.measure import Case, measure, measure_all
from fedkeel import config
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.robust import RULES
from fedkeel.check import check_algorithm, check_law
from fedkeel.engine.robust import takes_any_mean
from fedkeel.engine.settings import Faults, Robust
from fedkeel.measure.settings import Measuring

ROOT = Path(__file__).parents[1]


def module_at(path: Path) -> ModuleType:
    """A Python file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


DEFAULT, PAPER, FADED = "default", "paper", "ε < 1"

# Per participating client and round, in numbers: down and up, as the papers' methods need it at least and, where a
# paper sends more than it has to, as it says. d: the model, v: the coordinates of the mask, bn: normalisation layers.
TRAFFIC: dict[tuple[str, str], tuple[str, str]] = {
    ("centralised", DEFAULT): ("d", "d"),  # what travels in truth is the data; a run reports its one model
    ("fedavg", DEFAULT): ("d", "d"),
    ("fedprox", DEFAULT): ("d", "d"),
    ("fedreg", DEFAULT): ("d", "d"),
    ("moon", DEFAULT): ("d", "d"),
    ("fedmlb", DEFAULT): ("d", "d"),
    ("fednova", DEFAULT): ("d", "d + 1"),
    ("fedavgm", DEFAULT): ("d", "d"),
    ("slowmo", DEFAULT): ("d", "d"),
    ("fedgm", DEFAULT): ("d", "d"),
    ("fedproxm", DEFAULT): ("d", "d"),
    ("moonm", DEFAULT): ("d", "d"),
    ("fedmlbm", DEFAULT): ("d", "d"),
    ("fedadam", DEFAULT): ("d", "d"),
    ("fedyogi", DEFAULT): ("d", "d"),
    ("fedadagrad", DEFAULT): ("d", "d"),
    ("scaffold", DEFAULT): ("2*d", "d"),
    ("scaffold", PAPER): ("2*d", "2*d"),
    ("vrlsgd", DEFAULT): ("d", "d"),
    ("feddyn", DEFAULT): ("d", "d"),
    ("feddc", DEFAULT): ("2*d", "d"),
    ("feddc", PAPER): ("2*d", "2*d"),
    ("fedpvr", DEFAULT): ("d + v", "d"),
    ("fedpvr", PAPER): ("d + v", "d + v"),
    ("fedpmvr", DEFAULT): ("d", "d"),
    ("fedgvr", DEFAULT): ("2*d + 1", "d"),  # while ε = 1
    ("fedgvr", FADED): ("2*d + 1", "2*d"),
    ("fedgvr", PAPER): ("2*d + 1", "2*d"),
    ("fedgvrgm", DEFAULT): ("2*d + 1", "d"),  # while ε = 1
    ("fedgvrgm", FADED): ("2*d + 1", "2*d"),
    ("fedgvrgm", PAPER): ("2*d + 1", "2*d"),
    ("fedveca", DEFAULT): ("d + 2", "2*d + 3"),
    ("fedveca", PAPER): ("2*d + 1", "2*d + 3"),
    ("gradma", DEFAULT): ("d", "d"),
    ("gradma_w", DEFAULT): ("d", "d"),
    ("gradma_s", DEFAULT): ("d", "d"),
    ("mifa", DEFAULT): ("d", "d"),
    ("mifam", DEFAULT): ("d", "d"),
    ("mimelite", DEFAULT): ("2*d", "2*d"),
    ("fedexp", DEFAULT): ("d", "d"),
    ("fedcm", DEFAULT): ("2*d", "d"),
    ("fedacg", DEFAULT): ("d", "d"),
    ("fedavg_cm", DEFAULT): ("2*d", "d"),
    ("scaffold_m", DEFAULT): ("2*d", "d"),
    ("fedvarp", DEFAULT): ("d", "d"),
    ("fedinit", DEFAULT): ("d", "d"),
    ("fedntd", DEFAULT): ("d", "d"),
    ("fedbn", DEFAULT): ("d - bn", "d - bn"),
    ("fedswa", DEFAULT): ("d", "d"),
    ("fedmoswa", DEFAULT): ("2*d", "2*d"),
    ("fedsam", DEFAULT): ("d", "d"),
    ("fedspeed", DEFAULT): ("d", "d"),
    ("fedlesam_d", DEFAULT): ("d", "d"),
    ("fedsmoo", DEFAULT): ("2*d", "2*d"),
    ("fedlc", DEFAULT): ("d", "d"),
    ("fedrs", DEFAULT): ("d", "d"),
    ("mofedsam", DEFAULT): ("2*d", "d"),
    ("keel", DEFAULT): ("d", "d"),
}

# What a client and the server keep between rounds, in vectors (d, v, bn, and N·d for a table of all clients); single
# numbers, counters by client and masks are left out here. OURS says where ours differ, and why.
STATE: dict[str, tuple[str, str]] = {
    "centralised": ("0", "d"),
    "fedavg": ("0", "d"),
    "fedprox": ("0", "d"),
    "fedreg": ("0", "d"),
    "moon": ("d", "d"),
    "fedmlb": ("0", "d"),
    "fednova": ("0", "d"),
    "fedavgm": ("0", "2*d"),
    "slowmo": ("0", "2*d"),
    "fedgm": ("0", "2*d"),
    "fedproxm": ("0", "2*d"),
    "moonm": ("d", "2*d"),
    "fedmlbm": ("0", "2*d"),
    "fedadam": ("0", "3*d"),
    "fedyogi": ("0", "3*d"),
    "fedadagrad": ("0", "3*d"),
    "scaffold": ("d", "2*d"),
    "vrlsgd": ("d", "d"),
    "feddyn": ("d", "2*d"),
    "feddc": ("2*d", "3*d"),
    "fedpvr": ("v", "d + v"),
    "fedpmvr": ("0", "d"),
    "fedgvr": ("d", "2*d"),
    "fedgvrgm": ("d", "4*d"),
    "fedveca": ("0", "4*d"),
    "gradma": ("d", "(2 + N)*d"),
    "gradma_w": ("d", "d"),
    "gradma_s": ("0", "(2 + N)*d"),
    "mifa": ("0", "(1 + N)*d"),
    "mifam": ("0", "(2 + N)*d"),
    "mimelite": ("0", "2*d"),
    "fedexp": ("0", "2*d"),
    "fedcm": ("0", "2*d"),
    "fedacg": ("0", "2*d"),
    "fedavg_cm": ("0", "2*d"),
    "scaffold_m": ("d", "3*d"),
    "fedvarp": ("0", "(1 + N)*d"),
    "fedinit": ("d", "d"),
    "fedntd": ("0", "d"),
    "fedbn": ("bn", "d"),
    "fedswa": ("0", "d"),
    "fedmoswa": ("d", "2*d"),
    "fedsam": ("0", "d"),
    "fedspeed": ("d", "2*d"),
    "fedlesam_d": ("2*d", "2*d"),
    "fedsmoo": ("2*d", "3*d"),
    "fedlc": ("0", "d"),
    "fedrs": ("0", "d"),
    "mofedsam": ("0", "2*d"),
    "keel": ("0", "(2 + N)*d"),
}
OURS: dict[str, tuple[str, str, str]] = {
    "feddyn": ("d", "3*d", "the cohort's mean model is kept for evaluation (`selected`)"),
    "feddc": ("2*d", "4*d", "the cohort's mean model is kept for evaluation (`selected`)"),
    "fedspeed": ("d", "3*d", "the cohort's mean model is kept for evaluation (`selected`)"),
    "fedlesam_d": ("2*d", "3*d", "the cohort's mean model is kept for evaluation (`selected`)"),
    "fedsmoo": ("2*d", "4*d", "the cohort's mean model is kept for evaluation (`selected`)"),
    "fedgvrgm": ("d", "3*d", "no momentum on c by default, so no second velocity; 4d with `c_momentum`"),
    "fedveca": (
        "0",
        "3*d",
        "the quotient L of the last two models is kept as a number, not the older model's gradient",
    ),
}
SINGLE_NUMBERS = {  # of a client, beside its vectors
    "vrlsgd": 1,  # 1/(Kη), because Δ_i waits for the next model
    "moon": 1,  # the round in which the previous model was trained
    "moonm": 1,
}


def value(formula: str, sizes: Any) -> int:
    return int(eval(formula, {"d": sizes.d, "v": sizes.v, "bn": sizes.norm, "N": sizes.N}))


def measured_in(name: str, kind: str) -> Any:
    """The measured round that a line of ``TRAFFIC`` is about."""
    measured = measure_all(name)
    if kind == DEFAULT:
        return measured[0]
    wanted = '`traffic = "paper"`' if kind == PAPER else kind
    return next(one for one in measured if one.case.label == wanted)


def test_the_tables_are_complete() -> None:
    assert {name for name, kind in TRAFFIC if kind == DEFAULT} == set(STATE) == set(ALGORITHMS)
    with_paper = {name for name, cls in ALGORITHMS.items() if "traffic" in cls.Params.model_fields}
    assert {name for name, kind in TRAFFIC if kind == PAPER} == with_paper


@pytest.mark.parametrize(("name", "kind"), TRAFFIC)
def test_traffic(name: str, kind: str) -> None:
    """The tiny federation computes in float64, so a number of a vector weighs 8 bytes and a single one 4: a + b/2."""
    measured = measured_in(name, kind)
    for formula, named, weighed in (
        (TRAFFIC[name, kind][0], measured.down, measured.bytes_down),
        (TRAFFIC[name, kind][1], measured.up, measured.bytes_up),
    ):
        single = sum(amount["1"] for amount in named.values())
        assert weighed / 8 + single / 2 == value(formula, measured.sizes)


@pytest.mark.parametrize("name", STATE)
def test_state(name: str) -> None:
    measured = measured_in(name, DEFAULT)
    client, server = OURS.get(name, STATE[name])[:2]
    assert vectors(measured.client, measured.sizes) == value(client, measured.sizes)
    assert vectors(measured.server, measured.sizes) == value(server, measured.sizes)
    assert sum(amount["1"] for amount in measured.client.values()) == SINGLE_NUMBERS.get(name, 0)


def vectors(named: dict[str, Any], sizes: Any) -> int:
    lengths = {"d": sizes.d, "v": sizes.v, "d_BN": sizes.norm, "N·d": sizes.N * sizes.d}
    return sum(lengths.get(unit, 0) * count for amount in named.values() for unit, count in amount.items())


def test_momentum_on_c_costs_the_fourth_vector() -> None:
    measured = measure("fedgvrgm", Case(params={"c_momentum": "heavy_ball"}))
    assert vectors(measured.server, measured.sizes) == value(STATE["fedgvrgm"][1], measured.sizes)


def test_fedpmvr_remembers_its_mask_only_where_it_must() -> None:
    measured = measure("fedpmvr", Case(params={"variant": "ema"}))
    assert vectors(measured.client, measured.sizes) == measured.sizes.v > 0


def test_pages_are_current() -> None:
    """If this fails: python docs/make_pages.py"""
    assert stale(build()) == []


def test_every_algorithm_has_notes() -> None:
    assert {path.stem for path in NOTES.glob("*.md")} == set(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_command_of_a_page_is_valid(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    found = re.search(r"```sh\n(fedkeel run .*?)```", text, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", " "))
    assert set(words[3::2]) == {"--set"}
    (experiment,) = config.read(ROOT / words[2], words[4::2])
    assert experiment.algorithm.name == name


def test_links_lead_somewhere() -> None:
    for page in [
        ROOT / "docs" / "adding-an-algorithm.md",
        ROOT / "docs" / "faults.md",
        ROOT / "docs" / "measurements.md",
        ROOT / "docs" / "robust.md",
        *PAGES.glob("*.md"),
    ]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def blocks(path: Path) -> list[str]:
    """The Python code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def shortened(code: str) -> str:
    return re.sub(r"epochs=\d+", "epochs=1", re.sub(r"rounds=\d+", "rounds=1", code))


def test_the_example_algorithm_keeps_the_contract() -> None:
    own = module_at(ROOT / "examples" / "own_algorithm.py")
    check_algorithm(own.TrimmedMean)


def test_adding_an_algorithm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's blocks: the example as it stands in the folder, its use, and the second algorithm."""
    example, use, memory, fading = blocks(ROOT / "docs" / "adding-an-algorithm.md")
    source = (ROOT / "examples" / "own_algorithm.py").read_text(encoding="utf-8")
    assert example == source
    assert len(source.splitlines()) < 40
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    exec(shortened(use), {"__name__": "use"})
    assert re.fullmatch(r"\d+\.\d%\n", capsys.readouterr().out)
    exec(memory, {"__name__": "memory"})
    names: dict[str, Any] = {"__name__": "fading"}
    exec(fading, names)
    for law in names["FadingProx"].laws:
        check_law(names["FadingProx"], law)


def test_the_page_on_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs, its table of settings has every field with its default, and every algorithm is in its last one."""
    page = ROOT / "docs" / "faults.md"
    text = page.read_text(encoding="utf-8")
    (code,) = blocks(page)
    exec(shortened(code), {"__name__": "faults"})
    assert re.fullmatch(r"\d+\.\d%\n", capsys.readouterr().out)
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert config.expand(tomllib.loads(toml), [])[0].faults.lost == 0.05
    for name, field in Faults.model_fields.items():
        default = "absent" if field.default is None else str(field.default).strip("()")
        (said,) = re.findall(rf"\n\| `{name}` \| (.*?) \|", text)
        assert said.strip("[]`") == default.removesuffix(".0"), name
    last = text.split("## What each algorithm does")[1]
    assert [cls.title for cls in ALGORITHMS.values() if cls.title not in last] == []


def test_the_page_on_robust_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs, its tables have every field, rule and algorithm, and it names rightly who allows such rules."""
    page = ROOT / "docs" / "robust.md"
    text = page.read_text(encoding="utf-8")
    (code,) = blocks(page)
    exec(shortened(code), {"__name__": "robust"})
    assert re.fullmatch(r"\d+\.\d%\n", capsys.readouterr().out)
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert config.expand(tomllib.loads(toml), [])[0].robust == Robust(rule="trimmed-mean", f=2)
    for name, field in Robust.model_fields.items():
        (said,) = re.findall(rf"\n\| `{name}` \| (.*?) \|", text)
        assert (said, field.default) == ("absent", None), name
    assert re.findall(r"\n\| `([a-z-]+)` \| .* \| 2f \+ [13] \|", text) == list(RULES)
    allowed, refused = re.findall(r"<!-- allowed -->(.*?)<!-- end -->(.*?)\n## ", text, re.DOTALL)[0]
    titles = {cls.title: takes_any_mean(cls) for cls in ALGORITHMS.values()}
    assert set(re.split(r",\s+", allowed.strip())) == {title for title, takes in titles.items() if takes}
    listed = ", ".join(re.findall(r"\n\| ([A-Z].*?) \|", refused))
    assert set(listed.split(", ")) == {title for title, takes in titles.items() if not takes}


def test_the_page_on_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs, names everything that a run keeps, and says rightly who has control variates and corrections."""
    page = ROOT / "docs" / "measurements.md"
    text = page.read_text(encoding="utf-8")
    (code,) = blocks(page)
    names: dict[str, Any] = {"__name__": "measurements"}
    exec(code, names)
    assert capsys.readouterr().out.startswith("{2: ")
    history = names["run"].history
    kept = {name.partition("/")[0] for name in [*history.names, *history.times[2]]}
    assert len(kept) > 10
    assert [name for name in kept if f"`{name}" not in text] == []
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert config.expand(tomllib.loads(toml), [])[0].measure == Measuring(every=10, clients=50)
    with_controls, with_corrections = re.findall(r"\n\* `.*?: (FedProx,.*?|SCAFFOLD,.*?)\. ", text, re.DOTALL)
    titles = {cls.title: cls for cls in ALGORITHMS.values()}
    assert set(re.split(r",\s+|\s+and\s+", with_controls)) == {
        title for title, cls in titles.items() if cls.controls is not Algorithm.controls
    }
    for title in re.split(r",\s+", with_corrections.removesuffix(" and their kin")):
        assert titles[title].correction is not Algorithm.correction


def test_the_example_of_faults_is_valid() -> None:
    experiments = config.read(ROOT / "examples" / "faults.toml")
    assert [experiment.algorithm.name for experiment in experiments] == ["fedavg", "fednova", "scaffold", "mifa"]
    assert all(experiment.faults.max_update_norm == 50 for experiment in experiments)


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "README.md")
    exec(shortened(code), {"__name__": "readme"})
    assert (tmp_path / "model.safetensors").stat().st_size > 100_000
    assert "%" in capsys.readouterr().out


def test_no_page_has_an_empty_table() -> None:
    """A results file without rows once gave a table of nothing."""
    for page in (ROOT / "docs").rglob("*.md"):
        assert not re.search(r"^\|\s*\|$", page.read_text(encoding="utf-8"), re.MULTILINE), page.name


def test_modules_that_pages_name_are_there() -> None:
    """`engine/server.py` in a page is a file of the repository or of the package; files move, and pages stay behind."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for path in re.findall(r"`([\w.-]+/[\w./-]+\.py)`", page.read_text(encoding="utf-8")):
            assert any((folder / path).is_file() for folder in (ROOT, ROOT / "fedkeel")), f"{page.name}: {path}"
