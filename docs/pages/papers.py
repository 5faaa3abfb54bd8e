"""The pages in docs/papers: every table and figure of the papers beside what results/ holds, with verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs.pages.data import ROOT
from docs.pages.pictures import drawn
from fedkeel import config
from fedkeel.papers.cells import WORTH, runs
from fedkeel.papers.checks import CLAIM_KINDS
from fedkeel.papers.figures import draw
from fedkeel.papers.format import Exhibit, Paper, Setting, papers
from fedkeel.papers.markdown import claims, column_table, column_title, summary, table
from fedkeel.papers.plan import said as needed
from fedkeel.papers.records import Record, Records
from fedkeel.papers.rules import KINDS
from fedkeel.papers.verdicts import ExhibitVerdict, Judged, total, verdict

FOLDER = ROOT / "docs" / "papers"
PICTURES = FOLDER / "pictures"
WRITTEN = FOLDER / "notes"
NOTES = WRITTEN / "README.md"
"""The first page as people write it, with a place for the table."""
NUMBER = re.compile(r"\{(ours|printed): *(\S+) (\S+) (\S+?)(?: (.+?))?\}")
"""A number in what people write: ``{ours: table1 svm fedveca accuracy}``, the last word being part of its measure."""
PLACE = "<!-- verdicts -->"
MISSING = "–"
RECORDS = ROOT / "results"


def pages(records: Records | None = None) -> dict[Path, str]:
    """Every page by its path."""
    known = Records.of(RECORDS) if records is None else records
    judged = {name: [verdict(one.id, known) for one in paper.exhibits.values()] for name, paper in papers().items()}
    made = {FOLDER / f"{name}.md": page(papers()[name], found, known) for name, found in judged.items()}
    return {FOLDER / "README.md": index(judged, known)} | made


def draw_pictures(records: Records | None = None) -> list[Path]:
    """The figures that pages show, drawn where they have changed; what no page shows any more goes."""
    known = Records.of(RECORDS) if records is None else records
    shown = []
    for paper in papers().values():
        for exhibit in paper.exhibits.values():
            if has_picture(paper, exhibit, known):
                shown.append(drawn(draw(paper, exhibit, known), picture(exhibit)))
    for path in PICTURES.glob("*.png"):
        if path not in shown:
            path.unlink()
    return shown


def has_picture(paper: Paper, exhibit: Exhibit, records: Records) -> bool:
    """Whether there is anything to draw."""
    if exhibit.kind == "toy":
        return True
    lines = [line for panel in exhibit.panels for line in panel.lines]
    return any(runs(paper, line.setting, line.method, records, scale) for line in lines for scale in WORTH)


def picture(exhibit: Exhibit) -> Path:
    """Where the picture of a figure lies."""
    return PICTURES / f"{exhibit.id.replace('.', '-')}.png"


def index(judged: Mapping[str, list[ExhibitVerdict]], records: Records) -> str:
    """How many cells of each verdict each paper has, and the rules."""
    rows = [_index_row(_name(papers()[name]), _by(papers()[name]), found) for name, found in judged.items()]
    rows.append(_index_row("all", "", [one for found in judged.values() for one in found]))
    head = ["paper", "by", "tables and figures", "cells", *KINDS, f"claims: {' / '.join(CLAIM_KINDS)}"]
    there = f"{len(records)} runs are on record" if len(records) else "No run is on record yet"
    made = f"{there} in [`results/`](../../results).\n\n{table(head, rows)}"
    return NOTES.read_text(encoding="utf-8").replace(PLACE, made)


def _name(paper: Paper) -> str:
    """Its main method's, which is how people call a paper."""
    return f"[{paper.short}]({paper.id}.md)"


def _by(paper: Paper) -> str:
    return f"{paper.authors}, {paper.venue}"


def _index_row(name: str, by: str, found: list[ExhibitVerdict]) -> list[str]:
    counts, fates = total(found), Counter(claim.kind for one in found for claim in one.claims)
    cells = [sum(counts.values()), *(counts[kind] for kind in KINDS)]
    return [name, by, str(len(found)), *map(str, cells), " / ".join(str(fates[kind]) for kind in CLAIM_KINDS)]


def page(paper: Paper, found: list[ExhibitVerdict], records: Records) -> str:
    """One paper."""
    mine = [record for record in records if record.paper == paper.id]
    counts = ", ".join(f"{count} {kind}" for kind, count in total(found).items())
    parts = [
        f"# {paper.title}",
        f"{paper.authors}, {paper.venue}. {sum(total(found).values())} printed numbers: {counts}. "
        "[What these words mean](README.md#the-rules).",
        _provenance(mine),
        in_short(paper, found) if mine else "",
        *(_exhibit(paper, one, records) for one in found),
        _settings(paper),
        _methods(paper),
        "[All papers](README.md).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _provenance(mine: list[Record]) -> str:
    if not mine:
        return "No run of it is on record yet."
    versions = ", ".join(sorted({f"{r.fedkeel} ({r.commit[:10]})" if r.commit else r.fedkeel for r in mine}))
    hours = sum(record.seconds for record in mine) / 3600
    return f"{len(mine)} runs on record, {hours:.1f} hours of one core, by fedkeel {versions}."


def in_short(paper: Paper, found: list[ExhibitVerdict]) -> str:
    """What people have written about a paper's results, and what became of its claims."""
    path = WRITTEN / f"{paper.id}.md"
    written = with_numbers(path.read_text(encoding="utf-8").strip(), found) if path.exists() else ""
    fates: dict[str, list[str]] = {}
    for one in found:
        for claim in one.claims:
            if claim.kind != "not run":
                how = " (at a reduced scale)" if claim.scale == "reduced" else ""
                fates.setdefault(claim.kind, []).append(f"{claim.claim.says}{how}, {one.exhibit.where}")
    lists = [_listed(kind[:1].upper() + kind[1:], fates[kind]) for kind in CLAIM_KINDS if kind in fates]
    missing = sum(claim.kind == "not run" for one in found for claim in one.claims)
    rest = f"Claims that nobody has run yet: {missing}." if missing else ""
    parts = [part for part in (written, *lists, rest) if part]
    return "\n\n".join(["## In short", *parts]) if parts else ""


def with_numbers(text: str, found: list[ExhibitVerdict]) -> str:
    """Text with our numbers and printed ones in the places that name them; – where there is none."""

    def number(place: re.Match[str]) -> str:
        whose, exhibit, column, method, measure = place.groups()
        cells = [
            cell
            for one in found
            if one.exhibit.id.split(".")[1] == exhibit
            for judged in one.columns
            if judged.id == column and (measure or "") in str(judged.measure)
            for cell in judged.cells
            if cell.method == method
        ]
        known = [cell.ours if whose == "ours" else cell.printed for cell in cells]
        return str(known[0]) if known and known[0] is not None else MISSING

    return NUMBER.sub(number, text)


def _exhibit(paper: Paper, found: ExhibitVerdict, records: Records) -> str:
    exhibit = found.exhibit
    parts = [f"## {exhibit.where}: {exhibit.title}", exhibit.shows]
    if exhibit.kind not in ("illustration", "toy"):
        parts.append(f"`fedkeel paper run {exhibit.id}`. Settings: {_used(exhibit)}.")
    if exhibit.open:
        parts.append(_listed("Open", exhibit.open))
    if has_picture(paper, exhibit, records):
        parts.append(f"![{exhibit.title}](pictures/{picture(exhibit).name})")
    ran = [column for column in found.columns if any(cell.ours is not None for cell in column.cells)]
    parts += [f"### {column_title(column, found)}\n\n{column_table(column)}" for column in ran]
    parts += _not_run(found, [column for column in found.columns if column not in ran])
    if exhibit.panels and not found.columns and not has_picture(paper, exhibit, records):
        parts.append("Not run.")
    parts += [claims(found)] if found.claims else []
    parts += [summary(found)] if found.cells else []
    return "\n\n".join(parts)


def _used(exhibit: Exhibit) -> str:
    return ", ".join(
        f"`{name}`" for name in dict.fromkeys(line.setting for part in exhibit.parts for line in part.lines)
    )


def _not_run(found: ExhibitVerdict, columns: list[Judged]) -> list[str]:
    """Columns without a record share a table of what is printed."""
    printed = [column for column in columns if any(cell.in_print for cell in column.cells)]
    if not printed:
        return [f"Not run: {', '.join(dict.fromkeys(column.title for column in columns))}."] if columns else []
    methods = list(dict.fromkeys(cell.title for column in printed for cell in column.cells if cell.in_print))
    said = {(column, cell.title): str(cell.printed) for column in printed for cell in column.cells if cell.in_print}
    if len(printed) > len(methods):  # long rather than wide
        rows = [[column_title(c, found), *(said.get((c, m), "–") for m in methods)] for c in printed]
        return ["Not run; as printed:", table(["", *methods], rows)]
    rows = [[method, *(said.get((column, method), "–") for column in printed)] for method in methods]
    return ["Not run; as printed:", table(["method", *(column_title(column, found) for column in printed)], rows)]


def _settings(paper: Paper) -> str:
    """Those that exhibits use; others are only there to be built upon."""
    parts = [part for exhibit in paper.exhibits.values() for part in exhibit.parts]
    used = {line.setting for part in parts for line in part.lines}
    settings = {name: setting for name, setting in paper.settings.items() if name in used}
    rows = [
        [
            f"`{name}`",
            setting.where,
            _described(setting),
            setting.reduced.says if setting.reduced else "–",
            ", ".join(map(needed, setting.needs)) or "–",
        ]
        for name, setting in settings.items()
    ]
    opened = list(dict.fromkeys(one for setting in settings.values() for one in setting.open))
    told = ["## Settings", table(["name", "where", "experiment", "reduced", "needs"], rows)]
    return "\n\n".join([*told, *([_listed("Open, and what was chosen", opened)] if opened else [])])


def _described(setting: Setting) -> str:
    return "; ".join(f"{name}: {_values(values)}" for name, values in setting.sections().items())


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {config.toml(value)}" if key not in ("name", "rule") else str(value) for key, value in values.items()
    )


def _methods(paper: Paper) -> str:
    rows = []
    for method in paper.methods.values():
        changes = [_values(method.params), *(f"{name}: {_values(v)}" for name, v in method.sections().items())]
        changes += [f"in `{at}`: {_values(change.params)}" for at, change in method.at.items() if change.params]
        if method.work_of:
            changes.append(f"as many local steps as {paper.methods[method.work_of].title}")
        told = "; ".join(change for change in changes if change)
        rows.append([method.title, f"[`{method.algorithm}`](../algorithms/{method.algorithm}.md)", told or "–"])
    opened = list(dict.fromkeys(f"{method.title}: {one}" for method in paper.methods.values() for one in method.open))
    parts = ["## Methods", table(["method", "algorithm", "parameters, where they are not the defaults"], rows)]
    return "\n\n".join([*parts, *([_listed("Open, and what was chosen", opened)] if opened else [])])


def _listed(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{title}:", "", *(f"* {line}" for line in lines)])
