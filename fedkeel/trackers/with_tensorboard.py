"""TensorBoard: event files in a folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fedkeel import arguments
from fedkeel.errors import InputError
from fedkeel.runs.watching import About
from fedkeel.trackers.tracker import Rows, Tracker, rows_of


def tensorboard(directory: str | Path) -> Tracker:
    """A watcher that writes TensorBoard's event files; look at them with `tensorboard --logdir DIRECTORY`."""
    folder = arguments.path("directory", directory)
    return Tracker("tensorboard", ["tensorboard", "torch.utils.tensorboard"], lambda about: _Events(folder, about))


class _Events:
    def __init__(self, folder: Path, about: About) -> None:
        again = bool(about.history.rounds)
        if not again and folder.is_dir() and any(folder.glob("events.out.tfevents.*")):
            raise InputError(f"{folder} holds the events of another run already; name another folder")
        made = import_module("torch.utils.tensorboard")
        # What was written before is taken back by its reader, and written again: a killed run may have lost some of it.
        self._writer: Any = made.SummaryWriter(str(folder), purge_step=0 if again else None)
        listed = "\n".join(f"    {field} = {value!r}" for field, value in about.settings.items())
        self._writer.add_text("settings", listed, 0)
        self.write(rows_of(about.history))

    def write(self, rows: Rows) -> None:
        for round, numbers in rows:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, how: str) -> None:
        self._writer.add_text("ended", how, 0)
        self._writer.close()
