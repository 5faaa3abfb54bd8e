"""The ``fedkeel`` command. Torch is imported only by the commands that compute."""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel.cli import network, output, paper, tuning
from fedkeel.cli.options import Csv, DataDir, Json, Out, Quiet, usable
from fedkeel.errors import FedkeelError, printable, shown
from fedkeel.notices import FedkeelWarning

app = typer.Typer(
    name="fedkeel",
    help="Federated learning on non-IID data: train, compare and check the algorithms that stop client drift.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(paper.app)
app.add_typer(tuning.app)
app.command(name="tune")(tuning.tune)
app.add_typer(network.app)
_show_warning = warnings.showwarning


def run() -> None:
    """Entry point: a user's mistake becomes one sentence and exit code 2, never a traceback."""
    warnings.showwarning = _warn
    warnings.simplefilter("always", FedkeelWarning)  # every run of a sweep has its own
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows few letters is no reason to fail
    try:
        code = app(standalone_mode=False, prog_name="fedkeel")
    except FedkeelError as error:
        complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        complain("stopped.")
        sys.exit(130)
    except UnicodeEncodeError as error:  # typer looks at a path before any of ours can refuse it
        complain(f"an argument must be text that can name a file, got {shown(error.object)}.")
        sys.exit(2)
    except OSError as error:
        if output.is_lost(error):
            sys.exit(output.give_up(error))
        # A folder that may not be entered, a name that is too long, a disk that is full.
        of_what = f" for {shown(str(error.filename))}" if error.filename else ""
        complain(f"the system refused a file operation{of_what}: {error.strerror or error}.")
        sys.exit(2)
    except Exception as error:
        # Typer's own errors, whatever its version calls their base, are those that know how to be shown.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
        else:
            complain(_as_ours(error.format_message(), getattr(error, "ctx", None)))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def complain(sentence: str) -> None:
    """Print an error, as every error is printed: on one line, and with nothing in it that a terminal would obey."""
    print(f"fedkeel: {printable(' '.join(sentence.splitlines()))}", file=sys.stderr)


def _as_ours(message: str, context: Any) -> str:
    """Typer's complaint in our style, with where to read on."""
    text = message.rstrip(".")
    text = text if len(text) <= 300 else f"{text[:299]}…"
    where = getattr(context, "command_path", "fedkeel")
    return f"{text[:1].lower()}{text[1:]}; see {where} --help."


def _warn(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Our own warnings are sentences for people; where in the source they arose does not matter."""
    if issubclass(category, FedkeelWarning):
        complain(f"warning: {message}")
    else:
        _show_warning(message, category, *place, **more)


def _version(wanted: bool) -> None:
    if wanted:
        from fedkeel import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on non-IID data."""


@app.command()
def demo(
    out: Out = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of every run at most; absent: 30 in common, each scene's own.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random draw.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Show the five papers on embedded real data, each in its own setting and all in one, in under two minutes."""
    from fedkeel.cli.demo import run_demo

    run_demo(out or Path("demo"), rounds, seed, quiet)


@app.command(name="run")
def run_experiment(
    experiment: Annotated[Path, typer.Argument(help="An experiment in TOML.", callback=usable)],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: training.lr=0.05 (may be repeated).")
    ] = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last whole round of an earlier start.")
    ] = False,
    fork: Annotated[
        str | None, typer.Option(help="Start from an old run's state: its directory, or DIRECTORY@ROUND.")
    ] = None,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Import algorithms named module:Class, also from this folder.")
    ] = False,
    track: Annotated[
        list[str] | None, typer.Option(help="Also write for tensorboard, mlflow or wandb (may be repeated).")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Compute clients on the Ray cluster at host:port, or auto (run.executor = ray).")
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Runs of a sweep beside each other on a Ray cluster: --address, or here.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, or all runs of a sweep; each gets a directory of its own."""
    from fedkeel.cli.experiments import Options, run_all

    if allow_plugins:
        _find_modules_here()
    place, tracked = out or Path("runs"), tuple(dict.fromkeys(track or []))
    options = Options(place, resume, fork, allow_plugins, data_dir, quiet or as_json, as_json, tracked)
    asked = list(settings or [])
    if spread:
        from fedkeel.cli.spread import run_spread

        run_spread(experiment, asked, options, address)
        return
    if address is not None:
        asked = ["run.executor=ray", *asked, f"run.address={json.dumps(address)}"]
    run_all(experiment, asked, options)


@app.command()
def init(
    file: Annotated[
        Path | None, typer.Argument(help="The file to write; absent: experiment.toml.", callback=usable)
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="With the settings of a paper, as `fedkeel algorithms NAME` lists them.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Another algorithm of that paper.")] = None,
) -> None:
    """Write an experiment with every key and its meaning, ready to run."""
    from fedkeel.cli.init import write_experiment

    write_experiment(file, paper, algorithm)


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm, in detail.")] = None, as_json: Json = False
) -> None:
    """List the algorithms, or show one with its parameters."""
    from fedkeel.cli.listings import show_algorithm, show_algorithms

    if name is None:
        show_algorithms(as_json)
    else:
        if ":" in name:
            _find_modules_here()
        show_algorithm(name, as_json)


@app.command()
def data(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets, and whether their files are there."""
    from fedkeel.cli.listings import show_data

    show_data(data_dir, as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models with their numbers of parameters."""
    from fedkeel.cli.listings import show_models

    show_models(as_json)


@app.command()
def partition(
    name: Annotated[str, typer.Argument(help="A data set of `fedkeel data`.")] = "mnist5k",
    rule: Annotated[str, typer.Option(help="How samples are dealt; `--rules` lists them.")] = "dirichlet",
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1)] = 50,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the rule: alpha=0.3 (may be repeated).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random draw.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the picture: .png, .svg, .pdf or .html.", callback=usable)
    ] = None,
    data_dir: DataDir = None,
    subset_ok: Annotated[bool, typer.Option(help="Accept an incomplete data set.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and their parameters.")] = False,
    as_json: Json = False,
) -> None:
    """Preview how a data set is dealt to clients: a table and the client × class picture."""
    from fedkeel.cli.listings import show_partition, show_rules

    if rules:
        show_rules(as_json)
    else:
        show_partition(name, rule, clients, settings or [], seed, out, data_dir, subset_ok, as_json)


@app.command()
def check(
    algorithm: Annotated[str, typer.Argument(help="A registered name, or your own as module:Class.")],
    as_json: Json = False,
) -> None:
    """Run the whole contract of an algorithm on it; exit code 1 if a check fails."""
    from fedkeel.cli.listings import show_check

    if ":" in algorithm:
        _find_modules_here()
    if not show_check(algorithm, as_json):
        raise typer.Exit(1)


@app.command()
def verify(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs; they may be going on.", callback=usable)],
    as_json: Json = False,
) -> None:
    """Compare everything in runs with its digests; exit code 1 if something is damaged."""
    from fedkeel.cli.verify import show_verified

    if not show_verified(runs, as_json):
        raise typer.Exit(1)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.", callback=usable)] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="name, algorithm, data, seed, rounds, state, last, late, best, bytes or time.")
    ] = "name",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List all runs in a folder and below, also while they go on; `fedkeel verify` looks closer."""
    from fedkeel.cli.runs import show_runs

    show_runs(folder, sort, as_json, as_csv)


@app.command()
def ui(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where runs are; absent: runs.", callback=usable)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any free one.", min=0, max=65535)] = 8423,
    token: Annotated[
        str | None,
        typer.Option(envvar="FEDKEEL_UI_TOKEN", help="What a browser must know; absent: made where one is needed."),
    ] = None,
    data_dir: DataDir = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nothing can be started or stopped.")] = False,
) -> None:
    """Show runs in a browser while they train: curves, clients, comparison; start and stop them there."""
    from fedkeel.cli.ui import run_ui

    run_ui(folder, host, port, token, data_dir, read_only)


@app.command(name="compare")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.", callback=usable)],
    target: Annotated[float, typer.Option(help="Test accuracy to be reached, in [0, 1].", min=0, max=1)] = 0.9,
    base: Annotated[
        str | None, typer.Option(help="What speed-ups are over: an algorithm or a run; absent: the first.")
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare runs: rounds to a target, speed-up, accuracies; several seeds pair by pair, with an interval."""
    from fedkeel.cli.compare import show_comparison

    show_comparison(runs, target, base, as_json, as_csv)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The directory of a run; it may be going on.", callback=usable)],
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets and programs; without a choice.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="With the types of columns; needs pyarrow.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="A Markdown table, numbers to six digits.")] = False,
    clients: Annotated[bool, typer.Option("--clients", help="A row for each client of each round.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; absent: standard output.", callback=usable)
    ] = None,
) -> None:
    """Write what a run measured as a table: a row for each round, or with --clients for each client of each round."""
    from fedkeel.cli.export import export_run

    chosen = [name for name, wanted in (("csv", as_csv), ("parquet", as_parquet), ("md", as_md)) if wanted]
    export_run(run, chosen, clients, out)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs, or folders of them.", callback=usable)],
    kind: Annotated[
        str,
        typer.Option(
            help="accuracy, loss, rounds, bytes, clock, time, drift, drift-layers, values, fairness, conformal or "
            "partition."
        ),
    ] = "accuracy",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file: .png, .svg, .pdf or .html; absent: KIND.png.", callback=usable),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Test accuracy to be reached, in [0, 1].", min=0, max=1)] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="Of kind values: what to draw, such as tau (may be repeated).")
    ] = None,
    band: Annotated[str | None, typer.Option(help="What seeds spread over: range (smallest to largest) or sd.")] = None,
    method: Annotated[str | None, typer.Option(help="Of kind conformal: lac, aps or raps.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Draw runs: learning curves, rounds, bytes, drift, …; seeds of the same settings are one line with a band."""
    from fedkeel.cli.plot import draw_runs

    draw_runs(runs, kind, out, data_dir, target=target, names=name or [], band=band, method=method)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs, or folders of them.", callback=usable)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, .html.", callback=usable)] = Path("report.html"),
    target: Annotated[float, typer.Option(help="Test accuracy to be reached, in [0, 1].", min=0, max=1)] = 0.9,
    title: Annotated[str, typer.Option(help="What stands above it all.")] = "Report of runs",
    data_dir: DataDir = None,
) -> None:
    """Write a report of runs: tables, pictures, settings and how to repeat them, in one file that needs no network."""
    from fedkeel.cli.plot import write_report

    write_report(runs, out, target, title, data_dir)


@app.command()
def conformal(
    run: Annotated[Path, typer.Argument(help="The directory of a run; it may be going on.", callback=usable)],
    method: Annotated[str, typer.Option(help="lac, aps or raps.")] = "raps",
    alpha: Annotated[float, typer.Option(help="How often a set may miss the right label.")] = 0.1,
    by: Annotated[str, typer.Option(help="Whose scores set the threshold: pooled, federated or client.")] = "pooled",
    seed: Annotated[int, typer.Option(help="Decides the split and what is drawn.", min=0)] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Prediction sets of a run's model: how often they hold the right label, and how large they are."""
    from fedkeel.cli.conformal import show_conformal

    show_conformal(run, method, alpha, by, seed, data_dir, as_json)


@app.command()
def measure(
    run: Annotated[Path, typer.Argument(help="The directory of a run; it may be going on.", callback=usable)],
    target: Annotated[
        float | None, typer.Option(help="Rounds and bytes to this test accuracy, in [0, 1].", min=0, max=1)
    ] = None,
    fine_tune: Annotated[
        int, typer.Option(help="Epochs of fine-tuning at every client; 0: none.", metavar="EPOCHS", min=0)
    ] = 0,
    local_only: Annotated[
        bool, typer.Option("--local-only", help="Also train every client alone; takes as long as the run did.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """What a run comes to: accuracies, bytes, time, drift, and what its model is worth to each client."""
    from fedkeel.cli.measure import show_measures

    show_measures(run, target, fine_tune, local_only, data_dir, as_json)


@app.command()
def bench(
    work: Annotated[
        str, typer.Option(help="W1 logistic regression, W2 two hidden layers, W3 LeNet, W4 a wider CNN.")
    ] = "W2",
    algorithm: Annotated[str, typer.Option(help="A name of `fedkeel algorithms`.")] = "scaffold",
    executor: Annotated[str | None, typer.Option(help="How clients are computed, as in run.executor.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to time; absent: about ten seconds.", min=1)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; absent: one per core.", min=1)] = None,
    durable: Annotated[bool, typer.Option("--durable", help="Also with every round committed to disk.")] = False,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another algorithm, timed against FedAvg (may be repeated).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time rounds of training beside the same steps in plain PyTorch, taking turns on this machine."""
    from fedkeel.cli.bench import run_bench

    run_bench(work, algorithm, executor, rounds, workers, durable, compare or [], as_json)


@app.command()
def cost(
    experiment: Annotated[Path, typer.Argument(help="An experiment file; of a sweep, its first run.", callback=usable)],
    clients: Annotated[
        str | None, typer.Option(help="Registered clients, such as 1e7; absent: as many as the experiment has.")
    ] = None,
    per_round: Annotated[
        str | None, typer.Option(help="Clients called in a round; absent: as many as the experiment calls.")
    ] = None,
    rounds: Annotated[str | None, typer.Option(help="Rounds; absent: those of the experiment.")] = None,
    memory: Annotated[str | None, typer.Option(help="Of one machine, such as 64GB; absent: this one's.")] = None,
    cores: Annotated[
        int | None, typer.Option("--machines-cores", help="Of one machine; absent: this one's.", min=1)
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Others in a table: scaffold,mifa or all; absent: the experiment's own.")
    ] = None,
    no_time: Annotated[
        bool, typer.Option("--no-time", help="Bytes and limits only: nothing is timed, which takes seconds.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: training.lr=0.05 (may be repeated).")
    ] = None,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Import algorithms named module:Class, also from this folder.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """What an experiment would cost with other numbers of clients: memory, traffic, time, and what would stop it."""
    from fedkeel.cli.cost import Asked, show_cost

    if allow_plugins:
        _find_modules_here()
    asked = Asked(clients, per_round, rounds, memory, cores, algorithms, not no_time)
    show_cost(experiment, settings or [], asked, data_dir, allow_plugins, as_json)


def _find_modules_here() -> None:
    """Let module:Class name a file in the current folder, for commands whose user asked for such code.

    Last in the path, so that a file there cannot take the place of an installed package.
    """
    sys.path.append("")


def print_json(value: Any) -> None:
    """JSON on standard output; whatever a terminal would obey is escaped as JSON does it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def without_nan(value: Any) -> Any:
    """A value for JSON, which knows no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
