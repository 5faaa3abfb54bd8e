"""What tuning may change: ranges and choices as data, and where in an experiment they stand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import model_validator

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.validate import Settings, checked
from fedkeel.errors import InputError, unknown

FILE = Path(__file__).with_name("spaces.toml")
DIGITS = 4
"""Significant digits of a value that is tried, so that a person can write it down."""
Value = bool | int | float | str
"""False leaves the field out."""
AVERAGE = "evaluation.average"
"""Chosen without being searched: a run with an average over rounds evaluates the last model as well."""
OF_AVERAGE = ("average", "average_decay", "average_from")
"""The fields that go with it."""


class Dimension(Settings):
    """The values that one field may take."""

    low: int | float | None = None
    high: int | float | None = None
    scale: Literal["log", "linear"] | None = None
    choices: tuple[Value, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Dimension:
        given = [self.low is not None, self.high is not None, self.scale is not None]
        if self.choices and any(given):
            raise ValueError("given choices, or low, high and scale, not both")
        if not self.choices and not all(given):
            raise ValueError("given low, high and scale, or choices")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("given a low below high")
        if self.scale == "log" and self.low is not None and self.low <= 0:
            raise ValueError("given a low above 0 with scale = 'log'")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: Value) -> bool:
        """Whether a value is one that may be tried; 1 and 1.0 are the same."""
        if self.choices:
            return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.choices)
        assert self.low is not None
        assert self.high is not None
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def holding(self, value: Value) -> Dimension:
        """The same, widened to hold a value where it does not."""
        if self.holds(value):
            return self
        if self.choices:
            return Dimension(choices=(value, *self.choices))
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.scale == "log" and value <= 0):
            raise InputError(f"a range from {self.low} to {self.high} cannot be widened to hold {value!r}.")
        assert self.low is not None
        assert self.high is not None
        return Dimension(low=min(self.low, value), high=max(self.high, value), scale=self.scale)

    def rounded(self, value: Value) -> Value:
        """A value as it is tried."""
        if self.choices or self.is_whole or not isinstance(value, float):
            return value
        assert self.low is not None
        assert self.high is not None
        return min(max(float(f"{value:.{DIGITS}g}"), float(self.low)), float(self.high))


Space = dict[str, Dimension]
"""By the dotted names of fields: ``training.lr``, ``algorithm.mu``."""


def plain(space: Space) -> dict[str, Any]:
    """As records hold it."""
    return {name: dimension.model_dump(mode="json", exclude_defaults=True) for name, dimension in space.items()}


class _File(Settings):
    common: dict[str, Dimension]
    algorithms: dict[str, dict[str, Dimension]]


@cache
def spaces() -> _File:
    """What is shipped."""
    return checked("spaces.toml", _File, tomllib.loads(FILE.read_text(encoding="utf-8")))


def space_of(algorithm: str) -> Space:
    """The common fields, and the algorithm's own if it has an entry."""
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, list(ALGORITHMS))
    own = spaces().algorithms.get(algorithm, {})
    return dict(spaces().common) | {f"algorithm.{name}": dimension for name, dimension in own.items()}


def without_space() -> list[str]:
    """Registered algorithms that have numbers to be set, but no entry: they are tuned over the common fields only."""
    return [
        name
        for name, cls in ALGORITHMS.items()
        if name not in spaces().algorithms and any(map(_is_number, cls.Params.model_fields.values()))
    ]


def _is_number(field: Any) -> bool:
    kinds = {field.annotation, *get_args(field.annotation)}
    return bool(kinds & {int, float})


def placed(table: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """The sections of an experiment with these values in their places; False takes a field out."""
    made = {name: dict(part) if isinstance(part, Mapping) else part for name, part in table.items()}
    for name, value in values.items():
        section, _, field = name.partition(".")
        part = made.setdefault(section, {})
        for old in OF_AVERAGE if name == AVERAGE and value is False else (field,):
            part.pop(old, None)
        if value is not False:
            part[field] = value
    return made
