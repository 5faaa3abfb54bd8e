"""How much memory Keel needs for many clients: 1,000 of them with 60 samples each, 20 a round.

    python -m benchmarks.own_method.memory

The leaderboard's Fashion-MNIST setting otherwise, with all of its training samples, the values that tuning chose for
Keel there and the first three of its fresh seeds. Nothing is tuned for this many clients. Runs that are in the file
already are not repeated. Prints a table as the ablation does; Keel's page shows it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.own_method.ablation import RECORDS, WHOLE, of_the_whole, table
from benchmarks.own_method.runs import GROUPS, accuracy, variant
from fedkeel.runs.atomic import write_atomically
from fedkeel.tuning.contest import contest
from fedkeel.tuning.records import Collected
from fedkeel.tuning.spaces import Value

SETTING, SEEDS = "fashion-mnist", 3
MANY: dict[str, Value] = {"partition.clients": 1000, "training.participation": 0.02, "data.samples": 60_000}
MEMORIES: dict[str, dict[str, Value]] = {
    WHOLE: {},
    "one memory for 10 clients (G = 100)": {GROUPS: 100},
    "one memory for 33 clients or 34 (G = 30)": {GROUPS: 30},
    "remembers 100 clients (m = 100)": {"algorithm.m": 100},
    "no projection (ρ = −1)": {"algorithm.rho": -1.0},
}
FILE = Path("docs/results/keel_memory.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    about = contest(SETTING)
    chosen, _ = of_the_whole(about, Collected.of(SETTING, given.records))
    found: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    values = chosen | MANY
    if found.setdefault("values", values) != values:
        raise SystemExit(f"{given.out} has runs with other values; remove it to run them again.")
    late = found.setdefault("late", {})
    for kept, change in MEMORIES.items():
        runs = late.setdefault(kept, {})
        for seed in about.final_seeds[:SEEDS]:
            if str(seed) not in runs:
                runs[str(seed)] = round(accuracy(variant(about, values, change, seed)), 6)
                write_atomically(given.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(table(late))


if __name__ == "__main__":
    main()
