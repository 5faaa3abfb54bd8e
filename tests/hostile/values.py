"""Values that a person, a program or an enemy may give where something else is meant."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from pydantic.fields import FieldInfo

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 5e-324, 1e38, 1e39, 1e308, math.nan, math.inf, -math.inf, 0.1 + 0.2),
    *(True, False),
)
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "a",
        "1",
        "0.5",
        "nan",
        "None",
        "true",
        "fedavg",
        "FedAvg",
        "feddc",
        "2nn",
        "mnist5k",
        "cpu",
        "cuda",
        "iid",
    ),
    *("a/b", "..", "/", ".", "~", "os:system", "os.path:join", ":", "a:b:c", "a.b", "a=b", "=", "--help", "@", "x@3"),
    *(
        "\x00",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "\r\n",
        "a\nb",
        "\x7f",
        "\x9b31m",
        "\u202egnp",
        "\ud800",
        "é",
        "𝔘",
        "\u2028",
    ),
    *("[/x]", "[bold]", "[link=file:///]x[/link]", "{0}", "%s", "%(a)s", "\\", "'", '"', "$HOME", "x" * 5000),
)
LIVE: tuple[Callable[[], Any], ...] = (
    *(lambda: None, lambda: b"bytes", lambda: bytearray(3), lambda: 1j, lambda: ..., lambda: object(), lambda: int),
    *(lambda: object, lambda: len, lambda: lambda: 1, lambda: (n for n in range(3)), lambda: range(3), lambda: math),
    *(list, dict, set, tuple, lambda: [None], lambda: [[]], lambda: {"a": 1}, lambda: {1: 2}, lambda: {None: 1}),
    *(lambda: [1, "a"], lambda: (0.2, 0.8), lambda: [math.nan], lambda: [2**70], lambda: Path("x"), lambda: Path("/")),
    *(lambda: Fraction(1, 3), lambda: Decimal("0.1"), lambda: Decimal("NaN"), lambda: slice(3), lambda: NotImplemented),
    *(lambda: np.int64(3), lambda: np.uint8(1), lambda: np.float32(0.5), lambda: np.bool_(True), lambda: np.str_("a")),
    *(
        lambda: np.float64("nan"),
        lambda: np.array(3),
        lambda: np.zeros(0),
        lambda: np.zeros((2, 3)),
        lambda: np.zeros((0, 4)),
    ),
    *(
        lambda: np.array(["a"]),
        lambda: np.array([None]),
        lambda: np.array([1 + 1j]),
        lambda: np.datetime64("2020-01-01"),
    ),
    *(lambda: torch.tensor(1), lambda: torch.tensor(0.5), lambda: torch.zeros(0), lambda: torch.zeros(2, 3)),
    *(lambda: torch.float32, lambda: torch.nn.Linear(6, 3), lambda: torch.nn.Linear, lambda: torch.device("cpu")),
    *(lambda: Exception("x"), lambda: type("Odd", (), {})(), lambda: nested(40), lambda: nested(3000)),
)


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def plain(rng: random.Random, depth: int = 0) -> Any:
    """A value that TOML can hold."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(NUMBERS)
    if kind < 0.85 or depth > 2:
        return text(rng)
    if kind < 0.93:
        return [plain(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {text(rng) or "k": plain(rng, depth + 1) for _ in range(rng.randrange(3))}


def text(rng: random.Random) -> str:
    """A known nasty text, or any."""
    if rng.random() < 0.8:
        return rng.choice(TEXTS)
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0xD7FF)))) for _ in range(rng.randrange(8)))


def anything(rng: random.Random) -> Any:
    """A Python value of any kind."""
    return rng.choice(LIVE)() if rng.random() < 0.5 else plain(rng)


def near(rng: random.Random, field: FieldInfo) -> Any:
    """A value at, inside or just beyond what a field of a schema allows."""
    found: list[Any] = [field.default]
    for rule in field.metadata:
        for word in ("gt", "ge", "lt", "le"):
            limit = getattr(rule, word, None)
            if limit is not None:
                found += [
                    limit,
                    limit - 1,
                    limit + 1,
                    limit * 2,
                    math.nextafter(limit, 9e99),
                    math.nextafter(limit, -9e99),
                ]
                found += [(limit + float(field.default)) / 2 if isinstance(field.default, int | float) else limit]
    choices = getattr(field.annotation, "__args__", ())
    found += [choice for choice in choices if isinstance(choice, str | int | float | bool)]
    if isinstance(field.default, bool):
        found += [True, False, "yes", 2]
    elif isinstance(field.default, int | float):
        found += [field.default * 2, field.default / 2, str(field.default), [field.default]]
    elif isinstance(field.default, str):
        found += [field.default.upper(), field.default + " ", field.default[:-1]]
    return rng.choice(found)


def field_value(rng: random.Random, field: FieldInfo, live: bool) -> Any:
    """Mostly near what is allowed, now and then anything."""
    if rng.random() < 0.6:
        return near(rng, field)
    return anything(rng) if live else plain(rng)


def fields(rng: random.Random, schema: type[BaseModel], live: bool, at_most: int = 3) -> dict[str, Any]:
    """Some fields of a schema with values, and now and then one that it does not have."""
    names = list(schema.model_fields)
    chosen = rng.sample(names, rng.randrange(min(at_most, len(names)) + 1))
    given = {name: field_value(rng, schema.model_fields[name], live) for name in chosen}
    if rng.random() < 0.05:
        given[rng.choice((*TEXTS, "learning_rate", "round", "alpha"))] = plain(rng)
    return given
