"""What the papers published, as data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


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
