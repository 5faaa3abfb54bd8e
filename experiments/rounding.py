"""How far rounding carries in FedGVRGM's readings: each run once more from weights that are one bit higher.

    python experiments/rounding.py --data-dir <folder>

Some readings of `fedgvrgm.variants`, three seeds. The second run of each begins with every weight moved to the next
larger number of 32 bits and is otherwise the same: samples, cohorts and order of sums. What lies between the two is
what other instructions of a CPU, another order of a sum or another release of torch may change as well. Relative
differences are of the training loss, the largest of the seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.build import make_federation, make_task
from fedkeel.engine.simulation import Simulation
from fedkeel.papers.format import papers
from fedkeel.papers.plan import planned
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.directory import environment
from fedkeel.runs.runner import execute

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PAPER = "fedgvrgm"
READINGS = {
    "readings-slow": ("fedavg", "fedgvrgm", "damp-unit", "heavy-unit", "heavy-participation"),
    "readings": ("fedavg", "scaffold", "fedgvrgm", "heavy-unit"),
}
SEEDS = (0, 1, 2)
ROUNDS = (10, 20, 30)
"""Where the two runs are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with data files; else $FEDKEEL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the JSON file already has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / f"{PAPER}_rounding.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if options.resume else []
    for setting, methods in READINGS.items():
        for method in methods:
            for seed in SEEDS:
                about = {"setting": setting, "method": method, "seed": seed}
                if any(about.items() <= run.items() for run in runs):
                    continue
                pair = (curve(**about, moved=moved, data_dir=options.data_dir) for moved in (False, True))
                runs.append(about | dict(zip(("train loss", "one bit higher"), pair, strict=True)))
                write(path, runs)
                print(setting, method, seed, flush=True)


def curve(setting: str, method: str, seed: int, moved: bool, data_dir: Path | None) -> dict[str, list[float]]:
    """The training loss of one run, from the weights of its seed or from those one bit above them."""
    experiment = planned(papers()[PAPER], setting, method, "full", seed).experiment
    federation = make_federation(experiment, data_dir)
    task = make_task(experiment.model.name, federation.dataset, seed, torch.float32)
    if moved:
        task.w0 = torch.nextafter(task.w0, torch.full_like(task.w0, torch.inf))
    algorithm = make_algorithm(experiment.algorithm.name, **experiment.algorithm_params())
    _, history = execute(Simulation(algorithm, task, federation, experiment.training, seed), experiment.evaluation)
    points = history.series(split="train")
    return {"round": [point.round for point in points], "loss": [round(point.loss, 6) for point in points]}


def rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each reading over its seeds: how the loss ends, and how far the two runs are apart on the way."""
    return [
        row(setting, method, found)
        for setting, methods in READINGS.items()
        for method in methods
        if len(found := [run for run in runs if (run["setting"], run["method"]) == (setting, method)]) > 1
    ]


def row(setting: str, method: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    paper = papers()[PAPER]
    title = paper.methods[method].title
    found: dict[str, Any] = {"reading": title, "η": paper.settings[setting].training["lr"]}
    pairs = [
        tuple(dict(zip(*run[name].values(), strict=True)) for name in ("train loss", "one bit higher")) for run in runs
    ]
    for at, name in enumerate(("train loss", "one bit higher")):
        ends = [pair[at][ROUNDS[-1]] for pair in pairs]
        found[name] = f"{mean(ends):.3f} ± {stdev(ends):.3f}"
    for t in ROUNDS:
        found[f"apart after {t} rounds, %"] = float(f"{100 * max(abs(b[t] - a[t]) / a[t] for a, b in pairs):.2g}")
    return found


def write(path: Path, runs: list[dict[str, Any]]) -> None:
    title, _, about = (__doc__ or "").partition("\n")
    content = {
        "title": title,
        "about": " ".join(about.split("\n\n")[-1].split()),
        "command": "python experiments/rounding.py",
        "environment": environment(),
        "rows": rows(runs),
        "runs": runs,
    }
    text = json.dumps(content, ensure_ascii=False)
    for start in ('"about"', '"command"', '"environment"', '"rows"', '"runs"', '{"reading"', '{"setting"'):
        text = text.replace(start, "\n" + start)
    write_atomically(path, text + "\n")


if __name__ == "__main__":
    main()
