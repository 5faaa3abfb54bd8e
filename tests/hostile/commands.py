"""Random words after ``fedkeel``."""

from __future__ import annotations

import contextlib
import io
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
from tests.hostile import values
from tests.hostile.experiments import setting
from tests.hostile.given import Input, shown, write

_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_PROGRAM: Any = typer.main.get_command(app)
_COMMANDS: dict[str, dict[str, bool]] = {
    name: {spelt: bool(o.is_flag) for o in one.params if o.param_type_name == "option" for spelt in o.opts}
    for name, one in _PROGRAM.commands.items()
}
"""Every command with its options, and whether they stand alone."""
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
    if name in _HEAVY:
        words.insert(1, rng.choice(("--no-such-option", "--help")))
    elif rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), _word(rng))
    return Input(shown(words), lambda: _commanded(words, folder))


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
