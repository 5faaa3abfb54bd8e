"""Keel without one of its parts, at the values that tuning chose for the whole, with the leaderboard's fresh seeds.

    python -m benchmarks.own_method.ablation fashion-mnist --out docs/results/keel_ablation.json

Needs the leaderboard's records of Keel in that setting (results/leaderboard, or --records). Each part is removed by a
parameter: momentum β1 = 0, look-ahead κ = 0, projection ρ = −1, accumulation β2 = 0. Runs that are in the file already
are not repeated. Prints a table: mean over the last tenth of the rounds, ± 95 % interval, and the paired difference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from fedkeel import api, build
from fedkeel.errors import DivergedError
from fedkeel.runs.atomic import write_atomically
from fedkeel.tuning.contest import contest, final_experiment
from fedkeel.tuning.records import Collected, best
from fedkeel.tuning.statistics import Interval, paired

PARTS: dict[str, dict[str, float]] = {
    "all of it": {},
    "no momentum": {"algorithm.beta1": 0.0},
    "no look-ahead": {"algorithm.ahead": 0.0},
    "no projection": {"algorithm.rho": -1.0},
    "no accumulation": {"algorithm.beta2": 0.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("setting", help="of the leaderboard")
    parser.add_argument("--records", type=Path, default=Path("results/leaderboard"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/keel_ablation.json"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    about = contest(given.setting)
    trials = Collected.of(given.setting, given.records).trials("keel")
    if len(trials) < about.trials:
        raise SystemExit(f"{given.records} has {len(trials)} of Keel's {about.trials} trials in {given.setting}.")
    chosen = best(trials).choice
    found: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    mine = found.setdefault(given.setting, {"chosen": chosen, "late": {}})
    if mine["chosen"] != chosen:
        raise SystemExit(f"{given.out} has other values of Keel in {given.setting}; remove that entry to run it again.")
    for part, change in PARTS.items():
        late = mine["late"].setdefault(part, {})
        for seed in about.final_seeds:
            if str(seed) not in late:
                late[str(seed)] = round(accuracy(final_experiment(about, "keel", chosen | change, seed)), 6)
                write_atomically(given.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(table({part: list(values.values()) for part, values in mine["late"].items()}))


def accuracy(experiment: Any) -> float:
    """On the test set, mean over the last tenth of the rounds; 0 for a run that diverges."""
    folder = Path(tempfile.mkdtemp())
    try:
        federation = build.make_federation(experiment, None)
        return api.run(experiment, folder / "run", federation=federation).history.reported().late
    except DivergedError:
        return 0.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(late: dict[str, list[float]]) -> str:
    """In Markdown, in points of accuracy."""
    lines = ["| | last 10 % | less than the whole | p |", "|---|---|---|---|"]
    whole = late["all of it"]
    for part, values in late.items():
        mean = Interval.of(values)
        less = Interval.of([a - b for a, b in zip(whole, values, strict=True)])
        p = paired(values, whole).t
        compared = "– | –" if part == "all of it" else f"{_points(less)} | {'< 0.001' if p < 0.001 else f'{p:.3f}'}"
        lines.append(f"| {part} | {_points(mean)} | {compared} |")
    return "\n".join(lines)


def _points(interval: Interval) -> str:
    return f"{100 * interval.mean:.2f} ± {100 * interval.half:.2f}"


if __name__ == "__main__":
    main()
