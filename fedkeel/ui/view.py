"""One run as its page shows it. Every number was compared with its digest before; nothing is written or locked."""

from __future__ import annotations

import json
import math
import threading
import time
import tomllib
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.errors import FedkeelError
from fedkeel.runs import lock
from fedkeel.runs.history import History
from fedkeel.runs.overview import Overview, Stamp, overview, settled, stamp
from fedkeel.runs.store import ClientRound, ClientScore, Event, Store

MOST = 24
"""Runs that are kept in memory."""
BRIEFLY = 1.5
"""Seconds for which a run is not read again although its files were changed so recently that their times do not tell
whether they were changed since: the pictures of a page are of one reading then."""


@dataclass(frozen=True)
class ClientLine:
    """What is known of a client."""

    client: int
    rounds: int
    """In which its upload counted."""
    last: int
    steps: int
    """In all of them."""
    loss: float
    drift: float
    """Both in its last round."""
    accuracy: float
    """On its own samples when that was last measured; NaN where it was not."""


@dataclass(frozen=True)
class View:
    """A run at a moment."""

    directory: Path
    overview: Overview
    version: str
    read: float
    """When, in seconds since 1970."""
    history: History
    did: tuple[ClientRound, ...]
    clients: tuple[ClientLine, ...]
    events: tuple[Event, ...]
    configuration: str
    facts: tuple[str, ...]
    """What else the store knows of the run, in a few words each."""
    trouble: str = ""
    """Why nothing of this could be read."""


class Views:
    """Runs that were looked at; a run is read again when its files have changed. May be used by any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: OrderedDict[Path, tuple[Stamp, bool, View, float]] = OrderedDict()
        self._lock = threading.Lock()

    def view(self, directory: Path) -> View:
        """The run as it is now."""
        now, running, before = time.time_ns(), lock.is_held(directory), stamp(directory)
        with self._lock:
            known = self._kept.get(directory)
            if known is not None and known[:2] == (before, running) and time.monotonic() < known[3]:
                self._kept.move_to_end(directory)
                return known[2]
        found = read(directory, self.folder, version(directory))
        with self._lock:
            self._kept.pop(directory, None)
            good = math.inf if settled(before, now) else time.monotonic() + BRIEFLY
            self._kept[directory] = (before, running, found, good)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        return found


def version(directory: Path) -> str:
    """Another one whenever something about a run may have changed; made without reading it."""
    parts = [value for part in stamp(directory) for value in (*part, -1)]
    return f"{hash((*parts, lock.holder(directory))) & 0xFFFFFFFFFFFFFFFF:016x}"


def read(directory: Path, folder: Path, version: str) -> View:
    """Everything that a page shows; damage is a sentence."""
    read_at, line = time.time(), overview(directory, folder)
    try:
        with closing(Store.reading(directory)) as store:
            history, events, configuration = store.history(), store.events(), store.configuration()
            did, scores = store.client_rounds(), store.client_scores()
            facts = _facts(store, configuration)
    except (FedkeelError, OSError, tomllib.TOMLDecodeError) as error:
        return View(directory, line, version, read_at, History(), (), (), (), "", (), str(error))
    clients = _lines(did, scores)
    return View(directory, line, version, read_at, history, tuple(did), clients, tuple(events), configuration, facts)


def _lines(did: list[ClientRound], scores: list[ClientScore]) -> tuple[ClientLine, ...]:
    accuracy = {score.client: score.accuracy for score in scores}  # in round order, so the last one stays
    rounds: dict[int, list[ClientRound]] = {}
    for one in did:
        rounds.setdefault(one.client, []).append(one)
    return tuple(
        ClientLine(
            client,
            len(mine),
            mine[-1].round,
            sum(one.steps for one in mine),
            mine[-1].loss,
            mine[-1].drift,
            accuracy.get(client, math.nan),
        )
        for client, mine in sorted(rounds.items())
    )


def _facts(store: Store, configuration: str) -> tuple[str, ...]:
    table = tomllib.loads(configuration) if configuration else {}
    found = []
    clients = _table(store.meta("data")).get("clients")
    if isinstance(clients, int):
        found.append(f"{clients:,} clients")
    rule = _part(table, "partition")
    if "rule" in rule:
        found.append(f"{rule['rule']} {rule['alpha']:g}" if isinstance(rule.get("alpha"), float) else str(rule["rule"]))
    if "name" in _part(table, "model"):
        found.append(str(table["model"]["name"]))
    executor = _table(store.meta("executor")).get("executor")
    if isinstance(executor, str):
        found.append(executor)
    parent = store.meta("parent")
    if parent:
        found.append(f"from round {store.meta('parent_round')} of {parent}")
    return tuple(found)


def _part(table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _table(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
