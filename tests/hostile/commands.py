"""Random words after ``fedkeel``."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import typer

from fedkeel.cli.main import app
from fedkeel.cli.main import run as command
from fedkeel.errors import FedkeelError
from fedkeel.papers.work import Outcome
from tests.hostile import values
from tests.hostile.experiments import setting
from tests.hostile.given import Input, shown, write

_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_PROGRAM: Any = typer.main.get_command(app)


def _options(commands: dict[str, Any]) -> dict[str, dict[str, bool]]:
    """Every command with its options, and whether they stand alone."""
    return {
        name: {spelt: bool(o.is_flag) for o in one.params if o.param_type_name == "option" for spelt in o.opts}
        for name, one in commands.items()
    }


_COMMANDS = _options(_PROGRAM.commands)
_OF_PAPERS = _options(_PROGRAM.commands["paper"].commands)
_HEAVY = ("demo", "bench", "ui")
"""Commands that take seconds or do not end by themselves, and so are only asked for nonsense or for help."""


def _word(rng: random.Random) -> str:
    word = rng.choice((values.text(rng), str(rng.choice(values.NUMBERS)), setting(rng)))
    return word.replace("\x00", "")  # which no shell can hand over


def command_line(rng: random.Random, folder: Path) -> Input:
    """A command with options that it has and words that it may not expect."""
    name = rng.choice([*_COMMANDS, "run", "run", "run", "partition"])
    words = [name]
    if name == "run":
        words.append(rng.choice(("e.toml", "e.toml", "e.toml", "absent.toml", ".", _word(rng))))
    elif name in ("algorithms", "partition") and rng.random() < 0.7:
        words.append(rng.choice(("feddc", "synthetic_feddyn", _word(rng))))
    elif name not in ("data", "models"):
        words.append(_word(rng))
    for option in rng.sample(list(_COMMANDS[name]), rng.randrange(min(4, len(_COMMANDS[name])) + 1)):
        words.append(option)
        if not _COMMANDS[name][option]:
            words.append(rng.choice(("o", "3", "alpha=0.5", _word(rng))) if option != "--clients" else "3")
    if name in _HEAVY or "--spread" in words:  # which starts a cluster
        words.insert(1, rng.choice(("--no-such-option", "--help")))
    elif rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), _word(rng))
    return Input(shown(words), lambda: _commanded(words, folder))


def paper_command(rng: random.Random, folder: Path) -> Input:
    """``fedkeel paper …`` with ids, scales and folders that it may not expect; what it would run is not run."""
    name = rng.choice(list(_OF_PAPERS))
    words = ["paper", name]
    if name in ("run", "verdict", "figure"):
        several = 1 if name == "figure" else rng.choice((0, 1, 1, 2))
        words += [rng.choice((*_EXHIBITS, *_EXHIBITS, _word(rng))) for _ in range(several)]
    for option in rng.sample(list(_OF_PAPERS[name]), rng.randrange(min(4, len(_OF_PAPERS[name])) + 1)):
        words.append(option)
        if not _OF_PAPERS[name][option]:
            words.append(_of_option(rng, option, folder))
    if name == "figure" and rng.random() < 0.7 and "--out" not in words:
        words += ["--out", rng.choice(("f.svg", "f.html"))]
    if rng.random() < 0.1:
        words.insert(rng.randrange(1, len(words) + 1), _inside(rng, folder))
    published = rng.choice((*_published(), None))
    place, damage = rng.choice(("results", "paper-runs/records")), rng.random()

    def give() -> None:
        if published is not None:
            _lay(published, folder / place, random.Random(damage))
        with mock.patch("fedkeel.cli.paper_run.work", return_value=Outcome()):
            _commanded(words, folder)

    return Input(f"{shown(words)} with {published} in {place}, damage {damage}", give)


def _of_option(rng: random.Random, option: str, folder: Path) -> str:
    known = {
        "--scale": ("smoke", "reduced", "full"),
        "--paper": ("feddc", "fedveca"),
        "--only": ("mnist-d2-15", "0"),
        "--algorithms": ("feddc", "feddc,fedavg", ","),
        "--seeds": ("1", "3", "10000000"),
        "--workers": ("1", "2"),
    }
    if option in known:
        return rng.choice((*known[option], _word(rng)))
    return rng.choice(("results", "paper-runs", "new/folder", "f.svg", "f.html", "e.toml", _inside(rng, folder)))


def _inside(rng: random.Random, folder: Path) -> str:
    """A word that, taken for a path, does not lead out of the folder."""
    word = _word(rng)
    with contextlib.suppress(ValueError, OSError, RuntimeError):
        if (folder / word).resolve().is_relative_to(folder.resolve()) and not word.startswith("~"):
            return word
    return "o"


_EXHIBITS = ("feddc", "feddc.table1", "feddc.figure3", "fedveca.figure10", "gradma.table1", "fedgvrgm", "feddc.table99")
_RESULTS = Path(__file__).parents[2] / "results"


@cache
def _published() -> tuple[str, ...]:
    """Some published records: paper and name."""
    return tuple(str(path.relative_to(_RESULTS)) for path in sorted(_RESULTS.glob("*/*.json"))[::20])


def _lay(name: str, folder: Path, rng: random.Random) -> None:
    """A record where commands look for it, half of the time with a field or two that somebody has changed."""
    table = json.loads((_RESULTS / name).read_text(encoding="utf-8"))
    for _ in range(rng.choice((0, 0, 1, 2))):
        inner = table
        while rng.random() < 0.5 and (deeper := [one for one in inner.values() if isinstance(one, dict) and one]):
            inner = rng.choice(deeper)
        field = rng.choice(list(inner))
        if rng.random() < 0.2:
            del inner[field]
        else:
            inner[field] = rng.choice((*values.NUMBERS, *values.TEXTS, None, [], {}, [1, [2]], [[1, 2], [3]]))
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table), encoding="utf-8")


@cache
def _tiny_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    return buffer.getvalue()


_SMALL = """\
data.name = "./tiny"
model.name = "logistic"
training.rounds = 1
training.steps = 1
run.executor = "serial"
"""


def _commanded(words: list[str], folder: Path) -> None:
    write(folder, _SMALL)
    (folder / "tiny").mkdir()
    for client in range(3):
        (folder / "tiny" / f"{client}.npz").write_bytes(_tiny_npz())
    out, err, path = io.StringIO(), io.StringIO(), list(sys.path)
    code: object = 0
    typed = mock.patch.object(sys, "argv", ["fedkeel", *words])
    with typed, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.path[:] = path
    said = err.getvalue()
    if code not in (None, 0, 1, 2):
        raise AssertionError(f"exit code {code!r}: {said}")
    if found := _RAW.search(out.getvalue() + said):
        raise AssertionError(f"{found[0]!r} reaches the terminal: {(out.getvalue() + said)[-300:]!r}")
    if code == 2:
        if not said.startswith("fedkeel: ") or said.count("\n") != 1:
            raise AssertionError(f"not one sentence of ours: {said!r}")
        raise FedkeelError(said.removeprefix("fedkeel: "))
