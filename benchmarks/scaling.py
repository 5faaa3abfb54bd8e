"""Strong and weak scaling over workers, and what every algorithm sends and keeps.

    python benchmarks/scaling.py                 # some minutes
    python benchmarks/scaling.py --works W2 --samples 100 --turns 2 --out /tmp/scaling.json

Strong: the same 16 clients a round for every number of workers. Weak: 8 clients a round for each worker. FedAvg on the
models of `fedkeel bench`, trained only. Settings take turns, so that whatever else the machine does hits all alike. The
second table needs no time: it is what ``fedkeel cost`` finds of each algorithm on the 2NN. Writes
docs/results/scaling.json and fills the tables of docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "scaling.json"
STRONG, WEAK = 16, 8
"""Clients a round; clients a round and worker."""


class Contender:
    """A number of workers with a number of clients a round."""

    def __init__(self, work: str, workers: int, cohort: int, samples: int, executor: str) -> None:
        import torch

        from fedkeel import build
        from fedkeel.algorithms.registry import make_algorithm
        from fedkeel.bench.simulator import make_federation
        from fedkeel.bench.works import FULL, LR, find, make_images, make_model
        from fedkeel.engine.choice import make_executor
        from fedkeel.engine.settings import Training
        from fedkeel.engine.simulation import Simulation

        self.workers, self.cohort = workers, cohort
        size = replace(FULL, clients=cohort, cohort=cohort, samples=samples, test=100, epochs=1)
        federation = make_federation(size, make_images(size))
        task = build.make_task(make_model(find(work)), federation.dataset, 0, torch.float32)
        training = Training(epochs=1, batch_size=size.batch, lr=LR, rounds=1_000_000)
        made = make_executor(executor, workers)
        self.simulation = Simulation(make_algorithm("fedavg"), task, federation, training, 0, made)
        self.state = self.simulation.start()
        self.seconds: list[float] = []
        self.round()
        self.round()
        self.seconds.clear()

    def round(self) -> None:
        self.state, record = self.simulation.step(self.state)
        self.seconds.append(record.seconds)


def scaling(work: str, workers: list[int], samples: int, turns: int, executor: str) -> list[dict[str, Any]]:
    """Seconds a round of every number of workers, strong and weak."""
    made = {
        (kind, count): Contender(work, count, STRONG if kind == "strong" else WEAK * count, samples, executor)
        for kind in ("strong", "weak")
        for count in workers
    }
    try:
        for _ in range(turns):
            for one in made.values():
                one.round()
    finally:
        for one in made.values():
            one.simulation.executor.close()
    rows = []
    for (kind, count), one in made.items():
        base = made[kind, workers[0]].seconds
        ratios = [alone / mine for alone, mine in zip(base, one.seconds, strict=True)]
        ideal = count / workers[0] if kind == "strong" else 1.0
        rows.append(
            {
                "work": work,
                "executor": executor,
                "kind": kind,
                "workers": count,
                "clients": one.cohort,
                "samples": samples,
                "seconds": statistics.median(one.seconds),
                "speed_up": statistics.median(ratios),
                "efficiency": statistics.median(ratios) / ideal,
            }
        )
    return rows


def structures() -> list[dict[str, Any]]:
    """What every algorithm sends and keeps with the 2NN, in bytes."""
    from fedkeel.algorithms.registry import ALGORITHMS
    from fedkeel.bench.simulator import make_federation
    from fedkeel.bench.works import FULL, make_images
    from fedkeel.config import AlgorithmConfig, Experiment
    from fedkeel.costs.structure import find_structure
    from fedkeel.costs.trial import make_trial

    size = replace(FULL, clients=10, samples=10, test=100)
    federation = make_federation(size, make_images(size))
    found = []
    for name in ALGORITHMS:
        trial = make_trial(Experiment(algorithm=AlgorithmConfig(name=name)), federation=federation)
        found.append({"algorithm": name, "title": trial.algorithm.title, **find_structure(trial).as_dict()})
    return found


def scaling_table(rows: list[dict[str, Any]]) -> str:
    import pages

    cells = [
        [
            f"{row['work']}, {row['kind']}",
            str(row["workers"]),
            str(row["clients"]),
            f"{row['seconds']:.3f} s",
            f"{row['speed_up']:.2f}×",
            f"{row['efficiency']:.0%}",
        ]
        for row in rows
    ]
    return pages.markdown(["", "workers", "clients a round", "a round", "of one worker", "efficiency"], cells)


def structure_table(rows: list[dict[str, Any]]) -> str:
    import pages

    def vectors(size: int, d: int) -> str:
        return "–" if not size else f"{size / 4 / d:.3g} d" if size >= 0.005 * 4 * d else f"{size} B"

    cells = []
    for row in rows:
        d, up, down = row["d"], row["up"], row["down"]
        cells.append(
            [
                row["title"],
                vectors(down, d),
                vectors(up, d),
                vectors(sum(row["client"].values()), d),
                vectors(row["own"], d),
                vectors(row["remembered"], d),
                f"{row['registered']} B",
            ]
        )
    columns = ["", "down", "up", "a client keeps", "the server keeps", "for each client heard", "for each registered"]
    return pages.markdown(columns, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", default="W2,W4")
    parser.add_argument("--workers", default="1,2", help="numbers of workers; the first is what others are compared to")
    parser.add_argument("--samples", type=int, default=200, help="of each client; one epoch in batches of 50")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--executor", default="pool", help="a name of run.executor that takes a number of workers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    rows = []
    for work in options.works.split(","):
        workers = [int(count) for count in options.workers.split(",")]
        found = scaling(work, workers, options.samples, options.turns, options.executor)
        rows += found
        print(scaling_table(found), flush=True)
    kept = {"scaling": rows, "structures": structures()}
    options.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if options.out == RESULTS:
        import pages

        page = ROOT / "docs" / "scale.md"
        pages.fill("scaling", scaling_table(rows), page)
        pages.fill("structures", structure_table(kept["structures"]), page)


if __name__ == "__main__":
    main()
