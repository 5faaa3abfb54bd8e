"""What Ray costs: rounds of the executors ``pool`` and ``ray`` in turn, on the same work and with as many processes.

    python benchmarks/on_ray.py --work W2 --rounds 30

The machine may have other things to do: the two take turns round by round, the order changes every time, and what is
told is the median of the ratios of neighbours, with the middle half of them, never seconds alone. Where others keep all
cores busy, waiting hides what is computed in vain; so the processor time of this process and all its children is
compared as well (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import closing
from pathlib import Path

from fedkeel.bench.simulator import Simulator, make_federation
from fedkeel.bench.works import FULL, find, make_images
from fedkeel.engine.threads import one_thread


def processor_time() -> float:
    """Seconds of this process and of all that descend from it and are alive, Ray's own processes among them."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                values = (folder / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(folder.name)], ticks[int(folder.name)] = int(values[1]), int(values[11]) + int(values[12])

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return sum(count for pid, count in ticks.items() if is_ours(pid)) / os.sysconf("SC_CLK_TCK")


def measured(work: str, algorithm: str, rounds: int, workers: int, evaluate: bool) -> dict[str, object]:
    """Ratios of the seconds of a round on Ray to those of one in the pool."""
    federation = make_federation(FULL, make_images(FULL))

    def simulator(executor: str) -> Simulator:
        return Simulator(find(work), FULL, federation, algorithm, executor, workers, evaluate=evaluate)

    with one_thread(), closing(simulator("pool")) as pool, closing(simulator("ray")) as on_ray:
        for one in (pool, on_ray):
            one.run(3)
        while on_ray.choice.count(f"{workers} actor") == 0:  # the first rounds were those of who was there first
            on_ray.run(1)
            time.sleep(0.5)
        pairs, worked = [], {pool: 0.0, on_ray: 0.0}
        for number in range(rounds):
            order = (pool, on_ray) if number % 2 else (on_ray, pool)
            seconds = {}
            for one in order:
                before = processor_time()
                seconds[one] = one.run(1)[0]
                worked[one] += processor_time() - before
            pairs.append((seconds[on_ray], seconds[pool]))
    ratios = sorted(ray / pool for ray, pool in pairs)
    return {
        "work": work,
        "algorithm": algorithm,
        "evaluated": evaluate,
        "ratio": round(statistics.median(ratios), 3),
        "middle_half": [round(ratios[len(ratios) // 4], 3), round(ratios[-1 - len(ratios) // 4], 3)],
        "fastest": round(min(ray for ray, _ in pairs) / min(pool for _, pool in pairs), 3),
        "processor_time": round(worked[on_ray] / worked[pool], 3),
        "ms_ray": round(1000 * statistics.median(ray for ray, _ in pairs)),
        "ms_pool": round(1000 * statistics.median(pool for _, pool in pairs)),
        "rounds": rounds,
        "workers": workers,
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """A line of JSON for each work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", action="append", help="W1 to W4 (may be repeated); absent: W2 and W4")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--evaluate", action="store_true", help="with the test set after every round")
    given = parser.parse_args()
    for work in given.work or ["W2", "W4"]:
        print(json.dumps(measured(work, given.algorithm, given.rounds, given.workers, given.evaluate)), flush=True)


if __name__ == "__main__":
    main()
