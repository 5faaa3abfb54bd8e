"""The experiment that ``fedkeel init`` writes: every key, current by construction, and it runs as written."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from docs.pages import reference
from fedkeel import config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli.init import experiment_file, write_experiment
from fedkeel.errors import InputError
from fedkeel.learning import models
from fedkeel.papers.settings import settings, settings_of
from fedkeel.template import EXAMPLE, keys, template
from tests.test_cli import fedkeel

PAPERS = [(name, algorithm) for name, one in settings().items() for algorithm in one.algorithms]


def test_every_key_is_there_once_with_its_meaning() -> None:
    text = template()
    for key in keys():
        section = text.partition(f"[{key.table}]\n")[2] if key.table else text
        section = section.partition("\n[")[0]
        assert len(re.findall(rf"^(?:# )?{key.name} = ", section, re.MULTILINE)) == 1, key
        assert key.meaning, f"{key.table}.{key.name} has no description"


def test_the_values_are_those_of_the_example() -> None:
    assert {name: table for name, table in tomllib.loads(template()).items() if table} == EXAMPLE


@pytest.mark.parametrize(
    "line", [line for line in template().splitlines() if re.match(r"# [A-Za-z]\w* = [^…]*$", line, re.ASCII)]
)
def test_every_default_may_be_uncommented(line: str) -> None:
    text = template()
    if line.startswith(("# seed = [", "# mode")):
        return  # the sweep's, and what presets others
    for at in [match.start() for match in re.finditer(re.escape(line), text)]:
        (experiment,) = config.expand(tomllib.loads(text[:at] + text[at + 2 :]), [])
        assert experiment.training.rounds == EXAMPLE["training"]["rounds"]


def test_it_runs_as_written_and_is_not_overwritten(tmp_path: Path) -> None:
    assert fedkeel("init", cwd=tmp_path).returncode == 0
    before = (tmp_path / "experiment.toml").read_text(encoding="utf-8")
    again = fedkeel("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "is there already and stays as it is" in again.stderr
    assert (tmp_path / "experiment.toml").read_text(encoding="utf-8") == before
    run: subprocess.CompletedProcess[str] = fedkeel(
        "run", "experiment.toml", "--set", "training.rounds=1", "--set", "run.executor=serial", cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("paper", "algorithm"), PAPERS)
def test_papers_settings_are_sound_experiments(paper: str, algorithm: str, tmp_path: Path) -> None:
    name, text = experiment_file(paper, algorithm)
    (tmp_path / name).write_text(text, encoding="utf-8")
    (experiment,) = config.read(tmp_path / name)
    assert experiment.algorithm.name == algorithm
    models.spec(experiment.model.name)
    assert settings()[paper].open
    assert settings()[paper] in settings_of(algorithm)


def test_papers_settings_name_known_algorithms() -> None:
    assert {algorithm for _, algorithm in PAPERS} <= set(ALGORITHMS)
    five = {"fedgvrgm", "fedgvr", "fedgm", "fedveca", "gradma", "gradma_w", "gradma_s", "feddc", "fedpmvr"}
    assert {algorithm for _, algorithm in PAPERS} == five


def test_unknown_names_and_places_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no setting of a paper named 'feddc-mnst-d2-15'\. Did you mean 'feddc-mnist-"
    ):
        experiment_file("feddc-mnst-d2-15")
    with pytest.raises(InputError, match="no algorithm of feddc-mnist-d2-15 named 'fedavg'"):
        experiment_file("feddc-mnist-d2-15", "fedavg")
    with pytest.raises(InputError, match="--algorithm goes with --paper"):
        experiment_file(None, "fedavg")
    with pytest.raises(InputError, match="cannot be written"):
        write_experiment(tmp_path / "nowhere" / "e.toml", None, None)


def test_the_reference_is_current() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.reference(), "run: python docs/make_pages.py"
