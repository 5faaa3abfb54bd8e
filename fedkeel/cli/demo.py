"""The demo: several algorithms on the embedded MNIST-5k, a table and a picture at the end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from fedkeel import api, build, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli.screen import Life, comparison_table, console, headline, identity, say
from fedkeel.data import save_chart
from fedkeel.errors import InputError
from fedkeel.report.comparison import compare
from fedkeel.report.curves import curves_chart
from fedkeel.runs import directory as run_directory
from fedkeel.runs.history import History

TARGET = 0.90
SHOWN = ("fedavg", "scaffold", "fedgvrgm", "fedveca", "gradma", "feddc", "fedpmvr")
MARK = "fedkeel-demo"


def settings(rounds: int, seed: int) -> dict[str, Any]:
    """The demo's experiment, as a TOML file would hold it."""
    return {
        "seed": seed,
        "data": {"name": "mnist5k"},
        "partition": {"rule": "dirichlet", "clients": 50, "alpha": 0.3},
        "model": {"name": "2nn"},
        "run": {"executor": "pool"},
        "training": {
            "rounds": rounds,
            "participation": 0.2,
            "epochs": 5,
            "batch_size": 20,
            "lr": 0.1,
            "lr_decay": 0.998,
            "weight_decay": 1e-3,
            "clip": 10.0,
        },
        "algorithms": {"feddc": {"alpha": 0.1}, "fedgvrgm": {"mu": 0.01}},
        "sweep": {"algorithm": list(SHOWN)},
    }


def run_demo(out: Path, rounds: int, seed: int, quiet: bool) -> None:
    """Run, compare, draw; everything lands in ``out``, which an earlier demo may have filled."""
    began = time.perf_counter()
    _make_room(out)
    experiments = config.expand(settings(rounds, seed), [])
    federation = build.make_federation(experiments[0])
    histories: dict[str, History] = {}
    if not quiet:
        say(
            ("fedkeel", "bold"),
            f" trains one model over {federation.N} clients with {federation.sizes[0]} handwritten "
            "digits each, unevenly mixed.",
        )
    for experiment in experiments:
        title = ALGORITHMS[experiment.algorithm.name].title
        life = Life(rounds, quiet=quiet)
        if not quiet:
            say("")
            headline(identity(build.make_simulation(experiment, federation=federation)))
        with life:
            run = api.run(experiment, out / experiment.algorithm.name, watch=life)
        histories[title] = run.history
    picture = _draw(histories, out, federation.N, rounds, seed)
    console.print()
    console.print(comparison_table(compare(histories, "FedAvg", TARGET), "FedAvg", TARGET))
    say(f"\nPicture: {picture}   Runs: {out}/   Time: {time.perf_counter() - began:.0f} s")
    say(
        "Next: fedkeel algorithms feddc · fedkeel partition mnist5k --out clients.png · "
        "fedkeel run examples/mnist5k.toml"
    )


def _make_room(out: Path) -> None:
    """An empty folder with the demo's mark, which comes first and never goes: a demo may be stopped at any instant."""
    run_directory.make(out)
    try:
        found = [path for path in out.iterdir() if path.name != MARK]
        if found and not (out / MARK).is_file():
            raise InputError(f"{out} holds files that are not a demo's; choose another folder with --out.")
        (out / MARK).write_text("Made by `fedkeel demo`, which replaces this folder's contents.\n", encoding="utf-8")
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise InputError(
            f"the folder {out} cannot be made ready: {error.strerror} ({error.filename}); choose another with --out."
        ) from None


def _draw(histories: dict[str, History], out: Path, clients: int, rounds: int, seed: int) -> Path:
    subtitle = f"MNIST-5k, {clients} clients, Dirichlet 0.3, 20 % a round, 2NN, seed {seed}; dashed: {TARGET:.0%}"
    chart = curves_chart(histories, f"Test accuracy over {rounds} rounds", subtitle, TARGET)
    return save_chart(chart, out / "curves.png")
