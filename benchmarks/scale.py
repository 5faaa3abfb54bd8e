"""Time and memory of a round against the number of registered clients, of which always ten take part.

    python benchmarks/scale.py --most 1000000

SCAFFOLD, whose clients remember a vector each, with a logistic model of 20 inputs and 4 samples a client. Every size
runs in a process of its own. Writes one JSON object a line to docs/results/scale.jsonl, draws
docs/pictures/scale.png and fills the table of docs/benchmarks.md.
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
RESULTS = ROOT / "docs" / "results" / "scale.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "scale.png"
SMALLEST = 100
INPUTS, CLASSES, SAMPLES, COHORT, TEST = 20, 5, 4, 10, 1000
BATCH, EPOCHS = 2, 5


def measure(clients: int, rounds: int, executor: str) -> dict[str, Any]:
    """One size, in this process."""
    import numpy as np
    import torch

    from fedkeel import build
    from fedkeel.algorithms.registry import make_algorithm
    from fedkeel.bench import process
    from fedkeel.data import Federation, from_arrays
    from fedkeel.engine.choice import make_executor
    from fedkeel.engine.settings import Training
    from fedkeel.engine.simulation import Simulation
    from fedkeel.runs.runner import Evaluation, execute

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, clients * SAMPLES + TEST)
    centres = rng.standard_normal((CLASSES, INPUTS), dtype=np.float32)
    x = centres[labels] + rng.standard_normal((len(labels), INPUTS), dtype=np.float32)
    dataset = from_arrays(x[:-TEST], labels[:-TEST], x[-TEST:], labels[-TEST:], CLASSES, "clusters")
    with process.PeakMemory() as peak:
        began = time.perf_counter()
        parts = np.arange(clients * SAMPLES, dtype=np.int64).reshape(clients, SAMPLES)
        federation = Federation(dataset, tuple(parts), {"name": "in order", "clients": clients})
        simulation = Simulation(
            make_algorithm("scaffold"),
            build.make_task("logistic", dataset, 0, torch.float32),
            federation,
            Training(rounds=rounds, participation=COHORT / clients, epochs=EPOCHS, batch_size=BATCH, lr=0.1),
            executor=make_executor(executor),
        )
        ready = time.perf_counter()
        ends = [ready]
        _, history = execute(simulation, Evaluation(), watch=lambda _: ends.append(time.perf_counter()))
        simulation.executor.close()
    seconds = [after - before for before, after in pairwise(ends)]
    return {
        "clients": clients,
        "rounds": rounds,
        "executor": executor,
        "clients_per_round": history.rounds[-1].clients,
        "setup_seconds": ready - began,
        "first_round_seconds": seconds[0],
        "seconds_per_round": statistics.median(seconds[1:] or seconds),
        "peak_mb": peak.bytes / 1e6,
        "data_mb": x.nbytes / 1e6,
    }


def chart(rows: list[dict[str, Any]]) -> Any:
    """Two panels over the number of clients: milliseconds a round, and memory."""
    import altair as alt

    from fedkeel import theme

    sizes = alt.Axis(values=[row["clients"] for row in rows], format="~s")
    clients = alt.X("clients:Q", title="registered clients", scale=alt.Scale(type="log", nice=False), axis=sizes)

    def panel(field: str, title: str) -> Any:
        y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domainMin=0), axis=alt.Axis(tickCount=5))
        points = [{"clients": row["clients"], field: row[field] * (1000 if "seconds" in field else 1)} for row in rows]
        base = alt.Chart(alt.InlineData(values=points)).encode(x=clients, y=y)
        return (base.mark_line(strokeWidth=2) + base.mark_circle(size=50)).properties(width=340, height=260)

    both = alt.hconcat(panel("seconds_per_round", "ms a round"), panel("peak_mb", "peak memory, MB"))
    subtitle = f"SCAFFOLD, {COHORT} clients a round, {SAMPLES} samples each; one process per size"
    return theme.styled(both, theme.heading("What registered clients cost", subtitle), domain=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=1_000_000, help="largest number of clients; sizes grow tenfold")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--executor", default="serial")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON lines")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--one", type=int, metavar="CLIENTS", help="measure one size here and print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.rounds, options.executor)))
        return
    import pages

    from fedkeel.data import save_chart

    rows, size = [], SMALLEST
    while size <= options.most:
        command = [sys.executable, __file__, "--one", str(size), "--rounds", str(options.rounds)]
        done = subprocess.run([*command, "--executor", options.executor], stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        last = rows[-1]
        print(
            f"{size:>9,} clients: {last['seconds_per_round'] * 1000:.1f} ms a round, {last['peak_mb']:.0f} MB, "
            f"ready after {last['setup_seconds']:.2f} s",
            flush=True,
        )
        size *= 10
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    save_chart(chart(rows), options.picture)
    if options.out == RESULTS:
        pages.fill("scale", pages.scale_table(rows))


if __name__ == "__main__":
    main()
