"""A table or figure beside what we measured: a verdict for every printed number, who wins, and which claims hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.papers.cells import Group, Printed, budget, groups, measured, scales
from fedkeel.papers.checks import Checked, checked_claims
from fedkeel.papers.contradictions import Best, Key, bests, contradiction
from fedkeel.papers.current import refuse_stale
from fedkeel.papers.format import Exhibit, Measure, Paper, Scale, exhibit, papers
from fedkeel.papers.measures import Summary
from fedkeel.papers.published import Published
from fedkeel.papers.records import Records
from fedkeel.papers.rules import KINDS, Column, Entry, Kind


@dataclass(frozen=True)
class Cell:
    """A printed number, ours, and the judgement."""

    method: str
    title: str
    printed: Published
    in_print: bool
    """Whether the paper has this cell at all; a reading of ours that it has not is shown, but not counted."""
    ours: Summary | None
    scale: Scale | None
    kind: Kind
    says: str


@dataclass(frozen=True)
class Judged:
    """A column under one of its measures."""

    id: str
    title: str
    setting: str
    measure: Measure
    cells: tuple[Cell, ...]
    wins_in_print: tuple[str, ...]
    """Titles of the best, several if they are equal."""
    wins_here: tuple[str, ...]
    """Of those that were run; several if they are level within the noise."""
    agreement: float | None
    """Kendall's τ between the order in print and here."""
    compared: int
    """How many methods that is of."""
    base: str | None = None
    """The method that speed-ups are over."""

    @property
    def winner_holds(self) -> bool | None:
        """Whether the winner in print is the one here; None where nobody can tell, as when it was not run."""
        there = {cell.title for cell in self.cells if cell.ours is not None}
        if len(there) < 2 or not self.wins_in_print or not set(self.wins_in_print) <= there or not self.wins_here:
            return None
        if not set(self.wins_in_print) & set(self.wins_here):
            return False
        return True if set(self.wins_here) <= set(self.wins_in_print) else None

    def speed_up(self, cell: Cell) -> tuple[float, bool] | None:
        """The base's rounds over a cell's, and whether that is only a lower bound: the base did not get there."""
        base = next((one.ours for one in self.cells if one.method == self.base and one.scale == cell.scale), None)
        if self.measure.kind != "rounds_to" or base is None or cell.ours is None or cell.ours.beyond:
            return None
        return base.value / cell.ours.value, base.beyond


@dataclass(frozen=True)
class ExhibitVerdict:
    """All about one table or figure."""

    exhibit: Exhibit
    columns: tuple[Judged, ...]
    claims: tuple[Checked, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those that the paper has."""
        return tuple(cell for column in self.columns for cell in column.cells if cell.in_print)

    @property
    def counts(self) -> dict[Kind, int]:
        """How many cells there are of each kind."""
        found = Counter(cell.kind for cell in self.cells)
        return {kind: found[kind] for kind in KINDS}

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "id": self.exhibit.id,
            "where": self.exhibit.where,
            "title": self.exhibit.title,
            "counts": self.counts,
            "columns": [_column_json(column) for column in self.columns],
            "claims": [{"says": c.claim.says, "verdict": c.kind, "because": c.because} for c in self.claims],
        }


def verdict(name: str, records: Records, scale: Scale | None = None) -> ExhibitVerdict:
    """The judgement on a table or figure, from records: each cell at ``scale``, or at the best one that it has."""
    chosen = exhibit(name)
    refuse_stale(papers()[chosen.paper], records)
    return judge(papers()[chosen.paper], chosen, records, scale)


def judge(paper: Paper, chosen: Exhibit, records: Records, scale: Scale | None = None) -> ExhibitVerdict:
    """The same for any paper."""
    known = bests(paper)
    columns = tuple(_judged(paper, group, records, scale, known) for group in groups(paper, chosen))
    return ExhibitVerdict(chosen, columns, checked_claims(paper, chosen, records, scale))


def _judged(paper: Paper, group: Group, records: Records, scale: Scale | None, known: dict[Key, Best]) -> Judged:
    """Methods are compared with each other at the same scale; each is judged at the best one it has."""
    wanted = scales(scale)
    entries = {one: _entries(paper, group, records, one, known) for one in wanted}
    rules = {one: Column(group.measure, entries[one], budget(paper, group.setting, one), one) for one in wanted}
    cells: list[Cell] = []
    used: Counter[Scale] = Counter()
    for cell in group.cells:
        found = _best_scale({one: entries[one][cell.label].ours for one in wanted})
        used.update([] if found is None else [found])
        entry, result = entries[found or wanted[0]][cell.label], rules[found or wanted[0]].verdict(cell.label)
        cells.append(
            Cell(
                method=cell.method,
                title=cell.title,
                printed=cell.printed,
                in_print=cell.in_print,
                ours=entry.ours,
                scale=found,
                kind=result.kind,
                says=result.says,
            )
        )
    most = max(used, key=lambda one: used[one], default=wanted[0])
    agreement, compared = rules[most].agreement()
    in_print, here = rules[most].winners()
    titles = {cell.label: cell.title for cell in group.cells}
    return Judged(
        id=group.id,
        title=group.title,
        setting=group.setting,
        measure=group.measure,
        cells=tuple(cells),
        wins_in_print=tuple(titles[label] for label in in_print),
        wins_here=tuple(titles[label] for label in here),
        agreement=agreement,
        compared=compared,
        base=paper.base,
    )


def _best_scale(ours: Mapping[Scale, Summary | None]) -> Scale | None:
    """The first that has a number; a run that was cut short of its target gives way to a smaller one that was not."""
    there = [scale for scale, one in ours.items() if one is not None]
    whole = [scale for scale, one in ours.items() if one is not None and not one.short]
    return next(iter(whole or there), None)


def _entries(paper: Paper, group: Group, records: Records, scale: Scale, known: dict[Key, Best]) -> dict[str, Entry]:
    return {cell.label: _entry(paper, group.measure, cell, records, scale, known) for cell in group.cells}


def _entry(
    paper: Paper, measure: Measure, cell: Printed, records: Records, scale: Scale, known: dict[Key, Best]
) -> Entry:
    found = measured(paper, measure, cell.setting, cell.method, records, scale)
    return Entry(
        title=cell.title,
        own=paper.methods[cell.method].algorithm in paper.own,
        printed=cell.printed,
        rival=paper.methods[cell.method].rival,
        ours=found if isinstance(found, Summary) else None,
        why="" if isinstance(found, Summary) else found.why,
        contradiction=contradiction(paper, measure, cell, known),
    )


def _column_json(column: Judged) -> dict[str, Any]:
    return {
        "id": column.id,
        "title": column.title,
        "setting": column.setting,
        "measure": str(column.measure),
        "wins_in_print": list(column.wins_in_print),
        "wins_here": list(column.wins_here),
        "winner_holds": column.winner_holds,
        "kendall_tau": column.agreement,
        "methods_compared": column.compared,
        "cells": [_cell_json(cell, column.speed_up(cell)) for cell in column.cells],
    }


def _cell_json(cell: Cell, speed_up: tuple[float, bool] | None) -> dict[str, Any]:
    return {
        "method": cell.method,
        "title": cell.title,
        "published": str(cell.printed) if cell.in_print else None,
        "ours": None if cell.ours is None else _summary_json(cell.ours),
        "speed_up": None if speed_up is None else {"value": speed_up[0], "at_least": speed_up[1]},
        "scale": cell.scale,
        "verdict": cell.kind,
        "because": cell.says,
    }


def _summary_json(ours: Summary) -> dict[str, Any]:
    return {
        "value": ours.value if math.isfinite(ours.value) else None,
        "beyond": ours.beyond,
        "sd": ours.sd,
        "seeds": ours.n,
        "failed": ours.failed,
        "smoothed": ours.smoothed,
        "notes": list(ours.notes),
        "text": str(ours),
    }


def total(verdicts: Iterable[ExhibitVerdict]) -> dict[Kind, int]:
    """How many cells of each kind several exhibits have."""
    found: Counter[Kind] = Counter()
    for one in verdicts:
        found.update(one.counts)
    return {kind: found[kind] for kind in KINDS}
