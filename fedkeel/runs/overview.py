"""Every run below a folder, each in one line: what it is, how far it came and how well it did.

Only what the line needs is read, from one consistent view of each database, and nothing is written or locked: runs may
be going on. Compared are the tables, the settings with their checksum, and the last round with the seal. The chain of
digests over all rounds, the states and the model are not: that is what ``fedkeel verify`` is for.

Whoever looks again and again keeps an ``Overviews``, which reads only those runs anew whose files have changed.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedkeel.errors import DataError, FedkeelError
from fedkeel.runs import ledger, lock, schema
from fedkeel.runs.connection import FILE, bounded, connect_reading, readable
from fedkeel.runs.digests import DamagedError
from fedkeel.runs.reported import Reported, reported

State = Literal["running", "finished", "stopped", "interrupted", "damaged"]
"""``stopped``: was asked to; ``interrupted``: its process ended otherwise; ``damaged``: cannot be read as a run."""
_ENDS = ("started", "resumed", "forked", "stopped", "finished", "fault")
"""Kinds of events of which the last one says how a run ended, if it did."""
CURVE = 60
"""Points that a line keeps of a run's accuracies."""
SETTLED = 2_000_000_000
"""Nanoseconds after which a file's times tell whether it was changed: clocks of file systems are coarse, and a write
just after a look may leave the times of the one before."""


@dataclass(frozen=True)
class Overview:
    """A run in one line."""

    name: str
    """Its folder, seen from the one that was looked through."""
    directory: Path
    state: State
    algorithm: str = ""
    data: str = ""
    seed: int | None = None
    done: int = 0
    """The last committed round."""
    rounds: int | None = None
    """Rounds that were asked for."""
    accuracy: Reported = field(default_factory=Reported)
    """On the test set, of the model that the run reports."""
    curve: tuple[float, ...] = ()
    """Test accuracies in round order, first and last among them, at most ``CURVE``; NaN where none was measured."""
    bytes: int = 0
    """Sent in both directions."""
    seconds: float = 0.0
    """Spent in rounds."""
    note: str = ""
    """Why a run is damaged or was interrupted, where that is known."""


def overviews(folder: Path) -> Iterator[Overview]:
    """All runs in a folder and below it, by name; what cannot be read is a line that says so."""
    for found in directories(folder):
        yield found if isinstance(found, Overview) else overview(found, folder)


def directories(folder: Path) -> Iterator[Path | Overview]:
    """The directories of all runs in a folder and below it; of a place that may not be entered, the line that says so.

    Links to other folders are not followed.
    """
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: run something here first (fedkeel run), or name a folder that holds runs."
        )
    refused: list[OSError] = []
    for place, below, files in os.walk(folder, onerror=refused.append):
        below.sort()
        if FILE in files or FILE in below:
            yield Path(place)
    for error in refused:
        where = Path(os.fsdecode(error.filename or folder))
        yield Overview(_name(where, folder), where, "damaged", note=f"{where} cannot be read: {error.strerror}.")


def overview(directory: Path, folder: Path | None = None) -> Overview:
    """The line of one run."""
    return Overviews(folder or directory.parent).line(directory)


Stamp = tuple[tuple[int, ...], ...]
"""Of a run's database and its log: which file it is, its size, and when it was written and changed."""


class Overviews:
    """The lines of the runs in a folder; a run is read again only when its files have changed since.

    What is kept is used only if database and log are the same files, of the same size, with the same times, and those
    times were well past when they were read: what was written in the meantime cannot hide. Whether a process works on a
    run is asked every time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[Stamp, dict[str, Any]]] = {}

    def line(self, directory: Path) -> Overview:
        """The line of one run."""
        name = _name(directory, self.folder)
        try:
            # Asked first: a run that ends in between has by then written how.
            running = lock.is_held(directory)
            found = dict(self._found(directory))
        except (FedkeelError, OSError) as error:
            self._known.pop(directory, None)
            return Overview(name, directory, "damaged", note=str(error))
        ended: State = found.pop("state")
        state: State = "running" if running else ended
        if state in ("running", "finished"):
            found["note"] = ""
        return Overview(name, directory, state, **found)

    def forget(self, but: set[Path]) -> None:
        """Keep nothing of runs that are gone."""
        self._known = {directory: known for directory, known in self._known.items() if directory in but}

    def _found(self, directory: Path) -> dict[str, Any]:
        now, before = time.time_ns(), stamp(directory)
        known = self._known.get(directory)
        if known is not None and known[0] == before:
            return known[1]
        found = _read(directory)
        if stamp(directory) == before and settled(before, now):
            self._known[directory] = (before, found)
        else:
            self._known.pop(directory, None)
        return found


def stamp(directory: Path) -> Stamp:
    """By what a change of a run's database is seen."""
    database, log = _status(directory / FILE), _status(directory / f"{FILE}-wal")
    # An empty log comes and goes with readers. Its change time says nothing: to a reader that is root, SQLite gives it
    # a new one.
    return (
        (*_identity(database), database.st_mtime_ns, database.st_ctime_ns) if database else (),
        (*_identity(log), log.st_mtime_ns) if log and log.st_size else (),
    )


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size


def settled(stamp: Stamp, now: int) -> bool:
    """Whether a change after ``now`` would give another stamp; times that lie ahead, as by another clock, do not."""
    return all(now - max(times[3:]) > SETTLED for times in stamp if times)


def _name(directory: Path, folder: Path) -> str:
    relative = os.path.relpath(directory, folder)
    return directory.resolve().name if relative == "." else relative


def _read(directory: Path) -> dict[str, Any]:
    path = directory / FILE
    if not path.is_file():
        raise DataError(f"{path} is not a file, so there is no run in it.")
    with readable(path), closing(connect_reading(path)) as db, bounded(db, path):
        db.execute("BEGIN")
        version = schema.identify(db)
        if version is None:
            if path.stat().st_size:
                raise DamagedError("it has no tables")
            return {"state": "interrupted", "note": "its process ended before the first round; start it again."}
        if version not in schema.EARLIER and version != str(schema.SCHEMA):
            raise DataError(f"{path} has format {version}, this version reads {schema.SCHEMA}.")
        if version in ("1", "2"):  # which had no seal
            texts = {str(key): str(value) for key, value in db.execute("SELECT key, value FROM meta NOT INDEXED")}
        else:
            texts = ledger.meta(db)
        found = _measured(db) | _settings(texts, directory)
        if version not in ("1", "2") and ledger.Seal.read(db).round != found["done"]:
            raise DamagedError("its last round does not fit the seal")
        return found | ({"state": "interrupted"} if version == "1" else _ended(db))


def _measured(db: sqlite3.Connection) -> dict[str, Any]:
    done, traffic, seconds = 0, 0, 0.0
    for row in db.execute("SELECT round, bytes_down, bytes_up, seconds FROM rounds NOT INDEXED"):
        if not schema.columns_fit(row, "iiif"):
            raise DamagedError("a row of rounds holds what it cannot")
        done, traffic, seconds = max(done, row[0]), traffic + row[1] + row[2], seconds + (row[3] or 0.0)
    points: dict[str, list[tuple[int, float]]] = {}
    at, model = -1, ""
    query = "SELECT round, model, accuracy FROM metrics NOT INDEXED WHERE +split = 'test' ORDER BY rowid"
    for row in db.execute(query):
        if not schema.columns_fit(row, "itf"):
            raise DamagedError("a row of metrics holds what it cannot")
        if row[0] != at:
            at, model = row[0], row[1]  # the first of the last evaluation is what the run reports
        points.setdefault(row[1], []).append((row[0], math.nan if row[2] is None else row[2]))
    chosen = points.get(model, [])
    curve = thinned([accuracy for _, accuracy in chosen])
    return {"done": done, "bytes": traffic, "seconds": seconds, "accuracy": reported(chosen, done), "curve": curve}


def thinned(values: Sequence[float], most: int = CURVE) -> tuple[float, ...]:
    """At most so many of the values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(at * (len(values) - 1) / (most - 1))] for at in range(most))


def _settings(texts: dict[str, str], directory: Path) -> dict[str, Any]:
    text = texts.get("configuration")
    if text is None:  # schema 1 kept it in the file beside
        text = (directory / "experiment.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    data = _part(table, "data").get("name", "")
    if "data" in texts:
        known = json.loads(texts["data"])
        data = known.get("name", data) if isinstance(known, dict) else data
    rounds, seed = _part(table, "training").get("rounds"), table.get("seed")
    return {
        "algorithm": str(_part(table, "algorithm").get("name", "")),
        "data": str(data),
        "seed": seed if isinstance(seed, int) else None,
        "rounds": rounds if isinstance(rounds, int) else None,
    }


def _part(table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _ended(db: sqlite3.Connection) -> dict[str, Any]:
    marks = ", ".join("?" * len(_ENDS))
    query = f"SELECT kind, text FROM events NOT INDEXED WHERE kind IN ({marks}) ORDER BY rowid DESC LIMIT 1"
    row = db.execute(query, _ENDS).fetchone()
    if row is not None and not schema.columns_fit(row, "tt"):
        raise DamagedError("a line of the diary is damaged")
    kind, text = row or ("", "")
    if kind in ("finished", "stopped"):
        return {"state": kind, "note": ""}
    return {"state": "interrupted", "note": text if kind == "fault" else ""}
