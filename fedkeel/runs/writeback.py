"""Writes SQLite's log back into the database file beside the run, instead of between two rounds.

A commit appends to the log, which costs memory traffic only. Writing back waits for the disk, twice; in a thread of its
own that time is the next round's. Whatever happens to it, the log holds every committed round.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from fedkeel.runs.connection import connect

ENOUGH = 16 << 20
"""Bytes of log worth writing back."""


class WriteBack:
    """At most one thread at a time that writes the log of a database back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._thread: threading.Thread | None = None

    def after_commit(self) -> None:
        """Start writing back if the log has grown enough and nobody does already."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._log.exists() and self._log.stat().st_size > ENOUGH:
            self._thread = threading.Thread(target=self._write_back, name="fedkeel-write-back", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for a thread that is at it."""
        if self._thread is not None:
            self._thread.join()

    def _write_back(self) -> None:
        # A disk that is full now is reported by the next commit; until then the log keeps everything.
        with suppress(sqlite3.Error), closing(connect(self._path)) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")  # the log is forced to disk before the file is touched
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
