"""Trackers: watchers that write what a run measures where other tools show it.

    fk.train("feddc", data=fed, watch=fk.trackers.tensorboard("logs/feddc"))

or `fedkeel run experiment.toml --track tensorboard`. Each needs its library (`pip install 'fedkeel[tensorboard]'`),
which is imported only when a run begins. A run that goes on is written on in the same place, rounds that were missed
included. A tracker that fails is switched off with a notice; the run itself neither waits nor ends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedkeel.errors import unknown
from fedkeel.trackers.tracker import Tracker
from fedkeel.trackers.with_mlflow import mlflow
from fedkeel.trackers.with_tensorboard import tensorboard
from fedkeel.trackers.with_wandb import wandb

__all__ = ["NAMES", "mlflow", "tensorboard", "tracker_of", "wandb"]

_USUAL: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": lambda run: tensorboard(run / "tensorboard"),
    "mlflow": lambda run: mlflow(run.parent / "mlflow.db"),
    "wandb": lambda run: wandb(run.parent),
}
NAMES = tuple(_USUAL)


def tracker_of(name: str, directory: Path) -> Tracker:
    """A tracker by its name, where it usually writes for a run in a directory: in that, or beside it for all runs."""
    if name not in _USUAL:
        raise unknown("tracker", name, list(_USUAL))
    return _USUAL[name](directory)
