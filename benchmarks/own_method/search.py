"""Tunes a candidate on held-out samples, then runs its two best settings longer with three seeds, there too.

    python -m benchmarks.own_method.search fashion-mnist gain

The test set takes no part. Ten trials of Optuna's TPE as on the leaderboard, but for the first, which may be given
(--lr, --decay): a search for a method is no contest. Every run is judged by the better of its two models, the average
over rounds and the last. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import warnings
from statistics import fmean
from typing import Any

import optuna
import torch

from benchmarks.own_method.runs import CANDIDATE, accuracy
from fedkeel import config
from fedkeel.papers.plan import IN_ONE_PROCESS
from fedkeel.tuning.contest import contest

PROJECTION = {"projection": True}
BETA1 = (0.3, 0.97, 0.85)
TAU = (0.2, 1.5, 1.0)
KEEL: dict[str, tuple[Any, ...]] = {
    "beta1": (0.2, 0.95, 0.7),
    "beta2": (0.2, 0.95, 0.5),
    "eta_g": (0.5, 2.5, 1.2, "log"),
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "FedACG": ({"name": "fedacg"}, {"lam": BETA1, "beta": (1e-4, 0.1, 0.001, "log")}),
    "FedDyn": ({"name": "feddyn"}, {"alpha": (1e-3, 1.0, 0.002, "log")}),
    "GradMA-S": (
        {"name": "gradma_s"},
        {"beta1": (0.1, 0.97, 0.85), "beta2": (0.1, 0.9, 0.5), "eta_g": (0.3, 2.0, 1.0, "log")},
    ),
    "look-ahead + projection": (PROJECTION, {"beta1": BETA1, "beta2": (0.1, 0.9, 0.5)}),
    "look-ahead + projection + η_g": (
        PROJECTION | {"full": True},
        {"beta1": (0.2, 0.97, 0.6), "beta2": (0.2, 0.95, 0.7), "eta_g": (0.5, 2.5, 1.5, "log")},
    ),
    **{
        f"look-ahead + projection + η_g + {named}": (
            PROJECTION | {"full": True, "rows": rows},
            {"beta1": (0.1, 0.9, 0.65), "beta2": (0.1, 0.9, 0.6), "eta_g": (0.3, 2.0, 1.3, "log")},
        )
        for named, rows in {"row anchor": ["anchor"], "rows global, anchor": ["global", "anchor"]}.items()
    },
    "shorter look-ahead + projection + η_g": (
        PROJECTION,
        {"beta1": (0.2, 0.97, 0.6), "beta2": (0.2, 0.95, 0.7), "eta_g": (0.5, 2.5, 1.5, "log")},
    ),
    "look-ahead + projection with a margin": (
        PROJECTION,
        {
            "beta1": (0.2, 0.97, 0.7),
            "beta2": (0.2, 0.95, 0.7),
            "rho_g": (0.0, 0.3, 0.05),
            "eta_g": (0.5, 2.5, 1.0, "log"),
        },
    ),
    "Keel + soft cone": (
        PROJECTION | {"full": True},
        KEEL | {"soft": (0.01, 1.0, 0.1, "log"), "fade": (0.8, 1.0, 0.95)},
    ),
    **{f"Keel, {groups} groups": (PROJECTION | {"full": True, "groups": groups}, KEEL) for groups in (10, 30)},
    "Keel + trust": (PROJECTION | {"full": True, "trust": True}, KEEL),
    "Keel + falling steps": (PROJECTION | {"full": True}, KEEL | {"fall": (0.0, 1.0, 0.3)}),
    "Keel": (PROJECTION | {"full": True}, KEEL),
    "look-ahead + calibration": ({"calibration": "log"}, {"beta1": BETA1, "tau": TAU}),
    "look-ahead + projection + calibration": (
        PROJECTION | {"calibration": "log"},
        {"beta1": BETA1, "beta2": (0.1, 0.9, 0.5), "tau": TAU},
    ),
    "look-ahead + memory": ({}, {"beta1": (0.0, 0.97, 0.8), "varp": (0.1, 1.0, 0.7)}),
    "look-ahead + deviations": (
        {},
        {"beta1": BETA1, "dev": (0.2, 1.0, 0.8), "age": (0.95, 1.0, 0.99)},
    ),
    "b": ({}, {"beta1": (0.8, 1.0, 0.95), "b": (0.05, 0.9, 0.3)}),
    "gain + deviations": (
        {},
        {
            "beta1": (0.8, 1.0, 0.95),
            "b": (0.05, 0.9, 0.3),
            "dev": (0.3, 1.0, 0.8),
            "age": (0.9, 1.0, 0.97),
        },
    ),
    "gain + calibration": (
        {"calibration": "log"},
        {"beta1": (0.8, 1.0, 0.95), "b": (0.05, 0.9, 0.3), "tau": (0.1, 1.2, 0.5)},
    ),
}
SEEDS = (11, 12, 13)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("setting", help="of the leaderboard")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1, help="η of the first trial")
    parser.add_argument("--decay", type=float, default=0.995, help="its decay a round")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(searched(given.setting, given.variant, given.trials, given.lr, given.decay), ensure_ascii=False))


def searched(setting: str, variant: str, trials: int, lr: float, decay: float) -> dict[str, Any]:
    """The better of the two best trials over the seeds."""
    about = contest(setting)
    fixed, space = VARIANTS[variant]
    fixed = (CANDIDATE if "name" not in fixed else {}) | fixed
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=7, n_startup_trials=5, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({"lr": lr, "lr_decay": decay} | {name: value for name, (_, _, value, *_) in space.items()})
    tried = []
    for _ in range(trials):
        trial = study.ask()
        common = {
            "lr": trial.suggest_float("lr", 0.01, 0.5, log=True),
            "lr_decay": trial.suggest_categorical("lr_decay", [1.0, 0.995, 0.99]),
        }
        own = {
            name: trial.suggest_float(name, low, high, log=bool(scale))
            for name, (low, high, _, *scale) in space.items()
        }
        value = accuracy(held_out(setting, fixed | own, common, about.trial_rounds, seed=0), better=True)
        study.tell(trial, value)
        tried.append((value, common, own))
    tried.sort(key=lambda one: -one[0])
    found = []
    for value, common, own in tried[:2]:
        values = [accuracy(held_out(setting, fixed | own, common, about.rounds, seed), better=True) for seed in SEEDS]
        found.append((fmean(values), values, common | own, value))
    mean, values, chosen, value = max(found, key=lambda one: one[0])
    return {
        "setting": setting,
        "variant": variant,
        "trials": trials,
        "judged": "the better model",
        "first": {"lr": lr, "lr_decay": decay},
        "mean": round(mean, 4),
        "seeds": [round(one, 4) for one in values],
        "trial": round(value, 4),
        "second": round(min(one[0] for one in found), 4),
        "chosen": {name: round(value, 4) for name, value in chosen.items()},
    }


def held_out(
    setting: str, algorithm: dict[str, Any], common: dict[str, Any], rounds: int, seed: int
) -> config.Experiment:
    """A run that is judged on samples held out of the training data."""
    about = contest(setting)
    table = {name: dict(section) for name, section in about.sections.items()}
    table["data"] |= {"validation": about.validation, "evaluate_on": "validation"}
    table["training"] |= {"rounds": rounds, "lr": common["lr"], "lr_decay": common["lr_decay"]}
    table["evaluation"] = {"every": about.trial_every, "average": "ema"}
    table |= {"algorithm": algorithm, "seed": seed, "name": "candidate", "run": IN_ONE_PROCESS}
    (experiment,) = config.expand(table, [], allow_plugins=True)
    return experiment


if __name__ == "__main__":
    main()
