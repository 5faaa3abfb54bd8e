"""Runs of the search and of the ablations, of which only the accuracy is kept."""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from pathlib import Path

from fedkeel import api, build, config
from fedkeel.errors import DivergedError
from fedkeel.tuning.contest import Contest, final_experiment
from fedkeel.tuning.spaces import Value

CANDIDATE = {"name": "benchmarks.own_method.candidates:Candidate"}
GROUPS = "groups"
"""Not a parameter of Keel's but of the candidate: one memory for each of so many groups of clients."""


def variant(about: Contest, values: dict[str, Value], change: dict[str, Value], seed: int) -> config.Experiment:
    """Keel's run after tuning with these values, changed; with ``GROUPS`` by the candidate, which is Keel otherwise."""
    own = {name: value for name, value in change.items() if name != GROUPS}
    experiment = final_experiment(about, "keel", values | own, seed)
    if GROUPS not in change:
        return experiment
    table = tomllib.loads(config.dump(experiment))
    params = {name: value for name, value in table["algorithm"].items() if name != "name"}
    table["algorithm"] = CANDIDATE | params | {"projection": True, "full": True, GROUPS: change[GROUPS]}
    (made,) = config.expand(table, [], allow_plugins=True)
    return made


def accuracy(experiment: config.Experiment, better: bool = False) -> float:
    """Mean over the last tenth of the rounds; 0 for a run that diverges.

    Of the model that the run reports, or with ``better`` of the better of that and the algorithm's own.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        federation = build.make_federation(experiment, None)
        run = api.run(experiment, folder / "run", federation=federation, allow_plugins=True)
        models = run.history.models()[: 2 if better else 1]
        return max(run.history.reported(model).late for model in models)
    except DivergedError:
        return 0.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
