"""Every run below a folder, each in one line: what it is, how far it came and how well it did.

Only what the line needs is read, from one consistent view of each database, and nothing is written or locked: runs may
be going on. Compared are the tables, the settings with their checksum, and the last round with the seal. The chain of
digests over all rounds, the states and the model are not: that is what ``fedkeel verify`` is for.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import tomllib
from collections.abc import Iterator
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
    bytes: int = 0
    """Sent in both directions."""
    seconds: float = 0.0
    """Spent in rounds."""
    note: str = ""
    """Why a run is damaged or was interrupted, where that is known."""


def overviews(folder: Path) -> Iterator[Overview]:
    """All runs in a folder and below it, by name; what cannot be read is a line that says so."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name one that holds runs, such as runs.")
    refused: list[OSError] = []
    for place, below, files in os.walk(folder, onerror=refused.append):
        below.sort()
        if FILE in files or FILE in below:
            yield overview(Path(place), folder)
    for error in refused:
        where = Path(os.fsdecode(error.filename or folder))
        yield Overview(_name(where, folder), where, "damaged", note=f"{where} cannot be read: {error.strerror}.")


def overview(directory: Path, folder: Path | None = None) -> Overview:
    """The line of one run."""
    name = _name(directory, folder or directory.parent)
    try:
        # Asked first: a run that ends in between has by then written how.
        running = lock.is_held(directory)
        found = _read(directory)
    except (FedkeelError, OSError) as error:
        return Overview(name, directory, "damaged", note=str(error))
    state: State = "running" if running else found.pop("state")
    found.pop("state", None)
    if state in ("running", "finished"):
        found["note"] = ""
    return Overview(name, directory, state, **found)


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
    points: list[tuple[int, float]] = []
    first = None
    query = "SELECT round, model, accuracy FROM metrics NOT INDEXED WHERE +split = 'test' ORDER BY rowid"
    for row in db.execute(query):
        if not schema.columns_fit(row, "itf"):
            raise DamagedError("a row of metrics holds what it cannot")
        first = row[1] if first is None else first
        if row[1] == first:
            points.append((row[0], math.nan if row[2] is None else row[2]))
    return {"done": done, "bytes": traffic, "seconds": seconds, "accuracy": reported(points, done)}


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
