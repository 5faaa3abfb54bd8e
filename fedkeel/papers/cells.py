"""Which printed numbers an exhibit has, and what records say about each."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.papers.format import BestOf, Exhibit, Measure, Paper, Scale
from fedkeel.papers.measures import Number, Summary, Unanswered, number, summary
from fedkeel.papers.plan import said
from fedkeel.papers.published import Published
from fedkeel.papers.records import Record, Records

WORTH: tuple[Scale, ...] = ("full", "reduced")
"""The scales that tell something about a paper, the better one first."""


NO_RECORD = "there is no record"


@dataclass(frozen=True)
class Printed:
    """One printed number of a group."""

    label: str
    """What tells it from the others of its group."""
    title: str
    method: str
    setting: str
    printed: Published
    in_print: bool
    """False: a reading of ours that the paper does not have."""


@dataclass(frozen=True)
class Group:
    """Numbers of one setting and measure, which can be compared with each other."""

    id: str
    title: str
    setting: str
    measure: Measure
    cells: tuple[Printed, ...]


def groups(paper: Paper, exhibit: Exhibit) -> list[Group]:
    """The columns of a table, once for each of their measures; the bars of a figure, by setting."""
    found = []
    for column in exhibit.columns:
        for at, measure in enumerate(column.measures):
            cells = [
                Printed(
                    label=line.method,
                    title=paper.methods[line.method].title,
                    method=line.method,
                    setting=column.setting,
                    printed=column.printed(line.method)[at],
                    in_print=line.method in column.published,
                )
                for line in column.lines
            ]
            found.append(Group(column.id, column.title, column.setting, measure, tuple(cells)))
    for panel in exhibit.panels:
        if panel.measure is None:
            continue
        for setting in dict.fromkeys(line.setting for line in panel.lines):
            lines = [line for line in panel.lines if line.setting == setting]
            printed = tuple(
                Printed(line.label, line.label, line.method, setting, line.published, line.published.kind != "missing")
                for line in lines
            )
            found.append(Group(panel.id, panel.title, setting, panel.measure, printed))
    return found


def budget(paper: Paper, setting: str, scale: Scale) -> int:
    """Rounds of a setting at a scale: further ones that a record may hold belong to other exhibits."""
    chosen = paper.settings[setting]
    smaller = {"full": [], "reduced": [chosen.reduced], "smoke": [paper.smoke, chosen.smoke]}[scale]
    training = dict(chosen.training)
    for one in smaller:
        training |= one.training if one is not None else {}
    return int(training["rounds"])


def runs(paper: Paper, setting: str, method: str, records: Records, scale: Scale) -> list[Record]:
    """The records of all seeds; full ones serve for a reduced scale that reduces nothing."""
    reduced = paper.settings[setting].reduced
    whole = scale == "reduced" and reduced is not None and not reduced.sections()
    return records.seeds(paper.id, setting, method, "full" if whole else scale)


def measured(
    paper: Paper, measure: Measure, setting: str, method: str, records: Records, scale: Scale
) -> Summary | Unanswered:
    """A measure over all seeds on record, or why there is none."""
    found = runs(paper, setting, method, records, scale)
    if not found:
        needs = paper.settings[setting].needs
        return Unanswered(f"there is no record; it needs {' and '.join(map(said, needs))}" if needs else NO_RECORD)
    rounds = budget(paper, setting, scale)
    numbers: dict[int, Number] = {}
    reasons: list[str] = []
    early: list[int] = []
    for record in found:
        one = number(record, measure, rounds, _reference(paper, measure, record, records))
        if isinstance(one, Number):
            numbers[record.seed] = one
        else:
            reasons.append(one.why)
            early += [record.seed] if record.ended == "until" else []
    if numbers and early:
        # Whoever got to a target stopped there: those that did not are the worse ones.
        seeds = ", ".join(map(str, early))
        return Unanswered(f"seed {seeds} stopped at a target, and the others alone are no fair sample")
    return summary(numbers, measure.lower_is_better) if numbers else Unanswered("; ".join(dict.fromkeys(reasons)))


def _reference(paper: Paper, measure: Measure, record: Record, records: Records) -> Record | None:
    if not isinstance(measure.target, BestOf):
        return None
    return records.get(paper.id, record.setting, measure.target.best_of, record.seed, record.scale)


def scales(scale: Scale | None) -> tuple[Scale, ...]:
    """Those to look at, in this order."""
    return WORTH if scale is None else (scale,)
