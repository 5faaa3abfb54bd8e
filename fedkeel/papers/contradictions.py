"""Printed numbers that cannot both be true: a target never reached, beside a best value that lies beyond it."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.papers.cells import Printed, budget, groups
from fedkeel.papers.format import BestOf, Measure, Paper
from fedkeel.papers.measures import shown
from fedkeel.papers.rules import margins

Key = tuple[str, str, str]
"""Setting, method, metric."""


@dataclass(frozen=True)
class Best:
    """A best value that a paper prints."""

    value: float
    measure: Measure
    where: str


def bests(paper: Paper) -> dict[Key, Best]:
    """All best values of a paper that are legible beyond doubt, by setting, method and metric."""
    found: dict[Key, Best] = {}
    for exhibit in paper.exhibits.values():
        for group in groups(paper, exhibit):
            for cell in group.cells:
                if group.measure.kind == "best" and cell.printed.kind == "value" and not cell.printed.uncertain:
                    key = (group.setting, cell.method, group.measure.metric)
                    found.setdefault(key, Best(cell.printed.value, group.measure, exhibit.where))
    return found


def contradiction(paper: Paper, measure: Measure, cell: Printed, known: dict[Key, Best]) -> str:
    """What else the paper prints that a number of rounds cannot be true beside; empty where there is nothing.

    Values closer than the least margin of their kind are no contradiction: rounding or another seed may be behind it.
    """
    best = known.get((cell.setting, cell.method, measure.metric))
    if measure.kind != "rounds_to" or best is None or cell.printed.uncertain or cell.printed.kind == "missing":
        return ""
    if isinstance(measure.target, BestOf):
        other = known.get((cell.setting, measure.target.best_of, measure.metric))
        if other is None or measure.target.best_of == cell.method:
            return ""
        goal, whose = other.value, f"{paper.methods[measure.target.best_of].title}'s {shown(other.value)}"
    else:
        goal = (measure.target or 0.0) * best.measure.printed_scale
        whose = f"the target {shown(goal)}"
    margin = margins(best.measure)
    gap = goal - best.value if best.measure.lower_is_better else best.value - goal
    beyond, least = gap > 0, margin.of(margin.least, goal)
    if abs(gap) <= least:
        return ""
    if cell.printed.kind == "value" and not beyond:
        return f"{cell.printed} rounds, it says, but {best.where} prints a best of {shown(best.value)} against {whose}"
    if cell.printed.kind == "beyond" and cell.printed.value < budget(paper, cell.setting, "full"):
        return ""  # it may have got there later
    if cell.printed.kind in ("beyond", "never") and beyond:
        return f"never reached, it says, but {best.where} prints a best of {shown(best.value)} against {whose}"
    return ""
