"""The commands ``fedkeel paper …``. What computes is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli import paper_verdict
from fedkeel.cli.options import DataDir, Json, Quiet, usable

OUT, RESULTS = Path("paper-runs"), Path("results")
app = typer.Typer(
    name="paper",
    help="The tables and figures of the papers: list, run, judge, draw and publish them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Names = Annotated[list[str], typer.Argument(help="A table or figure (feddc.table1), or all of a paper (feddc).")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="The working folder.", callback=usable)]


@app.command(name="list")
def list_exhibits(out: Folder = OUT, as_json: Json = False) -> None:
    """List every table and figure: what it takes to run it, and what is there already."""
    from fedkeel.cli.paper_run import show_list

    show_list(out, RESULTS, as_json)


@app.command(name="run")
def run_exhibits(
    names: Names,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this column or panel, by its id (may be repeated).")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="Only these methods, e.g. fedavg,feddc.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds), reduced (minutes) or full (as the paper).")] = "full",
    seeds: Annotated[int | None, typer.Option(help="How many seeds; absent: as many as are published.", min=1)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="No more than so many for now; leave it out later to go on.", min=1)
    ] = None,
    out: Folder = OUT,
    workers: Annotated[int | None, typer.Option(help="Runs at once; absent: one per core.", min=1)] = None,
    address: Annotated[
        str | None, typer.Option(help="On the machines of a Ray cluster: its host:port, or auto; all must see --out.")
    ] = None,
    published: Annotated[bool, typer.Option("--published", help="Take published records for finished, too.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Run a table or figure, or go on with it: what is finished is used again."""
    from fedkeel.cli.paper_run import Choice, run_chosen

    choice = Choice(names, only or [], algorithms, scale, seeds, quiet, published, rounds)
    run_chosen(choice, out, RESULTS, workers, data_dir, address)


@app.command(name="publish")
def publish_records(
    source: Annotated[Path, typer.Option("--from", help="A working folder.", callback=usable)] = OUT,
    target: Annotated[Path, typer.Option("--to", help="Where published records lie.", callback=usable)] = RESULTS,
    paper: Annotated[list[str] | None, typer.Option(help="Only of this paper (may be repeated).")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also in place of records with more rounds or another configuration.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy records to the published ones; none is replaced by one that did not come further."""
    from fedkeel.cli.paper_run import publish_chosen

    publish_chosen(source, target, paper or [], replace, as_json)


app.command(name="verdict")(paper_verdict.verdict)
app.command(name="figure")(paper_verdict.figure)
