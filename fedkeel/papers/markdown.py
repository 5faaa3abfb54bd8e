"""Verdicts as Markdown: for ``fedkeel paper verdict --md`` and for the pages in docs/papers."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeel.papers.rules import KINDS
from fedkeel.papers.verdicts import Cell, ExhibitVerdict, Judged


def exhibit_section(found: ExhibitVerdict, heading: str = "##") -> str:
    """Everything about one exhibit but its picture."""
    parts = [f"{heading} {found.exhibit.where}: {found.exhibit.title}", found.exhibit.shows]
    parts += [f"{heading}# {column_title(column, found)}\n\n{column_table(column)}" for column in found.columns]
    parts += [claims(found)] if found.claims else []
    parts += [summary(found)] if found.cells else []
    return "\n\n".join(parts)


def column_title(column: Judged, found: ExhibitVerdict) -> str:
    """With its measure, where there are several."""
    several = len({one.measure for one in found.columns if one.id == column.id}) > 1
    same = len({str(one.measure) for one in found.columns}) == 1
    return f"{column.title}: {column.measure}" if several or not same else column.title


def column_table(column: Judged) -> str:
    """Published, ours and the verdict with its reason, a row for each method; who wins, below."""
    smoothed = any(cell.ours is not None and cell.ours.smoothed is not None for cell in column.cells)
    head = ["method", "published", "ours", *(["smoothed"] if smoothed else []), "seeds", "verdict", "because"]
    rows = [cells(cell, smoothed) for cell in column.cells]
    return "\n\n".join([table(head, rows), *([said] if (said := outcome(column)) else [])])


def cells(cell: Cell, smoothed: bool) -> list[str]:
    """A row of a column's table."""
    ours = cell.ours
    scale = " (reduced)" if cell.scale == "reduced" else ""
    between = [] if not smoothed else [f"{ours.smoothed:.1f}" if ours and ours.smoothed is not None else "–"]
    notes = f" {'; '.join(ours.notes)}." if ours is not None and ours.notes else ""
    return [
        cell.title,
        str(cell.printed) if cell.in_print else "–",
        f"{ours}{scale}" if ours is not None else "–",
        *between,
        str(ours.n) if ours is not None else "–",
        cell.kind if cell.in_print else "–" if ours is not None else "not run",
        f"{cell.says}{notes}" if cell.in_print else f"Not in the paper.{notes}",
    ]


def outcome(column: Judged) -> str:
    """Who wins in print and here, and how far the orders agree; nothing where nothing was run."""
    if not column.wins_here:
        return ""
    in_print = " and ".join(column.wins_in_print)
    here = column.wins_here[0]
    level = column.wins_here[1:]
    said = [f"Best in print: {in_print}" if in_print else "", f"best here: {here}"]
    said = [one for one in said if one]
    text = "; ".join(said) + (f" (level with it: {', '.join(level)})" if level else "") + "."
    if column.agreement is not None and column.compared > 2:
        text += f" Rank agreement over {column.compared} methods: τ = {column.agreement:.2f}."
    return text[:1].upper() + text[1:]


def claims(found: ExhibitVerdict) -> str:
    """What the paper concludes, and whether it shows."""
    rows = [[one.claim.says, one.kind, one.because] for one in found.claims]
    return table(["claim", "here", "because"], rows)


def summary(found: ExhibitVerdict) -> str:
    """How many cells of each kind, in a line."""
    return f"{len(found.cells)} cells: " + ", ".join(f"{found.counts[kind]} {kind}" for kind in KINDS) + "."


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; nothing in a cell ends it."""
    lines = [list(columns), ["---"] * len(columns), *([_cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("*", "\\*").split()) or "–"
