"""What the measurement scripts share: their options, one measured run, and results that are saved after every run."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkeel.algorithms.contract import Algorithm
from fedkeel.build import make_task
from fedkeel.data import Dataset, Federation, load
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DivergedError
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.directory import environment
from fedkeel.runs.history import History, Measured
from fedkeel.runs.runner import Evaluation, execute

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
SUBSET_SEED = 20240101
"""Decides which training samples a reduced data set keeps, the same for every seed of a run."""


def arguments(description: str | None, rounds: int, seeds: Iterable[int] = (0, 1, 2)) -> argparse.Namespace:
    """The options of every script; torch is held to one thread, so that times are comparable."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--data-dir", type=Path, help="folder with data files; else $FEDKEEL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the JSON file already has")
    parser.add_argument("--overwrite", action="store_true", help="replace a JSON file that is there already")
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="measure only these rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return options


def data_set(name: str, data_dir: Path | None, samples: int | None = None) -> Dataset:
    """A data set, perhaps with a fixed random part of its training samples only (the test set stays whole)."""
    loaded = load(name, data_dir)
    assert isinstance(loaded, Dataset)
    if samples is None or samples >= len(loaded.train):
        return loaded
    chosen = np.sort(np.random.default_rng(SUBSET_SEED).permutation(len(loaded.train))[:samples])
    return subset(loaded, chosen)


def subset(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """The data set with these training samples only."""
    train = replace(dataset.train, x=dataset.train.x[rows], y=dataset.train.y[rows])
    labels = None if dataset.partition_labels is None else dataset.partition_labels[rows]
    note = f"train subset: {len(rows):,} of {len(dataset.train):,}"
    return replace(dataset, train=train, partition_labels=labels, note=note)


def measure(
    label: str,
    algorithm: Algorithm,
    model: str,
    federation: Federation,
    seed: int,
    evaluation: Evaluation | None = None,
    **training: Any,
) -> dict[str, Any]:
    """One run from start to end, or to the round in which it diverged, as plain numbers."""
    settings = Training(**training)
    task = make_task(model, federation.dataset, seed, torch.float32)
    simulation = Simulation(algorithm, task, federation, settings, seed)
    history, diverged, began = History(), None, time.process_time()
    try:
        execute(simulation, evaluation or Evaluation(), history=history)
    except DivergedError as error:
        diverged = {"round": len(history.rounds) + 1, "message": str(error)}
    rounds, test, train = history.rounds, history.series(), history.series(split="train")
    count = max(1, len(rounds))
    return {
        "label": label,
        "seed": seed,
        "algorithm": algorithm.name,
        "params": algorithm.params.model_dump(mode="json"),
        "training": settings.model_dump(mode="json"),
        "model": model,
        "data": {"name": federation.dataset.name, "note": federation.dataset.note},
        "partition": federation.rule | federation.describe(),
        "diverged": diverged,
        "rounds": len(rounds),
        "final_accuracy": test[-1].accuracy if test and not diverged else None,
        "final_loss": number(test[-1].loss) if test and not diverged else None,
        "best_accuracy": max((m.accuracy for m in test), default=None),
        "steps": sum(r.steps for r in rounds),
        "samples": sum(r.samples for r in rounds),
        "bytes_down_per_round": round(sum(r.bytes_down for r in rounds) / count),
        "bytes_up_per_round": round(sum(r.bytes_up for r in rounds) / count),
        "seconds": round(history.seconds, 2),
        "cpu_seconds": round(time.process_time() - began, 2),
        "test": curve(test),
        "train": curve(train),
    }


def curve(points: list[Measured]) -> list[list[float | int | None]]:
    """Evaluations as [round, accuracy, loss]."""
    return [[m.round, round(m.accuracy, 5), number(m.loss)] for m in points]


def number(value: float) -> float | None:
    """A float that JSON can hold: None where it is not finite."""
    return round(value, 6) if math.isfinite(value) else None


def first_round(points: list[list[float]], column: int, reached: float, below: bool) -> int | None:
    """The first round of a curve whose value (1: accuracy, 2: loss) is at or beyond a target."""
    for point in points:
        value = point[column]
        if value is not None and (value <= reached if below else value >= reached):
            return int(point[0])
    return None


Row = dict[str, Any]
Summary = Callable[[list[Row]], Row]
"""From the runs of one line of the table, one a seed, to that line."""


class Results:
    """The runs of a script and the table made of them, in one JSON file that is whole after every run."""

    def __init__(self, name: str, description: str | None, options: argparse.Namespace, summary: Summary) -> None:
        title, _, about = (description or "").strip().partition("\n")
        self.path = options.out / f"{name}.json"
        self.runs: list[Row] = []
        self.head = {
            "title": title,
            "about": " ".join(about.split()),
            "command": f"python experiments/{name}.py --rounds {options.rounds} --seeds "
            + " ".join(map(str, options.seeds)),
            "environment": environment(),
        }
        self._summary, self._only = summary, options.only
        if self.path.exists() and not (options.resume or options.overwrite):
            raise SystemExit(
                f"{self.path} holds results already; add to them with --resume, replace them with --overwrite, or "
                "write elsewhere with --out."
            )
        if options.resume and self.path.is_file():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self.head["environment"] = kept["environment"]
            self.runs = [run for seeds in kept["runs"].values() for run in seeds.values()]
            self._write()

    def wants(self, label: str, seed: int) -> bool:
        """Whether a run is asked for and not there yet."""
        asked = self._only is None or label in self._only
        return asked and not any(run["label"] == label and run["seed"] == seed for run in self.runs)

    def add(self, run: Row, **more: Any) -> Row:
        """Keep a run, write the file, and say so."""
        self.runs.append(run | more)
        self._write()
        state = run["diverged"]["message"] if run["diverged"] else f"accuracy {run['final_accuracy']:.4f}"
        print(f"  {run['label']}, seed {run['seed']}: {state}, {run['seconds']:.1f} s", flush=True)
        return self.runs[-1]

    def of(self, label: str) -> list[Row]:
        """All runs of a line."""
        return [run for run in self.runs if run["label"] == label]

    def rows(self) -> list[Row]:
        """The lines of the table, in the order in which they were first measured."""
        return [self._summary(self.of(label)) for label in dict.fromkeys(run["label"] for run in self.runs)]

    def table(self) -> str:
        """The table as Markdown."""
        rows = self.rows()
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [["–" if row.get(column) is None else str(row.get(column)) for column in columns] for row in rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *cells])

    def _write(self) -> None:
        runs: dict[str, dict[str, Row]] = {}
        for run in self.runs:
            runs.setdefault(run["label"], {})[str(run["seed"])] = run
        text = json.dumps(self.head | {"rows": self.rows(), "runs": runs}, ensure_ascii=False)
        for start in ('{"algorithm"', '{"label"', '"about"', '"command"', '"environment"', '"rows"', '"runs"'):
            text = text.replace(start, "\n" + start)  # a row or a run a line: a change of one is a change of one line
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text + "\n")


def lost(runs: list[Row]) -> str:
    """Which seeds diverged, and when."""
    found = [f"seed {run['seed']} in round {run['diverged']['round']}" for run in runs if run["diverged"]]
    return ", ".join(found) or "no"


def spread(values: Iterable[float | None], scale: float = 1.0, digits: int = 2) -> str:
    """``mean ± standard deviation`` over the seeds that have a value."""
    found = [value * scale for value in values if value is not None]
    if not found:
        return "–"
    text = f"{np.mean(found):.{digits}f}"
    return f"{text} ± {np.std(found, ddof=1):.{digits}f}" if len(found) > 1 else text
