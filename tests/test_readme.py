"""The README's shell lines, typed one after the other as they stand, on a few samples and rounds."""

from __future__ import annotations

import glob
import re
import shlex
import shutil
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from click import Context, Group
from typer.testing import CliRunner

from fedkeel import config
from fedkeel.cli.main import app
from fedkeel.template import template

ROOT = Path(__file__).parents[1]
NOT_TYPED = {
    "ui": "it serves until it is stopped; tests/ui",
    "tune": "it starts processes; tests/tuning",
    "paper run": "it needs files of MNIST; tests/papers",
    "bench": "it takes minutes; tests/bench",
    "network local": "it starts a server and sites; tests/network",
}


def shell_lines() -> list[list[str]]:
    """The words of every command of the section, without comments."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## From the shell\n")[2].partition("\n![")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    commands = [part for line in lines for part in line.partition("  #")[0].split("&&")]
    return [shlex.split(command)[1:] for command in commands]


def shorter(text: str) -> str:
    """The same with two rounds, a few samples and no processes."""
    text = re.sub(r"^rounds = 20", "rounds = 2", text, flags=re.MULTILINE)
    text = re.sub(r'^name = "mnist5k".*', 'name = "mnist5k"\nsamples = 500', text, flags=re.MULTILINE)
    return re.sub(r"^epochs = 5", "epochs = 1", text, flags=re.MULTILINE) + '\n[run]\nexecutor = "serial"\n'


def test_every_line_works_from_the_top_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("examples", "results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    sweep = tmp_path / "examples" / "mnist5k.toml"
    sweep.write_text(shorter(sweep.read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    typed = 0
    for words in shell_lines():
        if any(words[: len(name.split())] == name.split() for name in NOT_TYPED):
            parse(words)
            if "--sites" in words:
                settings = [value for option, value in pairwise(words) if option == "--set"]
                (run,) = config.plan(Path("experiment.toml"), settings, False)
                assert run.experiment.partition.clients == int(words[words.index("--sites") + 1])
                assert not (Path("runs") / run.experiment.label).exists()
            continue
        given = [word.replace("rounds=30", "rounds=3") for part in words for word in sorted(glob.glob(part)) or [part]]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 0, f"fedkeel {shlex.join(words)}: {result.output} {result.exception!r}"
        typed += 1
        if words == ["init"]:
            Path("experiment.toml").write_text(shorter_template(), encoding="utf-8")
    assert typed >= 18
    for file in ("accuracy.png", "report.html", "longer.csv", "clients.png", "figure8.png"):
        assert Path(file).stat().st_size > 300, file


def shorter_template() -> str:
    """The file of ``fedkeel init``, shortened where its values stand."""
    text = template().replace('name = "mnist5k"', 'name = "mnist5k"\nsamples = 500', 1)
    for was, now in (("rounds = 20", "rounds = 2"), ("epochs = 5", "epochs = 1")):
        assert f"\n{was}\n" in text
        text = text.replace(f"\n{was}\n", f"\n{now}\n")
    return text.replace('# executor = "auto"', 'executor = "serial"')


def parse(words: list[str]) -> None:
    """Resolve a command and its options, without running it."""
    command, context = typer.main.get_command(app), None
    while isinstance(command, Group):
        context = Context(command, parent=context)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    command.make_context("fedkeel", list(words), parent=context)


def test_no_two_examples_share_a_folder() -> None:
    """Whoever runs all of them, after ``fedkeel init``, is never told that a run is there already."""
    files = sorted((ROOT / "examples").glob("*.toml"))
    labels = [run.experiment.label for file in files for run in config.plan(file, [], False)]
    (own,) = config.expand(tomllib.loads(template()), [])
    assert len({*labels, own.label}) == len(labels) + 1
