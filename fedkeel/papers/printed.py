"""Which tables of the papers print numbers of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.papers.format import Exhibit, papers


@dataclass(frozen=True)
class PrintedIn:
    """A table with numbers of an algorithm."""

    exhibit: Exhibit
    numbers: int
    """How many of them are legible."""


def printed_in(algorithm: str) -> list[PrintedIn]:
    """All tables with numbers of an algorithm, whatever its parameters, paper by paper."""
    found = []
    for paper in papers().values():
        for exhibit in paper.exhibits.values():
            numbers = sum(
                one.kind != "missing"
                for column in exhibit.columns
                for method, printed in column.published.items()
                if paper.methods[method].algorithm == algorithm
                for one in printed
            )
            if numbers:
                found.append(PrintedIn(exhibit, numbers))
    return found
