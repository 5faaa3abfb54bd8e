"""The papers' own experiments as files to start from, with what each paper leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fedkeel.papers.format import Paper, papers, sections_of


@dataclass(frozen=True)
class Setting:
    """One experiment of a paper."""

    name: str
    """``feddc-mnist-d2-15``: that of the paper's file, then that of the setting in it."""
    algorithms: tuple[str, ...]
    """Those that the paper proposes, the one with its name first."""
    where: str
    """The paper's table or figure."""
    open: tuple[str, ...]
    """What the paper does not say, and what stands here instead."""
    needs: tuple[str, ...]
    paper: Paper = field(hash=False, compare=False, repr=False)
    setting: str

    def file(self, algorithm: str) -> str:
        """The file that ``fedkeel init`` writes unless told otherwise."""
        return f"{self.name.replace(self.paper.id, algorithm, 1)}.toml"

    def tables(self, algorithm: str) -> dict[str, Any]:
        """The experiment for one of the paper's algorithms."""
        return sections_of(self.paper, self.setting, algorithm)


@cache
def settings() -> dict[str, Setting]:
    """All that appear in a table or figure, by name."""
    found = {}
    for paper in papers().values():
        shown = {line.setting for one in paper.exhibits.values() for part in one.parts for line in part.lines}
        for name, one in paper.settings.items():
            if name in shown:
                open_ = one.open or tuple(text for method in paper.own for text in paper.methods[method].open)
                setting = Setting(f"{paper.id}-{name}", paper.own, one.where, open_, one.needs, paper, name)
                found[setting.name] = setting
    return found


def settings_of(algorithm: str) -> list[Setting]:
    """Those of the paper that an algorithm comes from."""
    return [one for one in settings().values() if algorithm in one.algorithms]
