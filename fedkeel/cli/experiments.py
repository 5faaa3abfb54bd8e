"""``fedkeel run``: one run or a sweep, each in a directory of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedkeel import api, build, config
from fedkeel.cli.main import print_json
from fedkeel.cli.screen import Life, console, identity, table
from fedkeel.runs.store import FILE, Store


def run_all(
    path: Path, settings: list[str], out: Path, resume: bool, data_dir: Path | None, quiet: bool, as_json: bool
) -> None:
    """Run every experiment that a file stands for, and end with a line for each."""
    experiments = config.read(path, settings)
    results = []
    for experiment in experiments:
        directory = out / experiment.label
        simulation = build.make_simulation(experiment, data_dir)
        done = _rounds_done(directory) if resume else 0
        if not quiet:
            console.print(f"[bold]{identity(simulation)}[/]")
        with Life(experiment.training.rounds, done, quiet) as life:
            run = api.run(
                experiment, directory, federation=simulation.federation, resume=resume, watch=life, data_dir=data_dir
            )
        results.append(_result(run))
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
    rows = [
        [r["run"], r["rounds"], f"{r['final']['accuracy']:.2%}", f"{r['best']['accuracy']:.2%}", r["directory"]]
        for r in results
    ]
    console.print(table(columns, rows))


def _rounds_done(directory: Path) -> int:
    if not (directory / FILE).exists():
        return 0
    store = Store.open(directory)
    try:
        return len(store.history().rounds)
    finally:
        store.close()


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
