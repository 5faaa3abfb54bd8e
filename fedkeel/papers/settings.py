"""The papers' own experiments, as they can be run here, with what each paper leaves open."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One experiment of a paper."""

    name: str
    algorithms: tuple[str, ...]
    where: str
    """The paper's table or figure."""
    open: tuple[str, ...]
    """What the paper does not say, and what stands here instead."""
    experiment: dict[str, Any] = field(hash=False)
    """Tables of an experiment file, without the algorithm's name."""

    def file(self, algorithm: str) -> str:
        """The file that ``fedkeel init`` writes unless told otherwise."""
        return f"{self.name.replace(self.algorithms[0], algorithm, 1)}.toml"

    def tables(self, algorithm: str) -> dict[str, Any]:
        """The experiment for one of the paper's algorithms; parameters belong to the first one."""
        own = self.experiment.get("algorithm", {}) if algorithm == self.algorithms[0] else {}
        return self.experiment | {"algorithm": {"name": algorithm, **own}}


@cache
def settings() -> dict[str, Setting]:
    """All of them, by name."""
    text = (files(__package__) / "settings.toml").read_text(encoding="utf-8")
    return {
        name: Setting(name, tuple(one["algorithms"]), one["where"], tuple(one["open"]), one["experiment"])
        for name, one in tomllib.loads(text).items()
    }


def settings_of(algorithm: str) -> list[Setting]:
    """Those of the paper that an algorithm comes from."""
    return [one for one in settings().values() if algorithm in one.algorithms]
