"""What pages take from outside the registry: families, example commands, recorded runs and results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS
from tests.replay.setups import setup_of
from tests.replay.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "algorithms"
NOTES = PAGES / "notes"
RESULTS = ROOT / "docs" / "results"
GOLDEN = ROOT / "tests" / "golden"

FAMILIES = (
    "The five papers",
    "Averaging and server rules",
    "Corrections of the local step",
    "Methods that look inside the model",
    "Methods that look for flat minima",
    "Methods that count their labels",
    "Our own",
)


@dataclass(frozen=True)
class Notes:
    """What people write about an algorithm: its text, and the comments before it.

    ``<!-- family: … -->`` names one of ``FAMILIES``, each ``<!-- set: … -->`` a setting of the page's command. In the
    text, ``<!-- made: … -->`` is a table that records decide (``own_method.made``).
    """

    family: str
    settings: tuple[str, ...]
    text: str


@cache
def notes(name: str) -> Notes:
    """The notes of an algorithm."""
    path = NOTES / f"{name}.md"
    if not path.exists():
        raise SystemExit(f"{path} is missing; begin it with <!-- family: … -->, one of: {', '.join(FAMILIES)}.")
    text = path.read_text(encoding="utf-8")
    head = re.match(r"(?:<!-- (?:family|set): .* -->\n)*", text)
    assert head is not None
    families = re.findall(r"<!-- family: (.*) -->", head[0])
    if len(families) != 1 or families[0] not in FAMILIES:
        raise SystemExit(f"{path} must name one family of: {', '.join(FAMILIES)}; got {families}.")
    return Notes(families[0], tuple(re.findall(r"<!-- set: (.*) -->", head[0])), text[head.end() :].strip())


def family(name: str) -> list[str]:
    """The algorithms of a family, in the registry's order."""
    return [algorithm for algorithm in ALGORITHMS if notes(algorithm).family == name]


@dataclass(frozen=True)
class Replayed:
    """A recorded run and how it is replayed."""

    file: str
    origin: str
    rounds: int
    how: str


@cache
def traces() -> dict[str, list[Replayed]]:
    """The recorded runs by the algorithm that replays them."""
    found: dict[str, list[Replayed]] = {name: [] for name in ALGORITHMS}
    for path in sorted(GOLDEN.glob("*__*.npz")):
        trace = Trace.load(path)
        algorithm = setup_of(trace).algorithm
        commit = str(trace.meta.get("commit", ""))[:7]
        origin = f"[{trace.meta['source']}](https://github.com/{trace.meta['source']}) at {commit}" if commit else SPEC
        given = {key: getattr(algorithm.params, key) for key in sorted(algorithm.params.model_fields_set)}
        preset = algorithm.Params.modes.get(given.get("mode", "default"), {})
        shown = {
            key: value for key, value in given.items() if preset.get(key, algorithm_default(algorithm, key)) != value
        }
        how = ", ".join(f"`{key} = {toml(value)}`" for key, value in shown.items()) or "defaults"
        found[algorithm.name].append(Replayed(path.name, origin, trace.rounds, how))
    return found


SPEC = "specification, computed independently"


def algorithm_default(algorithm: Algorithm, field_name: str) -> Any:
    """The default of a parameter."""
    return algorithm.Params.model_fields[field_name].default


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False)


EXAMPLE = "examples/mnist5k.toml"


def settings(name: str) -> list[str]:
    """What the page's command sets."""
    return [f'sweep={{algorithm=["{name}"]}}', *notes(name).settings]


RELATED = {"fedgvr": "fedgvrgm", "fedgm": "fedgvrgm", "gradma_w": "gradma", "gradma_s": "gradma"}
"""Whose results a page also looks through for rows of its own."""


def table_of(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """What a file of results says about itself, and its rows; a file may also be the bare list of rows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return [], content
    head = [f"**{content['title']}**"] if content.get("title") else []
    head += [content["about"]] if content.get("about") else []
    head += [f"`{content['command']}`"] if content.get("command") else []
    return head, content.get("rows", [])
