"""How well ``fedkeel cost`` predicts: calibrated on small cohorts, compared with runs of up to a million clients.

    python benchmarks/costs_model.py             # some minutes
    python benchmarks/costs_model.py --most 10000 --out /tmp/model.json

FedAvg, SCAFFOLD, MIFA and GradMA-S on the federation of benchmarks/scale.py: a logistic model of 20 inputs, 4 samples a
client. Nothing that is compared took part in the calibration. Every run has a process and a store of its own, and is
evaluated and committed after each round. Writes docs/results/scale_model.json and fills the table of docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "scale_model.json"
INPUTS, CLASSES, SAMPLES, TEST = 20, 5, 4, 1000
CALIBRATED = 500
"""Registered clients of the experiment that is calibrated; the calibration itself makes do with fewer."""
CASES = (
    ("fedavg", 10_000, 20, 20),
    ("fedavg", 10_000, 200, 20),
    ("fedavg", 1_000_000, 1000, 10),
    ("scaffold", 10_000, 20, 20),
    ("scaffold", 100_000, 1000, 10),
    ("scaffold", 1_000_000, 1000, 10),
    ("mifa", 10_000, 20, 20),
    ("mifa", 100_000, 200, 20),
    ("mifa", 1_000_000, 1000, 10),
    ("gradma_s", 10_000, 20, 20),
    ("gradma_s", 100_000, 50, 20),
)
"""Algorithm, N, S and R."""


def federation(clients: int) -> Any:
    """Clusters in 20 dimensions, dealt in order."""
    import numpy as np

    from fedkeel.data import Federation, from_arrays

    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, clients * SAMPLES + TEST)
    x = rng.standard_normal((len(labels), INPUTS), dtype=np.float32)
    x += rng.standard_normal((CLASSES, INPUTS), dtype=np.float32)[labels]
    dataset = from_arrays(x[:-TEST], labels[:-TEST], x[-TEST:], labels[-TEST:], CLASSES, "clusters")
    parts = np.arange(clients * SAMPLES, dtype=np.int64).reshape(clients, SAMPLES)
    return Federation(dataset, tuple(parts), {"name": "in order", "clients": clients})


def experiment(algorithm: str, clients: int, per_round: int, rounds: int) -> Any:
    from fedkeel.config import AlgorithmConfig, Experiment, ModelConfig, RunConfig
    from fedkeel.engine.settings import Training

    return Experiment(
        model=ModelConfig(name="logistic"),
        algorithm=AlgorithmConfig(name=algorithm),
        training=Training(rounds=rounds, participation=per_round / clients, epochs=5, batch_size=2, lr=0.1),
        run=RunConfig(executor="serial"),
    )


def measure(algorithm: str, clients: int, per_round: int, rounds: int) -> dict[str, Any]:
    """One run, in this process."""
    import torch

    from fedkeel import build
    from fedkeel.bench import process
    from fedkeel.runs.runner import Evaluation, execute
    from fedkeel.runs.store import Store

    torch.set_num_threads(1)
    asked = experiment(algorithm, clients, per_round, rounds)
    # Memory is looked at between rounds only: a thread that watches it made rounds half as long again.
    with tempfile.TemporaryDirectory() as folder:
        simulation = build.make_simulation(asked, federation=federation(clients))
        ends: list[float] = []
        store = Store.create(Path(folder))
        _, history = execute(simulation, Evaluation(), store, watch=lambda _: ends.append(time.perf_counter()))
        held = process.memory([os.getpid()])
        store.close()
        simulation.executor.close()
    return {
        "seconds_per_round": statistics.fmean(after - before for before, after in pairwise(ends)),
        "peak_bytes": held,
        "bytes_down": sum(one.bytes_down for one in history.rounds),
        "bytes_up": sum(one.bytes_up for one in history.rounds),
    }


def predicted(cases: list[tuple[str, int, int, int]]) -> Iterator[tuple[Any, float]]:
    """Estimates of the cases, each algorithm calibrated once, just before its first case is run."""
    import torch

    from fedkeel import system
    from fedkeel.costs.calibration import calibrate
    from fedkeel.costs.estimate import estimate
    from fedkeel.costs.structure import find_structure
    from fedkeel.costs.trial import make_trial

    torch.set_num_threads(1)
    known: dict[str, Any] = {}
    for name, N, S, R in cases:
        if name not in known:
            trial = make_trial(experiment(name, CALIBRATED, 10, 10), federation=federation(CALIBRATED))
            structure = find_structure(trial)
            began = time.perf_counter()
            known[name] = trial, structure, calibrate(trial, structure), time.perf_counter() - began
        trial, structure, calibration, took = known[name]
        yield estimate(trial, structure, calibration, N, S, R, system.memory(), system.cores()), took


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each case."""
    import pages

    cells = [
        [
            f"{row['algorithm']}, {row['clients']:,} clients, {row['per_round']:,} a round",
            f"{row['predicted_seconds'] * 1000:,.0f} ± {row['spread_seconds'] * 1000:,.0f} ms",
            f"{row['seconds'] * 1000:,.0f} ms",
            f"{row['time_error']:+.0%}",
            f"{row['memory'] / 1e6:,.0f} MB",
            f"{row['memory_error']:+.0%}",
            f"{row['bytes_error']:+.0%}" if row["bytes_error"] else "exact",
        ]
        for row in rows
    ]
    columns = ["", "a round, predicted", "measured", "error", "memory", "error", "bytes"]
    return pages.markdown(columns, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out cases of more clients")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", metavar="CASE", help="measure one case here and print it: name,N,S,R")
    options = parser.parse_args()
    if options.one:
        name, *numbers = options.one.split(",")
        N, S, R = map(int, numbers)
        print(json.dumps(measure(name, N, S, R)))
        return
    import pages

    cases = [case for case in CASES if case[1] <= options.most]
    rows = []
    for (name, N, S, R), (found, took) in zip(cases, predicted(cases), strict=True):
        command = [sys.executable, __file__, "--one", f"{name},{N},{S},{R}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        real = json.loads(done.stdout.splitlines()[-1])
        counted = (found.down * R, found.up * R)
        bytes_error = sum(counted) / (real["bytes_down"] + real["bytes_up"]) - 1
        rows.append(
            {
                "algorithm": name,
                "clients": N,
                "per_round": S,
                "rounds": R,
                "calibration_seconds": took,
                "predicted_seconds": found.round_seconds.value,
                "spread_seconds": found.round_seconds.spread,
                "seconds": real["seconds_per_round"],
                "time_error": found.round_seconds.value / real["seconds_per_round"] - 1,
                "predicted_memory": found.memory.whole,
                "memory": real["peak_bytes"],
                "memory_error": found.memory.whole / real["peak_bytes"] - 1,
                "bytes_error": 0.0 if counted == (real["bytes_down"], real["bytes_up"]) else bytes_error,
            }
        )
        last = rows[-1]
        print(
            f"{name:9} N {N:>9,} S {S:>5,}: {last['predicted_seconds'] * 1000:8.1f} ms predicted, "
            f"{last['seconds'] * 1000:8.1f} measured ({last['time_error']:+.0%}); memory {last['memory_error']:+.0%}; "
            f"bytes {'exact' if not last['bytes_error'] else last['bytes_error']}",
            flush=True,
        )
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.out == RESULTS:
        pages.fill("model", table(rows), ROOT / "docs" / "scale.md")


if __name__ == "__main__":
    main()
