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
    head, rows = column_rows(column)
    return "\n\n".join([table(head, rows), *([said] if (said := outcome(column)) else [])])


def column_rows(column: Judged) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a column's table; numbers of rounds have two columns more, as far as there are any."""
    ran = [cell for cell in column.cells if cell.ours is not None]
    smoothed = any(cell.ours is not None and cell.ours.smoothed is not None for cell in ran)
    faster = any(column.speed_up(cell) is not None for cell in ran if cell.method != column.base)
    more = [*(["speed-up"] if faster else []), *(["smoothed"] if smoothed else [])]
    rows = [_row(column, cell, more) for cell in column.cells]
    return ["method", "published", "ours", *more, "seeds", "verdict", "because"], rows


def _row(column: Judged, cell: Cell, more: Sequence[str]) -> list[str]:
    ours, speed_up = cell.ours, column.speed_up(cell)
    scale = f" ({cell.scale})" if cell.scale not in (None, "full") else ""
    noted = "; ".join(ours.notes) if ours is not None else ""
    notes = f" {noted[0].upper()}{noted[1:]}." if noted else ""
    extra = {
        "speed-up": "–" if speed_up is None else f"{'≥ ' if speed_up[1] else ''}{speed_up[0]:.2f}×",
        "smoothed": "–" if ours is None or ours.smoothed is None else f"{ours.smoothed:.1f}",
    }
    return [
        cell.title,
        str(cell.printed) if cell.in_print else "–",
        f"{ours}{scale}" if ours is not None else "–",
        *(extra[name] for name in more),
        str(ours.n) if ours is not None else "–",
        cell.kind if cell.in_print else "–" if ours is not None else "not run",
        f"{cell.says}{notes}" if cell.in_print else f"Not in the paper.{notes}",
    ]


def outcome(column: Judged) -> str:
    """Who wins in print and here, and how far the orders agree; nothing where nothing was run."""
    ran = [cell for cell in column.cells if cell.ours is not None]
    if not column.wins_here or len(ran) < 2:
        return ""
    in_print = " and ".join(column.wins_in_print)
    here = column.wins_here[0]
    of = f", of the {len(ran)} that were run" if len(ran) < len(column.cells) else ""
    level = column.wins_here[1:]
    said = [f"Best in print: {in_print}" if in_print else "", f"best here{of}: {here}"]
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
