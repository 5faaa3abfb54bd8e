"""What a ``[sweep]`` goes over: its fields and values, the names of its runs, and how they did over several seeds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedkeel.errors import InputError, named, shown

MOST_RUNS = 10_000
"""Of one sweep; more are a slip, and would fill memory before the first one starts."""
LONGEST = 200
"""Bytes of a run's name: file systems allow 255, and the store needs some for names of its own."""
_WHAT = ("algorithm.name", "data.name", "model.name", "model.loss", "partition.rule", "training.dtype", "run.executor")
"""Fields whose values say by themselves what they are."""


def field_of(name: str) -> str:
    """What ``algorithm`` means in a sweep or a setting is its name."""
    return "algorithm.name" if name == "algorithm" else name


def flat(sweep: object, prefix: str = "") -> dict[str, Any]:
    """A sweep by dotted fields, written with quotes (``"training.lr" = […]``) or as TOML's tables in tables."""
    if not isinstance(sweep, Mapping):
        raise InputError(f"sweep must be a table of lists: write [sweep], then seed = [0, 1], got {shown(sweep)}.")
    fields: dict[str, Any] = {}
    for key, value in sweep.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
        for name, values in inner.items():
            if field_of(name) in fields:
                raise InputError(f"the sweep goes over {named(field_of(name))} twice; keep one of the two lists.")
            fields[field_of(name)] = values
    return fields


def choices(fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each field; few enough that all runs can be made."""
    for name, values in fields.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"sweep.{named(name)} must be a list with at least one value, got {shown(values)}.")
        if any(isinstance(value, dict) for value in values):
            raise InputError(
                f"sweep.{named(name)} must list values, not tables, which would replace all of {named(name)}; sweep "
                'over single fields such as "training.lr".'
            )
    runs = math.prod(len(values) for values in fields.values())
    if runs > MOST_RUNS:
        sizes = " × ".join(str(len(values)) for values in fields.values())
        raise InputError(
            f"a sweep may stand for at most {MOST_RUNS:,} runs, got {sizes} = {runs:,}; shorten its lists."
        )
    return dict(fields)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Fields as headings and names can hold them: ``lr`` for ``training.lr``, unless two would be called the same."""
    short = {field: field.removesuffix(".name").rpartition(".")[2] for field in fields}
    taken = list(short.values())
    return {field: name if taken.count(name) == 1 else field for field, name in short.items()}


def said(value: Any) -> str:
    """A value of a sweep, as short as it is unmistakable."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "+".join(map(said, value)) if isinstance(value, list | tuple) else str(value)


def labels(bases: Sequence[str], swept: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of runs, all different and short enough for a folder.

    ``bases`` are their names without a word of the sweep. They stay where they tell the runs apart; else the swept
    values that a base does not contain follow it: ``fedavg-mnist5k-seed0-lr=0.05``.
    """
    if len(set(bases)) == len(bases):
        return list(bases)
    made = [
        _bounded(_label(base, values), number)
        for number, (base, values) in enumerate(zip(bases, swept, strict=True), 1)
    ]
    if len({name.casefold() for name in made}) < len(made):  # some file systems do not tell a from A
        made = [_bounded(name, number, always=True) for number, name in enumerate(made, start=1)]
    return made


def _label(base: str, swept: Mapping[str, Any]) -> str:
    names = short_names(list(swept))
    words = set(base.split("-"))
    parts = [base]
    for field, value in swept.items():
        text = re.sub(r"[^\w.+=:,-]", "_", said(value))
        word = text if field in _WHAT else f"seed{text}" if field == "seed" else f"{names[field]}={text}"
        if word not in words:
            parts.append(word)
    return "-".join(parts)


def _bounded(label: str, number: int, always: bool = False) -> str:
    """The name, cut and numbered where it is too long for a folder."""
    if len(label.encode()) <= LONGEST and not always:
        return label
    end = f"-{number}"
    return label.encode()[: LONGEST - len(end)].decode(errors="ignore") + end


@dataclass(frozen=True)
class Spread:
    """A number over several seeds."""

    mean: float
    std: float
    """Sample standard deviation; NaN of a single value."""
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2%}" if self.count < 2 else f"{self.mean:.2%} ± {self.std:.2%}"


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of what several seeds gave; None of nothing."""
    if not values:
        return None
    return Spread(fmean(values), stdev(values) if len(values) > 1 else math.nan, len(values))


def over_seeds(swept: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which runs differ in their seed alone, by position; no groups where no seed is swept."""
    groups: dict[str, list[int]] = {}
    if all("seed" in values for values in swept) and len({said(values["seed"]) for values in swept}) > 1:
        for position, values in enumerate(swept):
            key = json.dumps([[field, value] for field, value in values.items() if field != "seed"], default=str)
            groups.setdefault(key, []).append(position)
    return list(groups.values())
