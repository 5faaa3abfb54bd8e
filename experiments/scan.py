"""Settings that a paper does not print, looked for with FedAvg on held-out training samples.

    python experiments/scan.py gradma        η and rounds of GradMA's MNIST columns
    python experiments/scan.py fedgvrgm      batch size of FedGVRGM's MNIST column

A tenth of every client's samples is held out and takes the place of the test set, which is never looked at. Only the
baseline FedAvg is run, and the value for which it comes nearest to its printed numbers is taken once, for all
algorithms of that table; FedAvg's own cells are then no evidence. Writes docs/results/<paper>_scan.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedkeel import config
from fedkeel.build import make_federation, make_simulation
from fedkeel.data import Federation
from fedkeel.data.dataset import Split
from fedkeel.papers.format import papers, sections_of
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.directory import environment
from fedkeel.runs.runner import execute

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
SHARE = 0.1
"""Of the training samples, held out."""
SCANS: dict[str, dict[str, Any]] = {
    "gradma": {
        "settings": ["mnist-w1-s10", "mnist-w001-s10"],
        "over": {"lr": [0.001, 0.01, 0.1]},
        "rounds": 200,
        "evaluation": {"every": 5},
    },
    "fedgvrgm": {
        "settings": ["mnist-a05"],
        "over": {"batch_size": [10, 50]},
        "rounds": 15,
        "evaluation": {"every": 5, "train": True},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paper", choices=SCANS)
    parser.add_argument("--data-dir", type=Path, help="folder with data files; else $FEDKEEL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scan, path = SCANS[options.paper], options.out / f"{options.paper}_scan.json"
    rows: list[dict[str, Any]] = []
    for setting in scan["settings"]:
        for field, values in scan["over"].items():
            for value in values:
                rows.append(measured(options.paper, setting, field, value, scan, options.data_dir))
                print(json.dumps({k: v for k, v in rows[-1].items() if k != "curve"}, ensure_ascii=False), flush=True)
                write(path, options.paper, rows)


def measured(
    paper: str, setting: str, field: str, value: float, scan: dict[str, Any], data_dir: Path | None
) -> dict[str, Any]:
    """FedAvg in one setting with one value, judged on held-out training samples."""
    table = sections_of(papers()[paper], setting, "fedavg")
    table["training"] |= {"rounds": scan["rounds"], field: value}
    table["data"] |= {"validation": SHARE}
    table["evaluation"] = scan["evaluation"]
    (experiment,) = config.expand(table | {"run": {"executor": "serial"}}, [])
    simulation = make_simulation(experiment, federation=judged_by_validation(make_federation(experiment, data_dir)))
    began = time.process_time()
    _, history = execute(simulation, experiment.evaluation)
    seconds = time.process_time() - began
    held, train = history.series(), history.series(split="train")
    return {
        "setting": setting,
        field: value,
        "rounds": scan["rounds"],
        "held-out accuracy, best %": round(100 * max(m.accuracy for m in held), 2),
        "CPU seconds a round": round(seconds / scan["rounds"], 2),
        "curve": {
            "round": [m.round for m in held],
            "held-out accuracy": [round(m.accuracy, 4) for m in held],
            "train loss": [round(m.loss, 4) for m in train],
        },
    }


def judged_by_validation(federation: Federation) -> Federation:
    """The federation whose test set is what was held out of its training samples."""
    data, held = federation.dataset, federation.validation
    test = Split(data.train.x[held], data.train.y[held])
    return replace(federation, dataset=replace(data, test=test), validation=None)


def write(path: Path, paper: str, rows: list[dict[str, Any]]) -> None:
    title = f"What {paper}'s paper does not print, looked for on held-out training samples"
    shown = [{k: v for k, v in row.items() if k != "curve"} for row in rows]
    content = {
        "title": title,
        "about": " ".join((__doc__ or "").split("\n\n")[-1].split()),
        "command": f"python experiments/scan.py {paper}",
        "environment": environment(),
        "rows": shown,
        "curves": [row["curve"] for row in rows],
    }
    text = json.dumps(content, ensure_ascii=False)
    for start in ('"about"', '"command"', '"environment"', '"rows"', '"curves"', '{"setting"', '{"round"'):
        text = text.replace(start, "\n" + start)
    write_atomically(path, text + "\n")


if __name__ == "__main__":
    main()
