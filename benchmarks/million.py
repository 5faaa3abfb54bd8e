"""A million clients by the virtual clock: rounds of a thousand, and a server that steps whenever a buffer is full.

    python benchmarks/million.py                 # a million clients; some ten minutes
    python benchmarks/million.py --clients 20000 --per-round 100 --rounds 10 --out /tmp/m.json --picture /tmp/m.png

FedAvg with a logistic model of 20 inputs and 4 samples a client. Speeds and lines differ as in docs/clock.md. The
buffered server (FedBuff) gets as many uploads as the rounds have. Each runs in a process of its own. Writes
docs/results/million.json, draws docs/pictures/million.png and fills the table of docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "million.json"
PICTURE = ROOT / "docs" / "pictures" / "million.png"
INPUTS, CLASSES, SAMPLES, TEST = 20, 5, 4, 2000
BATCH, EPOCHS, LR = 2, 5, 0.01
NOISE = 2.5
"""Deviation of samples from the centre of their class: much overlap, so that there is something to learn."""
CLOCK = {"speed": 10.0, "speed_sigma": 1.0, "up": 1.0, "down": 4.0, "line_sigma": 0.5, "latency": 0.1}
SAMPLES_A_CLASS = 0.9
"""Probability that a sample is of its client's own class."""


def federation(clients: int) -> Any:
    """Clusters in 20 dimensions; most samples of a client are of one class."""
    import numpy as np

    from fedkeel.data import Federation, from_arrays

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, INPUTS), dtype=np.float32)
    own = np.repeat(rng.integers(0, CLASSES, clients), SAMPLES)
    other = rng.random(len(own)) >= SAMPLES_A_CLASS
    own[other] = rng.integers(0, CLASSES, int(other.sum()))
    labels = np.concatenate([own, rng.integers(0, CLASSES, TEST)])
    x = NOISE * rng.standard_normal((len(labels), INPUTS), dtype=np.float32)
    x += centres[labels]
    dataset = from_arrays(x[:-TEST], labels[:-TEST], x[-TEST:], labels[-TEST:], CLASSES, "clusters")
    parts = np.arange(clients * SAMPLES, dtype=np.int64).reshape(clients, SAMPLES)
    return Federation(dataset, tuple(parts), {"name": "in order", "clients": clients})


def measure(clients: int, per_round: int, buffer: int, rounds: int, executor: str) -> dict[str, Any]:
    """One way, in this process; ``buffer`` 0 has rounds. As many uploads in either."""
    import torch

    from fedkeel import build
    from fedkeel.algorithms.registry import make_algorithm
    from fedkeel.bench import process
    from fedkeel.engine.choice import make_executor
    from fedkeel.engine.clock import Clock
    from fedkeel.engine.noted import TIME
    from fedkeel.engine.settings import Training
    from fedkeel.engine.simulation import Simulation
    from fedkeel.runs.runner import Evaluation, execute

    torch.set_num_threads(1)
    process.SAMPLED_EVERY = 1.0  # twenty times a second, looking at the memory made rounds half as long again
    steps = rounds * per_round // buffer if buffer else rounds
    every = max(1, steps // 100)
    with process.PeakMemory() as peak:
        began = time.perf_counter()
        made = federation(clients)
        ways = {"mode": "buffered", "buffer": buffer} if buffer else {}
        training = Training(rounds=steps, participation=per_round / clients, epochs=EPOCHS, batch_size=BATCH, lr=LR)
        simulation = Simulation(
            make_algorithm("fedavg", weights="uniform"),
            build.make_task("logistic", made.dataset, 0, torch.float32),
            made,
            training,
            executor=make_executor(executor),
            clock=Clock(**(CLOCK | ways)),
        )
        ready = time.perf_counter()
        ends = [ready]
        _, history = execute(simulation, Evaluation(every=every), watch=lambda _: ends.append(time.perf_counter()))
        described = simulation.executor.describe()
        simulation.executor.close()
    seconds = [after - before for before, after in pairwise(ends)]
    clock = {t: float(noted[TIME]) for t, noted in history.noted.items()}  # type: ignore[arg-type]
    series = [(clock[m.round], m.accuracy) for m in history.series()]
    uploads = sum(one.clients for one in history.rounds)
    return {
        "way": f"a buffer of {buffer:,}" if buffer else f"rounds of {per_round:,}",
        "buffer": buffer,
        "clients": clients,
        "per_round": per_round,
        "steps": steps,
        "uploads": uploads,
        "executor": described,
        "setup_seconds": ready - began,
        "seconds_per_step": statistics.median(seconds[1:] or seconds),
        "seconds_per_1000_uploads": 1000 * (ends[-1] - ready) / uploads,
        "peak_mb": peak.bytes / 1e6,
        "virtual_seconds": clock[steps],
        "accuracy": series[-1][1],
        "bytes_down": sum(one.bytes_down for one in history.rounds),
        "bytes_up": sum(one.bytes_up for one in history.rounds),
        "series": series,
    }


def chart(runs: list[dict[str, Any]]) -> Any:
    """Test accuracy over virtual time, over the time that all had, and over uploads."""
    import altair as alt

    from fedkeel import theme
    from fedkeel.plots.lines import curve, lines

    def curves(points: Any) -> list[Any]:
        found = [curve(run["way"], [points(run)], strong=bool(run["buffer"])) for run in runs]
        return [one for one in found if one is not None]

    def by_uploads(run: dict[str, Any]) -> list[tuple[float, float]]:
        n = len(run["series"])
        return [(run["uploads"] * (k + 1) / n, accuracy) for k, (_, accuracy) in enumerate(run["series"])]

    order = [run["way"] for run in runs]
    shortest = min(run["virtual_seconds"] for run in runs)
    in_time = lines(
        curves(lambda run: [(at / 60, a) for at, a in run["series"] if at <= 3 * shortest]),
        (360, 280),
        "test accuracy",
        x_title="virtual minutes",
        order=order,
        percent=True,
    )
    in_uploads = lines(
        curves(by_uploads), (360, 280), "test accuracy", x_title="uploads", x_format="~s", order=order, percent=True
    )
    first = runs[0]
    subtitle = (
        f"FedAvg, {first['per_round']:,} at work at a time; speeds differ by "
        f"σ = {CLOCK['speed_sigma']:g}, lines by σ = {CLOCK['line_sigma']:g}"
    )
    title = theme.heading(f"{first['clients']:,} clients by the virtual clock", subtitle)
    return theme.styled(alt.hconcat(in_time, in_uploads, spacing=90), title)


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each way."""
    import pages

    rows = [
        [
            run["way"],
            f"{run['steps']:,}",
            f"{run['seconds_per_step'] * 1000:.1f} ms",
            f"{run['seconds_per_1000_uploads']:.2f} s",
            f"{run['peak_mb']:,.0f} MB",
            f"{run['virtual_seconds'] / 60:,.1f} min",
            f"{run['accuracy']:.1%}",
        ]
        for run in runs
    ]
    columns = ["", "steps", "a step here", "1,000 uploads here", "memory", "virtual time", "accuracy"]
    return pages.markdown(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--per-round", type=int, default=1000)
    parser.add_argument("--buffers", default="1000,100", help="sizes of buffers; each is a run of its own")
    parser.add_argument("--rounds", type=int, default=100, help="synchronous rounds; the others get as many uploads")
    parser.add_argument("--executor", help="absent: stacked in rounds, serial with a buffer")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--one", type=int, metavar="BUFFER", help="measure one way here and print it; 0 has rounds")
    options = parser.parse_args()
    if options.one is not None:
        # Clients that were given different models are not stacked, and handing over a few at a time takes longer.
        executor = options.executor or ("serial" if options.one else "stacked")
        print(json.dumps(measure(options.clients, options.per_round, options.one, options.rounds, executor)))
        return
    import pages

    from fedkeel.data import save_chart

    runs = []
    same = ["--clients", str(options.clients), "--per-round", str(options.per_round), "--rounds", str(options.rounds)]
    same += ["--executor", options.executor] if options.executor else []
    for buffer in [0, *map(int, options.buffers.split(","))]:
        command = [sys.executable, __file__, "--one", str(buffer), *same]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        last = runs[-1]
        print(
            f"{last['way']}: {last['seconds_per_step'] * 1000:.1f} ms a step, {last['peak_mb']:.0f} MB, "
            f"{last['accuracy']:.1%} after {last['virtual_seconds'] / 60:.1f} virtual minutes",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    save_chart(chart(runs), options.picture)
    if options.out == RESULTS:
        pages.fill("million", table(runs), ROOT / "docs" / "scale.md")


if __name__ == "__main__":
    main()
