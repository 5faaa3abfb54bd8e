"""Weights & Biases, offline: files in a folder, which `wandb sync` sends when you want it."""

from __future__ import annotations

import secrets
from importlib import import_module
from pathlib import Path
from typing import Any

from fedkeel import arguments
from fedkeel.runs.watching import About
from fedkeel.trackers.identity import keep_id, known_id
from fedkeel.trackers.tracker import Rows, Tracker


def wandb(directory: str | Path, project: str = "fedkeel") -> Tracker:
    """A watcher that writes an offline run of Weights & Biases below ``directory/wandb``; nothing is sent.

    `wandb sync FOLDER/wandb/offline-run-…` sends it. A run that goes on has the same id, so that both parts become one
    there; rounds that a killed process had not written are missing.
    """
    folder = arguments.path("directory", directory)
    arguments.instance("project", project, str, "a name")
    return Tracker("wandb", ["wandb"], lambda about: _Offline(folder, project, about))


class _Offline:
    def __init__(self, folder: Path, project: str, about: About) -> None:
        made: Any = import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        known = known_id(about.directory, "wandb") if about.history.rounds else None
        self._run: Any = made.init(
            mode="offline",
            dir=str(folder),
            project=project,
            name=about.name,
            id=known or secrets.token_hex(8),
            config={field: value for field, value in about.settings.items() if value is not None},
            reinit="create_new",
            settings=made.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False),
        )
        if known is None:
            keep_id(about.directory, "wandb", self._run.id)

    def write(self, rows: Rows) -> None:
        for round, numbers in rows:
            self._run.log(numbers, step=round)

    def close(self, how: str) -> None:
        self._run.summary["ended"] = how
        self._run.finish(exit_code=1 if how == "failed" else 0)
