"""What a resumed run may change: fields that cannot alter a result already there, or to come."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedkeel.calls import Call
from fedkeel.config import Experiment
from fedkeel.data.sources import GIVEN, SOURCES, brings_clients, is_path
from fedkeel.errors import DataError, InputError

SAME_BITS = ("serial", "pool", "ray")
"""Executors whose results are equal to the bit while this process uses one thread, as workers do."""
_FREE = (
    "name",
    "evaluation.every",
    "evaluation.train",
    "evaluation.clients",
    "evaluation.metrics",
    "measure.every",
    "measure.clients",
    "run.address",
    "run.checkpoint_every",
    "run.memory_mb",
)
Settled = TypeVar("Settled", Experiment, Call)
"""What a run was started with: an experiment, or a call of ``fedkeel.train``."""


@dataclass(frozen=True)
class Change:
    """A field that is asked for otherwise than a run was started with."""

    field: str
    was: Any
    asked: Any

    def __str__(self) -> str:
        return f"{self.field} was {_shown(self.was)}, asked {_shown(self.asked)}"


def stored(text: str, directory: Path) -> Experiment:
    """The experiment in a run's directory; its algorithm is not imported."""
    return _read(text, directory, Experiment)


def stored_call(text: str, directory: Path) -> Call:
    """The call of ``fedkeel.train`` in a run's directory; its algorithm is not imported."""
    return _read(text, directory, Call)


def _read(text: str, directory: Path, kind: type[Settled]) -> Settled:
    try:
        table = tomllib.loads(text)
        if "made_by" in table and kind is Experiment:
            raise InputError(
                f"the run in {directory} was made by fedkeel.train, whose data and model are objects of a program; go "
                f"on with it there: fedkeel.train(…, directory={str(directory)!r}, resume=True)."
            )
        if "made_by" not in table and kind is Call:
            raise InputError(
                f"the run in {directory} is that of an experiment; go on with it by fedkeel.run or `fedkeel run "
                "--resume`, or choose another directory."
            )
        return kind(**table)
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"the stored configuration of the run in {directory} is damaged ({reason}); restore the run from a copy, "
            "or start a new one."
        ) from None


def fields(settled: Experiment | Call) -> dict[str, Any]:
    """Everything that a run is started with, by dotted field."""
    return _flat(settled.model_dump(mode="json"))


def changes(was: Settled, asked: Settled) -> list[Change]:
    """Every field that differs, in the order of the schema."""
    before, now = was.model_dump(), asked.model_dump()
    if any(
        brings_clients(str(one["data"]["name"])) for one in (before, now) if "data" in one
    ):  # then no rule has, or had, a say
        before.pop("partition"), now.pop("partition")
    if any(one["data"]["name"] == GIVEN for one in (before, now) if "data" in one):  # of which no field tells anything
        before["data"], now["data"] = ({"name": one["data"]["name"]} for one in (before, now))
    before, now = _flat(before), _flat(now)
    return [Change(f, before.get(f), now.get(f)) for f in before | now if before.get(f) != now.get(f)]


def allowed(was: Settled, asked: Settled, done: int, directory: Path) -> list[Change]:
    """The changes with which a run may go on after ``done`` rounds; an error lists those with which it may not."""
    found = changes(was, asked)
    refused = [change for change in found if not _is_free(change, was, asked, done)]
    if refused:
        listed = "; ".join(map(str, refused))
        ways = "start anew with --out, or start a new run from its state with --fork."
        if isinstance(asked, Call):
            ways = "or start anew in another directory."
        raise InputError(
            f"the run in {directory} cannot go on with another configuration: {listed}; resume it as it was, {ways}"
        )
    return found


def asks_for_other_data(was: Experiment, asked: Experiment) -> bool:
    """Whether a configuration names other data than another one, or deals them otherwise."""
    if asked.data.name == GIVEN:  # no name asks for anything then
        return False
    fields = [change.field for change in changes(was, asked)]
    return any(field == "seed" or field.startswith(("data.", "partition.")) for field in fields)


def check_shadow(was: Experiment, asked: Experiment, directory: Path, known: bool) -> None:
    """Refuse to guess what a name meant to a version for which a folder took the place of a built-in set.

    ``known`` says that the run has digests of its data, which decide the question.
    """
    name = asked.data.name
    if not known and name == GIVEN != was.data.name:
        raise InputError(
            f"the run in {directory} was begun with the data {was.data.name!r} by a version that kept no digests of "
            "them: whether those given now are the same cannot be told; go on without federation=."
        )
    if not known and was.data.name == name and name in SOURCES and Path(name).is_dir():
        raise InputError(
            f"the run in {directory} was begun by a version that took the folder ./{name} for the built-in data set "
            f"{name}; go on with data.name = './{name}' if it was trained on that folder, or move the folder away."
        )


def _same_folder(change: Change) -> bool:
    """``./sites`` is what earlier versions let one write as ``sites``, even where that was a built-in name."""
    was, asked = str(change.was), str(change.asked)
    return is_path(asked) and os.path.normpath(was) == os.path.normpath(asked)


def _is_free(change: Change, was: Settled, asked: Settled, done: int) -> bool:
    if change.field.startswith("training.until"):  # which ends a run sooner or later, and changes no round
        return True
    if change.field == "training.rounds":
        # A cosine over more rounds would have been another one from the start.
        return asked.training.rounds >= done and asked.training.lr_schedule != "cosine"
    if change.field == "data.name":  # data that are given now are compared themselves
        return _same_folder(change) or change.asked == GIVEN
    if change.field == "run.executor":
        return {was.run.executor, asked.run.executor} <= set(SAME_BITS) and was.run.threads == asked.run.threads == 1
    if change.field == "run.workers":  # which decides how many clients are computed together, where they are
        return {was.run.executor, asked.run.executor} <= set(SAME_BITS)
    return change.field in _FREE


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: _plain(value)}
    return flat


def _plain(value: Any) -> Any:
    """A tuple and the list that TOML makes of it are the same value."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
