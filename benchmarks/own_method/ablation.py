"""Keel without one of its parts, at the values that tuning chose for the whole, with the leaderboard's fresh seeds.

    python -m benchmarks.own_method.ablation fashion-mnist

Needs the leaderboard's records of Keel in that setting (results/leaderboard, or --records), which are the runs of the
whole. Each part is removed by a parameter: momentum β1 = 0, look-ahead κ = 0, projection ρ = −1, accumulation β2 = 0,
memory of all clients m = 50, 20, 10, memory of each G = 30, 10.
Runs that are in the file already are not repeated. With --removed memories stay whole, and only parts are taken out.
Prints a table: mean over the last tenth of the rounds, ± 95 % interval, and the paired difference; Keel's page has it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.own_method.runs import GROUPS, accuracy, variant
from fedkeel.runs.atomic import write_atomically
from fedkeel.tuning.contest import Contest, contest
from fedkeel.tuning.records import Collected, Tried, best
from fedkeel.tuning.spaces import Value
from fedkeel.tuning.statistics import Interval, paired

WHOLE = "all of it"
PARTS: dict[str, dict[str, Value]] = {
    "no momentum (β1 = 0)": {"algorithm.beta1": 0.0},
    "no look-ahead (κ = 0, GradMA-S)": {"algorithm.ahead": 0.0},
    "no projection (ρ = −1)": {"algorithm.rho": -1.0},
    "no accumulation (β2 = 0)": {"algorithm.beta2": 0.0},
    "remembers 50 clients (m = 50)": {"algorithm.m": 50},
    "remembers 20 clients (m = 20)": {"algorithm.m": 20},
    "remembers a cohort (m = 10)": {"algorithm.m": 10},
    "one memory for 3 clients or 4 (G = 30)": {GROUPS: 30},
    "one memory for 10 clients (G = 10)": {GROUPS: 10},
}
REMOVED = 4
"""The first so many have a part less, the others a smaller memory."""
FILE = Path("docs/results/keel_ablation.json")
RECORDS = Path("results/leaderboard")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("setting", help="of the leaderboard")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--removed", action="store_true", help="only parts removed, no smaller memories")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    about, records = contest(given.setting), Collected.of(given.setting, given.records)
    chosen, whole = of_the_whole(about, records)
    found: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    mine = found.setdefault(given.setting, {"chosen": chosen, "late": {WHOLE: whole}})
    if (mine["chosen"], mine["late"][WHOLE]) != (chosen, whole):
        raise SystemExit(f"{given.out} has other runs of Keel in {given.setting}; remove that entry to run it again.")
    late = mine["late"]
    for part, change in list(PARTS.items())[: REMOVED if given.removed else None]:
        runs = late.setdefault(part, {})
        for seed in about.final_seeds:
            if str(seed) not in runs:
                runs[str(seed)] = round(accuracy(variant(about, chosen, change, seed)), 6)
                write_atomically(given.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(table(late))


def of_the_whole(about: Contest, records: Collected) -> tuple[dict[str, Value], dict[str, float]]:
    """The values that tuning chose for Keel, and the accuracies of the runs with them, by seed."""
    trials = records.trials("keel")
    finals: list[Tried] = [one for one in records.finals("keel") if one.number in about.final_seeds]
    if len(trials) < about.trials or len(finals) < about.seeds:
        raise SystemExit(f"Keel has not finished {about.name}: fedkeel leaderboard run {about.name} --algorithms keel")
    return best(trials).choice, {str(one.number): round(one.reported.late, 6) for one in finals}


def table(late: dict[str, dict[str, float]]) -> str:
    """In Markdown, in points of accuracy, from those of every seed; compared seed by seed."""
    lines = ["| | last 10 % | less than the whole | p |", "|---|---|---|---|"]
    whole = list(late[WHOLE].values())
    for part, runs in late.items():
        if runs.keys() != late[WHOLE].keys():
            raise SystemExit(
                f"{part!r} was run with the seeds {', '.join(runs)}, the whole with {', '.join(late[WHOLE])}."
            )
        values = [runs[seed] for seed in late[WHOLE]]
        mean = Interval.of(values)
        less = Interval.of([a - b for a, b in zip(whole, values, strict=True)])
        p = paired(values, whole).t
        compared = "– | –" if part == WHOLE else f"{_points(less)} | {'< 0.001' if p < 0.001 else f'{p:.3f}'}"
        lines.append(f"| {part} | {_points(mean)} | {compared} |")
    return "\n".join(lines)


def _points(interval: Interval) -> str:
    return f"{100 * interval.mean:.2f} ± {100 * interval.half:.2f}"


if __name__ == "__main__":
    main()
