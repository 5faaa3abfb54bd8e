"""What a client remembers at its own site: one SQLite file, in which a state counts only once the server says so.

A client's new state is *pending* when it sends its upload. Whether the upload counted it learns from the server's next
word, which names the last round in which one did: the state of that round is the one to go on from, pending or not.
What lies before it is forgotten; what was pending and did not count is forgotten when a newer round is prepared. So an
upload that is lost, late or sent twice leaves the client as if it had been absent, or present once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from torch import Tensor

from fedkeel.engine.wire import WireError, from_bytes, to_bytes
from fedkeel.errors import DataError

PATIENCE = 30
"""Seconds to wait for another process that writes to the file."""
_TABLE = """
CREATE TABLE IF NOT EXISTS states (
    run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (run, round)
)
"""


class LostTrackError(DataError):
    """A client does not hold the state that the server counts on."""


class SiteMemory:
    """The states of one client in any number of runs, durable on disk; ``directory`` holds the files of a site."""

    def __init__(self, directory: Path, client: int) -> None:
        self.client = client
        self.path = directory / f"client-{client}.sqlite"
        directory.mkdir(parents=True, exist_ok=True)
        with self._database() as db:
            db.execute(_TABLE)

    def state_after(self, run: str, round: int) -> dict[str, Tensor]:
        """What the client remembered when its upload of a round (from 1) had counted; nothing before the first (0).

        The server cannot take a round back: one that counted makes all that were said before it void.
        """
        with self._database() as db:
            query = "SELECT round, phase FROM states WHERE run = ? ORDER BY round"
            held: dict[int, str] = dict(db.execute(query, (run,)).fetchall())
            over = any(phase == "counted" and later > round for later, phase in held.items())
            if over or (round and round not in held):
                holds = f"that of round {', '.join(map(str, held))}" if held else "none"
                raise LostTrackError(
                    f"client {self.client} does not hold the state that the server counts on: that of round {round}; "
                    f"it holds {holds}. It takes part again in a run that starts anew."
                )
            if round == 0:
                return {}
            found = db.execute("SELECT state FROM states WHERE run = ? AND round = ?", (run, round)).fetchone()
        try:
            kind, head, tensors = from_bytes(found[0])
        except WireError as error:
            raise DataError(f"{self.path} is damaged: {error} Restore it from a copy.") from None
        if (kind, head) != ("state", self._head(run, round)):
            raise DataError(f"{self.path} is damaged: the state of round {round} is another's; restore it from a copy.")
        return tensors

    def prepare(self, run: str, counted: int, round: int, state: Mapping[str, Tensor]) -> None:
        """Keep the state of a new round as pending, and what counted as such; what can count no more is forgotten."""
        with self._database() as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE states SET phase = 'counted' WHERE run = ? AND round = ?", (run, counted))
            db.execute("DELETE FROM states WHERE run = ? AND round <= ? AND round <> ?", (run, round, counted))
            encoded = to_bytes("state", self._head(run, round), dict(state))
            db.execute("INSERT INTO states VALUES (?, ?, 'pending', ?)", (run, round, encoded))
            db.execute("COMMIT")

    def _head(self, run: str, round: int) -> dict[str, object]:
        return {"run": run, "client": self.client, "round": round}

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The file, opened for one purpose: a site may be another process each time."""
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as db:
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")  # an upload must not count before its state is safe
                yield db
        except sqlite3.Error as error:
            raise DataError(
                f"{self.path} cannot be used ({error}); make room or make it writable, or restore it from a copy."
            ) from None
