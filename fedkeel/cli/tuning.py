"""The commands ``fedkeel tune`` and ``fedkeel leaderboard …``. What computes is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.options import DataDir, Json, Quiet, usable

TUNING, LEADERBOARD = Path("tuning"), Path("leaderboard-runs")
RESULTS = Path("results") / "leaderboard"
app = typer.Typer(
    name="leaderboard",
    help="Every algorithm tuned with the same budget, then compared on fresh seeds: run, show and publish.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Algorithms = Annotated[str | None, typer.Option(help="Only these, e.g. fedavg,feddc.")]
Workers = Annotated[int | None, typer.Option(help="Runs at once; absent: one per core.", min=1)]
Settings = Annotated[list[str] | None, typer.Argument(help="Settings of the leaderboard; absent: all.")]


def tune(
    file: Annotated[Path, typer.Argument(help="An experiment, as for `fedkeel run`.", callback=usable)],
    algorithms: Algorithms = None,
    trials: Annotated[int, typer.Option(help="Trials of each algorithm.", min=1)] = 20,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a trial; absent: the experiment's.", min=1)] = None,
    validation: Annotated[
        float, typer.Option(help="Share of the training samples to judge by, unless the file holds some out.")
    ] = 0.1,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A field, as for `fedkeel run`.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The working folder.", callback=usable)] = TUNING,
    workers: Workers = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune algorithms on samples held out of the training data, each with the same number of trials; or go on."""
    from fedkeel.cli.tuning_run import Way, tune_file

    tune_file(file, algorithms, trials, rounds, validation, settings or [], Way(out, workers, data_dir, quiet), as_json)


@app.command(name="run")
def run_setting(
    setting: Annotated[str, typer.Argument(help="A setting, as `fedkeel leaderboard show` lists them.")],
    algorithms: Algorithms = None,
    trials: Annotated[int | None, typer.Option(help="Trials of each; absent: the setting's.", min=1)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the runs after tuning; trials get their share of them.", min=1)
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each after tuning.", min=1)] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The working folder.", callback=usable)] = LEADERBOARD,
    workers: Workers = None,
    published: Annotated[
        bool, typer.Option("--published", help="Take algorithms that are published for finished, too.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Tune and run a setting, or go on with it: what is finished is used again."""
    from fedkeel.cli.tuning_run import Way, run_chosen

    way = Way(out, workers, data_dir, quiet, RESULTS if published else None)
    run_chosen(setting, algorithms, (trials, rounds, seeds), way, RESULTS)


@app.command(name="show")
def show_settings(
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The working folder.", callback=usable)] = LEADERBOARD,
    plot: Annotated[
        Path | None, typer.Option(help="Draw mean ranks and their critical difference to this file.", callback=usable)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what has been run, in the working folder or published; and what has not."""
    from fedkeel.cli.tuning_run import show_boards

    show_boards(settings or [], [out, RESULTS], plot, as_json)


@app.command(name="publish")
def publish_records(
    settings: Settings = None,
    source: Annotated[Path, typer.Option("--from", help="A working folder.", callback=usable)] = LEADERBOARD,
    target: Annotated[Path, typer.Option("--to", help="Where published records lie.", callback=usable)] = RESULTS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also in place of other published records of an algorithm.")
    ] = False,
) -> None:
    """Copy the records of finished algorithms to the published ones."""
    from fedkeel.cli.tuning_run import publish_chosen

    publish_chosen(settings or [], source, target, replace)
