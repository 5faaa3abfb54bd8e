"""The papers' tables and figures: as data, run and judged.

``fedkeel.papers.exhibits()`` are all of them by id; ``fedkeel.papers.run("feddc.table1")`` runs one,
``fedkeel.papers.verdict("feddc.table1")`` judges it, ``fedkeel.papers.figure("feddc.figure3")`` draws it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A published number that an algorithm should reproduce: where it stands, what it is."""

    source: str
    setting: str
    value: float
    unit: str


@cache
def _all_claims() -> dict[str, tuple[Claim, ...]]:
    text = (files(__package__) / "claims.toml").read_text(encoding="utf-8")
    return {name: tuple(Claim(**claim) for claim in claims) for name, claims in tomllib.loads(text).items()}


def claims(algorithm: str) -> tuple[Claim, ...]:
    """The published numbers of an algorithm, by its name."""
    return _all_claims().get(algorithm, ())


_LATER = {"exhibits": "format", "papers": "format", "run": "api", "verdict": "api", "figure": "api"}
"""Functions that need more than these few lines, by the module that has them."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
