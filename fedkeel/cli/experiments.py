"""``fedkeel run``: one run or a sweep, each in a directory of its own."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from fedkeel import api, build, config
from fedkeel.cli import output
from fedkeel.cli.main import complain, print_json
from fedkeel.cli.screen import Life, console, identity, say, table
from fedkeel.errors import FedkeelError, InputError
from fedkeel.runs.connection import FILE
from fedkeel.runs.fork import Fork
from fedkeel.runs.interrupt import StopRequest
from fedkeel.runs.store import holds_run, rounds_done


@dataclass(frozen=True)
class Options:
    """What the command line says beside the experiment itself."""

    out: Path
    resume: bool
    fork: str | None
    allow_plugins: bool
    data_dir: Path | None
    quiet: bool
    as_json: bool


def run_all(path: Path, settings: list[str], options: Options) -> None:
    """Run every experiment that a file stands for, and end with a line for each."""
    experiments = config.read(path, settings, options.allow_plugins)
    if options.resume:
        check_resumable(experiments, options.out)
    results: list[dict[str, Any]] = []
    with StopRequest() as stop:
        try:
            for experiment in experiments:
                results.append(_result(_run_one(experiment, options, stop)))
                if stop() and len(results) < len(experiments):
                    raise FedkeelError(f"stopped after {len(results)} of {len(experiments)} runs, all kept")
            _show(results, options.as_json)
            if sys.stdout is not None:
                sys.stdout.flush()
        except FedkeelError as error:
            if stop.signal is None:
                raise
            complain(f"{error}; go on with: {resume_command()}")
            raise typer.Exit(128 + stop.signal) from None
        except OSError as error:
            if not output.is_lost(error):
                raise
            advice = f"; all rounds so far are kept, go on with: {resume_command()}"
            raise typer.Exit(output.give_up(error, advice)) from None


def check_resumable(experiments: list[config.Experiment], out: Path) -> None:
    """Refuse to resume nothing beside other runs: another seed, algorithm or name would start anew in silence."""
    labels = [experiment.label for experiment in experiments]
    if any(holds_run(out / label) for label in labels) or not out.is_dir():
        return
    there = sorted(folder.name for folder in out.iterdir() if (folder / FILE).is_file())
    if there:
        shown = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
        raise InputError(
            f"there is nothing to resume: {out} holds no run {' or '.join(labels[:3])}, but {shown}; give the settings "
            "or the name of that run, or start a new one without --resume."
        )


def resume_command() -> str:
    """The command that goes on with what this one began."""
    words = sys.argv[1:]
    return shlex.join(["fedkeel", *words, *([] if "--resume" in words else ["--resume"])])


def _run_one(experiment: config.Experiment, options: Options, stop: StopRequest) -> api.Run:
    directory = options.out / experiment.label
    simulation = build.make_simulation(experiment, options.data_dir, allow_plugins=options.allow_plugins)
    done = rounds_done(directory) if options.resume else 0
    if not options.quiet:
        say(identity(simulation), style="bold")
    with Life(experiment.training.rounds, done, options.quiet) as life:
        return api.run(
            experiment,
            directory,
            federation=simulation.federation,
            resume=options.resume,
            fork=Fork.parse(options.fork) if options.fork else None,
            allow_plugins=options.allow_plugins,
            watch=life,
            stop=stop,
        )


def _show(results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    columns: list[str | tuple[str, str]] = [
        "run",
        ("rounds", "right"),
        ("final", "right"),
        ("best", "right"),
        "directory",
    ]
    rows = [[r["run"], r["rounds"], _share(r["final"]), _share(r["best"]), r["directory"]] for r in results]
    console.print(table(columns, rows))


def _share(measured: dict[str, Any] | None) -> str:
    """An accuracy; a run whose rounds were none of those to be evaluated has none."""
    return f"{measured['accuracy']:.2%}" if measured else "–"


def _result(run: api.Run) -> dict[str, Any]:
    last, best = run.history.final(), run.history.best()
    return {
        "run": run.label,
        "algorithm": run.simulation.algorithm.name,
        "seed": run.simulation.seed,
        "rounds": len(run.history.rounds),
        "final": asdict(last) if last else None,
        "best": asdict(best) if best else None,
        "bytes": run.history.bytes_to(len(run.history.rounds)),
        "seconds": run.history.seconds,
        "directory": str(run.directory),
    }
