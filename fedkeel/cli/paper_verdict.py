"""``fedkeel paper verdict`` and ``fedkeel paper figure``: what records say about a table or figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli.options import Json, usable

if TYPE_CHECKING:
    from fedkeel.papers.records import Records
    from fedkeel.papers.verdicts import ExhibitVerdict, Judged

From = Annotated[
    Path | None,
    typer.Option("--from", help="A folder of records; absent: paper-runs, then results.", callback=usable),
]
OneScale = Annotated[
    str | None, typer.Option("--scale", help="Only records of this scale; absent: full, else reduced, by cell.")
]


def verdict(
    names: Annotated[list[str], typer.Argument(help="A table or figure (feddc.table1), or all of a paper (feddc).")],
    source: From = None,
    scale: OneScale = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the tables of columns that nobody has run.")] = False,
) -> None:
    """Compare a table or figure with what was published, number by number, and say why."""
    if as_json and as_markdown:
        raise typer.BadParameter("--json and --md exclude each other")
    from fedkeel.cli.main import print_json
    from fedkeel.cli.screen import say
    from fedkeel.papers import api, markdown
    from fedkeel.papers.verdicts import total

    records = api.records_in(source)
    found = [api.verdict(one.id, records=records, scale=scale) for one in api.chosen(names)]
    if as_json:
        print_json([one.as_json() for one in found])
    elif as_markdown:
        print("\n\n".join(markdown.exhibit_section(one) for one in found))
    else:
        for one in found:
            _show(one, everything)
            if scale is None and (hint := _first_step(one, records)):
                say(hint, style="dim", soft_wrap=True)
        if len(found) > 1:
            say("\nIn all: " + ", ".join(f"{count} {kind}" for kind, count in total(found).items()), style="bold")


def figure(
    name: Annotated[str, typer.Argument(help="A figure, as `fedkeel paper list` names it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .png, .svg, .pdf or .html file.", callback=usable)],
    source: From = None,
    scale: OneScale = None,
) -> None:
    """Draw a figure of a paper from records, laid out as in print."""
    from fedkeel.cli.screen import say
    from fedkeel.papers import api
    from fedkeel.theme import save_chart

    say(f"Picture: {save_chart(api.figure(name, records=source, scale=scale), out)}", soft_wrap=True)


def _show(found: ExhibitVerdict, everything: bool) -> None:
    from fedkeel.cli.screen import say, show_table, wrapped
    from fedkeel.papers import markdown

    exhibit = found.exhibit
    say("")
    say((f"{exhibit.id}  ", "bold"), f"{exhibit.where}: {exhibit.title}")
    # What is run would be lost among what is not; where nothing is, the printed numbers are all that there is to see.
    ran = [column for column in found.columns if any(cell.ours is not None for cell in column.cells)]
    shown = found.columns if everything or not ran else ran
    for column in shown:
        say(f"\n{column.title}: {column.measure}", style="bold")
        _show_column(column)
        if said := markdown.outcome(column):
            say(said, style="dim")
    if len(shown) < len(found.columns):
        say("")
        for reason, titles in _left_out(found.columns, shown).items():
            say(wrapped(f"Not run: {'; '.join(titles)}. {reason}", ""))
        say("--all shows their printed numbers.", style="dim")
    if found.claims:
        say("")
        show_table(["claim", "here", "because"], [[c.claim.says, c.kind, c.because] for c in found.claims])
    if found.cells:
        say(f"\n{markdown.summary(found)}")
    elif not found.claims:
        say(exhibit.shows)


def _first_step(found: ExhibitVerdict, records: Records) -> str:
    """What to type next where nothing is there to be judged; nothing where something is."""
    from fedkeel.papers import api
    from fedkeel.papers.format import papers

    if not found.cells or any(cell.ours is not None for cell in found.cells):
        return ""
    exhibit = found.exhibit
    if any(cell.ours is not None for cell in api.verdict(exhibit.id, records=records, scale="smoke").cells):
        return "There are smoke runs, from which nothing can be judged: --scale smoke shows them."
    settings = papers()[exhibit.paper].settings
    for part in exhibit.parts:
        if not any(settings[line.setting].needs for line in part.lines):
            return f"To begin with a part of it: fedkeel paper run {exhibit.id} --only {part.id}"
    return ""


def _left_out(columns: Sequence[Judged], shown: Sequence[Judged]) -> dict[str, list[str]]:
    """The titles of columns that are not shown, by why there is nothing."""
    found: dict[str, list[str]] = {}
    for column in columns:
        if column not in shown:
            titles = found.setdefault(column.cells[0].says, [])
            titles += [column.title] if column.title not in titles else []
    return found


def _show_column(column: Judged) -> None:
    from fedkeel.cli.screen import show_table
    from fedkeel.papers.markdown import column_rows

    head, rows = column_rows(column)
    words = ("method", "verdict", "because")
    show_table([name if name in words else (name, "right") for name in head], rows)
