"""``fedkeel init``: an experiment to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedkeel.cli.screen import say
from fedkeel.errors import InputError, unknown
from fedkeel.papers.settings import settings
from fedkeel.template import template


def write_experiment(path: Path | None, paper: str | None, algorithm: str | None) -> None:
    """Write a file that is not there yet, and say how to run it."""
    name, text = experiment_file(paper, algorithm)
    path = Path(name) if path is None else path
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} is there already and stays as it is; give another name.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; choose another place.") from None
    say(f"{path} is written. Start with: fedkeel run {shlex.quote(str(path))}", soft_wrap=True)


def experiment_file(paper: str | None = None, algorithm: str | None = None) -> tuple[str, str]:
    """A name and the text: on embedded data, or with the settings of a paper."""
    if paper is None:
        if algorithm is not None:
            raise InputError("--algorithm goes with --paper; without one, write the algorithm into the file.")
        return "experiment.toml", template()
    known = settings()
    if paper not in known:
        raise unknown("setting of a paper", paper, list(known))
    found = known[paper]
    algorithm = algorithm or found.algorithms[0]
    if algorithm not in found.algorithms:
        raise unknown(f"algorithm of {paper}", algorithm, list(found.algorithms))
    notes = "".join(f" Open: {one}." for one in found.open)
    return found.file(algorithm), template(found.tables(algorithm), f"{found.where}.{notes}")
