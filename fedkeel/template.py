"""An experiment as a commented file, made from the schema: every key, its meaning, its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from fedkeel import config
from fedkeel.algorithms.registry import algorithm_class
from fedkeel.data.partitions import RULES
from fedkeel.data.sources import SOURCES, brings_clients

WIDTH = 100
EXAMPLE: dict[str, Any] = {
    "data": {"name": "mnist5k"},
    "partition": {"rule": "dirichlet", "clients": 50, "alpha": 0.3},
    "model": {"name": "2nn"},
    "algorithm": {"name": "scaffold", "eta_g": 1.0},
    "training": {"rounds": 20, "participation": 0.2, "epochs": 5, "batch_size": 20, "lr": 0.1, "clip": 10.0},
}
"""What the template sets: the embedded data, and half a minute of training. No run of ``examples`` has its name."""


@dataclass(frozen=True)
class Key:
    """A key of an experiment."""

    table: str
    """Its table; empty at the top of the file."""
    name: str
    default: Any
    """None: absent."""
    allowed: str
    meaning: str


def keys() -> Iterator[Key]:
    """Every key of the schema, in its order."""
    for name, info in config.Experiment.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            for inner, field in info.annotation.model_fields.items():
                yield Key(name, inner, field.default, allowed(field), field.description or "")
        else:
            yield Key("", name, info.default, allowed(info), info.description or "")


def own_keys(table: str, chosen: Mapping[str, Any]) -> Iterator[Key]:
    """The keys that a table has because of the rule, data set or algorithm that is chosen in it."""
    if table == "partition":
        for param in RULES[chosen["rule"]].params:
            yield Key(table, param.name, param.default, param.allowed, param.doc)
    elif table == "data" and chosen["name"] in SOURCES:
        for name, default in SOURCES[chosen["name"]].params.items():
            yield Key(table, name, default, "", f"of the generated set {chosen['name']}")
    elif table == "algorithm":
        for name, info in algorithm_class(chosen["name"]).Params.model_fields.items():
            yield Key(table, name, info.default, allowed(info), info.description or "")


def allowed(info: Any) -> str:
    """What a field takes, in a few words."""
    choices = [choice for kind in (info.annotation, *get_args(info.annotation)) for choice in _choices(kind)]
    if choices:
        return ("list of " if get_origin(info.annotation) is tuple else "") + " | ".join(choices)
    signs = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ "}
    limits = [
        f"{sign}{_number(getattr(rule, word))}"
        for rule in info.metadata
        for word, sign in signs.items()
        if getattr(rule, word, None) is not None
    ]
    kinds = get_args(info.annotation) or (info.annotation,)
    words = {bool: "true | false", int: "whole number", float: "number", str: "text"}
    kind = next((words[kind] for kind in kinds if kind in words), "")
    if get_origin(info.annotation) is tuple:
        kind = f"list of {len(kinds)} numbers" if kinds[0] is float else "list"
    return " ".join([kind, ", ".join(limits)]).strip()


def _choices(kind: Any) -> list[str]:
    return [config.toml(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []


def _number(value: float) -> str:
    return "2^63" if value == config.SEEDS else f"{value:g}"


def template(values: Mapping[str, Any] = EXAMPLE, title: str = "An experiment.") -> str:
    """A file that runs with these values; all other keys stand in it as comments, with their defaults."""
    lines = [*_comment(f"{title} Start with: fedkeel run THIS-FILE"), *_comment(HEAD), ""]
    for key in keys():
        if not key.table:
            lines += _lines(key, values)
    for table in dict.fromkeys(key.table for key in keys() if key.table):
        given = dict(values.get(table, {}))
        if table == "partition" and brings_clients(values.get("data", {}).get("name", "mnist5k")):
            continue
        mine = [key for key in keys() if key.table == table]
        chosen = {key.name: key.default for key in mine} | given
        lines += ["", f"[{table}]"]
        names = {key.name for key in mine}
        for key in [*mine, *(own for own in own_keys(table, chosen) if own.name not in names)]:
            lines += _lines(key, given)
    return "\n".join([*lines, "", *TAIL.splitlines()]) + "\n"


HEAD = "Keys behind a # have their default; `fedkeel run FILE --set key=value` changes one for one run."
TAIL = """\
# One run for every combination of these lists:
# [sweep]
# training.lr = [0.05, 0.1]
# seed = [0, 1, 2]"""


def _lines(key: Key, given: Mapping[str, Any]) -> list[str]:
    meaning = f"{key.meaning} ({key.allowed})" if key.allowed and key.meaning else key.meaning or key.allowed
    if key.name in given:
        return [*_comment(meaning), f"{key.name} = {config.toml(given[key.name])}"]
    default = "…   (absent)" if key.default is None else config.toml(key.default)
    return [*_comment(meaning), f"# {key.name} = {default}"]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
