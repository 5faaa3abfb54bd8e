"""``fedkeel run``: one run or a sweep, each in a directory of its own."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from fedkeel import api, changes, config, sweeps
from fedkeel.cli import output
from fedkeel.cli.life import Clock, Life, identity
from fedkeel.cli.main import complain, print_json, without_nan
from fedkeel.cli.screen import a_few, headline, say, show_table
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DivergedError, FedkeelError, InputError
from fedkeel.runs.connection import FILE
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History
from fedkeel.runs.interrupt import StopRequest
from fedkeel.runs.store import Store, holds_run, rounds_done
from fedkeel.trackers import tracker_of

if TYPE_CHECKING:
    from fedkeel.network.run import NetworkRun


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
    track: tuple[str, ...] = ()
    """Names of trackers."""


Ran: TypeAlias = "api.Run | NetworkRun"
RunOne: TypeAlias = "Callable[[config.Planned, StopRequest, list[str], Life], Ran]"
"""Runs one experiment; it is told who may stop it, what stands before its headline, and who is to be told of rounds."""


def run_all(path: Path, settings: list[str], options: Options, run_one: RunOne | None = None) -> None:
    """Run every experiment that a file stands for, and end with a line for each.

    A run of a sweep that diverges is reported, and the others go on; the exit code is then 1. ``run_one`` is by default
    a simulation.
    """
    run_one = run_one or _simulated(options)
    runs = planned_runs(path, settings, options)
    for name in options.track:  # one that cannot be had should be known before hours of rounds
        tracker_of(name, options.out / runs[0].experiment.label)
    clock = Clock(sum(_rounds_to_go(run.experiment, options) for run in runs))
    results: list[dict[str, Any]] = []
    with StopRequest() as stop:
        try:
            for number, run in enumerate(runs, start=1):
                title = [f"run {number} of {len(runs)}"] if len(runs) > 1 else []
                try:
                    results.append(_result(_run_one(run, options, stop, title, clock, run_one), run.swept))
                except DivergedError as error:
                    if len(runs) == 1:
                        raise
                    complain(f"{run.experiment.label}: {error}")
                    results.append(stored_result(run, options.out / run.experiment.label, str(error)))
                if stop() and len(results) < len(runs):
                    raise FedkeelError(f"stopped after {len(results)} of {len(runs)} runs, all kept")
            show_results(results, options)
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
    diverged = sum("error" in result for result in results)
    if diverged:
        complain(f"{diverged} of {len(runs)} runs diverged; their rounds before that are kept.")
        raise typer.Exit(1)


def planned_runs(path: Path, settings: list[str], options: Options) -> list[config.Planned]:
    """The runs that a file stands for, as they are to be started or gone on with."""
    runs = config.plan(path, settings, options.allow_plugins)
    if options.resume:
        runs = [under_its_earlier_name(run, options.out) for run in runs]
        check_resumable([run.experiment for run in runs], options.out)
    else:
        check_new([run.experiment for run in runs], options.out)
    return runs


def under_its_earlier_name(run: config.Planned, out: Path) -> config.Planned:
    """The run under the name that an earlier version gave its folder, where there is such a run with its settings.

    Runs of a sweep that its names did not tell apart were numbered: ``fedavg-mnist5k-seed0-3``.
    """
    if not run.earlier or holds_run(out / run.experiment.label) or not out.is_dir():
        return run
    beginning = f"{run.earlier}-"
    numbered = (f for f in out.iterdir() if f.name.startswith(beginning) and f.name[len(beginning) :].isdecimal())
    for folder in sorted(numbered, key=lambda folder: int(folder.name[len(beginning) :])):
        if holds_run(folder) and _is_of(folder, run.experiment):
            return replace(run, experiment=run.experiment.model_copy(update={"name": folder.name}))
    return run


def _is_of(folder: Path, experiment: config.Experiment) -> bool:
    with closing(Store.reading(folder)) as store:
        found = changes.changes(changes.stored(store.configuration(), folder), experiment)
    return all(change.field in ("name", "training.rounds") for change in found)


def _rounds_to_go(experiment: config.Experiment, options: Options) -> int:
    done = rounds_done(options.out / experiment.label) if options.resume else 0
    return max(0, experiment.training.rounds - done)


def check_new(experiments: list[config.Experiment], out: Path) -> None:
    """Refuse a sweep of which some runs are there already, before it has spent time on the others."""
    taken = [str(out / experiment.label) for experiment in experiments if holds_run(out / experiment.label)]
    if taken:
        several = f"{len(taken)} of {len(experiments)} runs are there already ({a_few(taken)}); continue them"
        one = f"{taken[0]} already holds a run; continue it"
        raise InputError(
            f"{one if len(taken) == 1 else several} with --resume, or choose another directory with --out, or another "
            "name with --set name=NAME."
        )


def check_resumable(experiments: list[config.Experiment], out: Path) -> None:
    """Refuse to resume nothing beside other runs: another seed, algorithm or name would start anew in silence."""
    labels = [experiment.label for experiment in experiments]
    if any(holds_run(out / label) for label in labels) or not out.is_dir():
        return
    there = sorted(folder.name for folder in out.iterdir() if (folder / FILE).is_file())
    if there:
        raise InputError(
            f"there is nothing to resume: {out} holds no run {' or '.join(labels[:3])}, but {a_few(there, 5)}; give "
            "the settings or the name of that run, or start a new one without --resume."
        )


def resume_command() -> str:
    """The command that goes on with what this one began."""
    words = sys.argv[1:]
    return shlex.join(["fedkeel", *words, *([] if "--resume" in words else ["--resume"])])


def _run_one(
    run: config.Planned, options: Options, stop: StopRequest, title: list[str], clock: Clock, run_one: RunOne
) -> Ran:
    experiment = run.experiment
    directory = options.out / experiment.label
    done = rounds_done(directory) if options.resume else 0
    ran = run_one(run, stop, title, Life(experiment.training.rounds, done, options.quiet, clock if title else None))
    if ran.ended == "stopped":
        raise FedkeelError(
            f"stopped after round {ran.state.t} of {experiment.training.rounds}, which is kept in {directory}"
        )
    return ran


def _simulated(options: Options) -> RunOne:
    """Runs an experiment with all its clients in this process and its workers."""

    def run_one(run: config.Planned, stop: StopRequest, title: list[str], life: Life) -> api.Run:
        directory = options.out / run.experiment.label
        with ExitStack() as screen:

            def built(simulation: Simulation) -> None:
                if not options.quiet:
                    headline([*title, *identity(simulation), *told_of(run)])
                screen.enter_context(life)

            return api.run(
                run.experiment,
                directory,
                data_dir=options.data_dir,
                resume=options.resume,
                fork=Fork.parse(options.fork) if options.fork else None,
                allow_plugins=options.allow_plugins,
                watch=[life, *(tracker_of(name, directory) for name in options.track)],
                stop=stop,
                built=built,
            )

    return run_one


def told_of(run: config.Planned) -> list[str]:
    """The seed, and what a sweep makes of the run, for its headline."""
    names = sweeps.short_names(list(run.swept))
    fields = [field for field in run.swept if field not in ("algorithm.name", "seed")]
    return [f"seed {run.experiment.seed}", *(f"{names[field]} {sweeps.said(run.swept[field])}" for field in fields)]


def show_results(results: list[dict[str, Any]], options: Options) -> None:
    """A line for each run, and means over seeds."""
    results = _with_seeds(results)
    if options.as_json:
        print_json(without_nan(results))
        return
    swept = sweeps.short_names(list(results[0]["swept"]))
    judged = any(_is_judged(r["final"]) for r in results) or not any(r["final"] for r in results)
    with_loss = any(r["final"] and not _is_judged(r["final"]) for r in results)
    measured: list[str | tuple[str, str]] = []
    measured += [("last round", "right"), ("last 10 %", "right"), ("best", "right")] if judged else []
    measured += [("last loss", "right")] if with_loss else []
    metrics = list(dict.fromkeys(name for r in results if r["final"] for name in r["final"]["metrics"]))
    rows = [
        [
            r["rounds"],
            *(["diverged" if "error" in r else _share(r["final"]), _number(r["late"]), _share(r["best"])] * judged),
            *([_loss(r)] * with_loss),
            *(_metric(r["final"], name) for name in metrics),
            r["directory"],
        ]
        for r in results
    ]
    before = [_values(r, list(swept)) if swept else [r["run"]] for r in results]
    columns: list[str | tuple[str, str]] = [*(swept.values() or ["run"]), ("rounds", "right"), *measured]
    columns += [*((f"final {name}", "right") for name in metrics), "directory"]
    show_table(columns, [[*first, *row] for first, row in zip(before, rows, strict=True)])
    groups = sweeps.over_seeds([r["swept"] for r in results])
    if groups:
        others = {field: name for field, name in swept.items() if field != "seed"}
        firsts = [results[group[0]] for group in groups]
        say("\nMean ± standard deviation over seeds", style="bold")
        show_table(
            [*others.values(), ("seeds", "right"), *measured],
            [
                [*_values(first, list(others)), _counted(first, group), *_spreads(first, judged, with_loss)]
                for first, group in zip(firsts, groups, strict=True)
            ],
        )


def _values(result: dict[str, Any], fields: Sequence[str]) -> list[str]:
    return [sweeps.said(result["swept"][field]) for field in fields]


def _counted(result: dict[str, Any], group: list[int]) -> str:
    """How many seeds a mean is over, and of how many, where some runs have nothing to give."""
    found = result["over_seeds"]
    over = found["final"] or found["loss"]
    count = over["count"] if over else 0
    return str(count) if count == len(group) else f"{count} of {len(group)}"


def _spreads(result: dict[str, Any], judged: bool, with_loss: bool) -> list[str]:
    found = {kind: over and sweeps.Spread(**over) for kind, over in result["over_seeds"].items()}
    accuracies = [str(found[kind] or "–") for kind in ("final", "late", "best")]
    loss = found["loss"]
    of_loss = "–" if loss is None else f"{loss.mean:.4g}" + ("" if loss.count < 2 else f" ± {loss.std:.2g}")
    return accuracies * judged + [of_loss] * with_loss


def _with_seeds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every result with how all runs did that differ from it in the seed alone; diverged ones do not count."""
    for group in sweeps.over_seeds([r["swept"] for r in results]):
        whole = [results[i] for i in group if "error" not in results[i]]
        over = {
            kind: sweeps.spread([r[kind]["accuracy"] for r in whole if _is_judged(r[kind])])
            for kind in ("final", "best")
        }
        over["loss"] = sweeps.spread([r["final"]["loss"] for r in whole if r["final"]])
        over["late"] = sweeps.spread([r["late"] for r in whole if r["late"] is not None])
        for i in group:
            results[i]["over_seeds"] = {kind: found and asdict(found) for kind, found in over.items()}
    return results


def _share(measured: dict[str, Any] | None) -> str:
    """An accuracy; there is none where no round was evaluated, or no answer is right or wrong."""
    return f"{measured['accuracy']:.2%}" if measured and _is_judged(measured) else "–"


def _is_judged(measured: dict[str, Any] | None) -> bool:
    """Whether there was an accuracy to measure: under some losses no answer is right or wrong."""
    return measured is not None and not math.isnan(measured["accuracy"])


def _loss(result: dict[str, Any]) -> str:
    return "diverged" if "error" in result else f"{result['final']['loss']:.4g}" if result["final"] else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _metric(measured: dict[str, Any] | None, name: str) -> str:
    found = measured["metrics"].get(name) if measured else None
    return "–" if found is None else f"{found:.4g}"


def _result(run: Ran, swept: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": run.label,
        "algorithm": run.simulation.algorithm.name,
        "seed": run.simulation.seed,
        "swept": swept,
        "executor": run.simulation.executor.describe(),
        **_measured(run.history),
        "directory": str(run.directory),
    }


def stored_result(run: config.Planned, directory: Path, error: str | None = None) -> dict[str, Any]:
    """What a run has reached by what lies in its directory; ``error`` is why it came no further."""
    history = History()
    if holds_run(directory):
        with closing(Store.reading(directory)) as store:
            history = store.history()
    return {
        "run": run.experiment.label,
        "algorithm": run.experiment.algorithm.name,
        "seed": run.experiment.seed,
        "swept": run.swept,
        **({"executor": run.experiment.run.executor} if error is None else {"error": error}),
        **_measured(history),
        "directory": str(directory),
    }


def _measured(history: History) -> dict[str, Any]:
    last, best, late = history.final(), history.best(), history.reported().late
    return {
        "rounds": len(history.rounds),
        "final": asdict(last) if last else None,
        "late": None if math.isnan(late) else late,
        "best": asdict(best) if best else None,
        "bytes": history.bytes_to(len(history.rounds)),
        "seconds": history.seconds,
    }
