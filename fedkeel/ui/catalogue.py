"""All runs below a folder, as last seen; every list says when that was.

Looking goes on in a thread: a page shows what is known so far, says what is not, and is told when there is more. Runs
have keys that say nothing about paths, and only directories that were found in the folder have one.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fedkeel.errors import FedkeelError
from fedkeel.runs.overview import Overview, Overviews, directories

NAMES = 2.0
"""Seconds that the first list waits for the names of runs."""


@dataclass(frozen=True)
class Line:
    """A run in the list."""

    key: str
    directory: Path
    name: str
    overview: Overview | None
    """None: it was not read yet."""


@dataclass(frozen=True)
class Seen:
    """The list at a moment."""

    lines: tuple[Line, ...]
    version: int
    """Grows with every change."""
    whole: float | None
    """When the last look at all runs began, in seconds since 1970: no line is older. None before the first was done."""
    trouble: str = ""
    """Why the folder could not be looked through."""

    @property
    def unread(self) -> int:
        return sum(line.overview is None for line in self.lines)


class Catalogue:
    """The runs in a folder. ``look`` may be called by any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = Overviews(folder)
        self._lock = threading.Lock()
        self._seen = Seen((), 0, None)
        self._looking: threading.Thread | None = None
        self._named = threading.Event()

    def look(self, patience: float) -> Seen:
        """The list after a look at all runs, or as far as that came in so many seconds; its names are waited for."""
        with self._lock:
            thread = self._looking
            if thread is None or not thread.is_alive():
                thread = self._looking = threading.Thread(target=self._look, name="fedkeel-ui-look", daemon=True)
                thread.start()
        thread.join(patience)
        if patience > 0:
            self._named.wait(NAMES)
        return self.seen

    @property
    def seen(self) -> Seen:
        """The list as it is known, without a look."""
        with self._lock:
            return self._seen

    def directory(self, key: str) -> Path | None:
        """Where a run is; None if the folder has none with that key."""
        for line in self.seen.lines:
            if line.key == key:
                return line.directory
        found = self._walk()
        return None if isinstance(found, str) else {line.key: line.directory for line in found}.get(key)

    def line(self, directory: Path) -> Overview:
        """A run as it is now."""
        return Overviews(self.folder).line(directory)

    def _look(self) -> None:
        began = time.time()
        found = self._walk()
        if isinstance(found, str):
            self._publish((), began, found)
            return
        known = {line.key: line for line in self.seen.lines}
        lines = {line.key: replace(line, overview=_kept(known.get(line.key), line)) for line in found}
        self._reader.forget({line.directory for line in lines.values()})
        if any(line.overview is None for line in lines.values()):
            self._publish(tuple(lines.values()), None)
        shown = time.monotonic()
        for line in found:
            lines[line.key] = replace(line, overview=line.overview or self._reader.line(line.directory))
            if time.monotonic() - shown > 0.2:
                self._publish(tuple(lines.values()), None)
                shown = time.monotonic()
        self._publish(tuple(lines.values()), began)

    def _walk(self) -> list[Line] | str:
        """All runs that there are, not read yet but where a folder may not be entered; or why none can be found."""
        try:
            found = list(directories(self.folder))
        except (FedkeelError, OSError) as error:
            return str(error)
        lines = []
        for one in found:
            directory = one.directory if isinstance(one, Overview) else one
            relative = os.path.relpath(directory, self.folder)
            name = directory.resolve().name if relative == "." else relative
            lines.append(Line(_key(relative), directory, name, one if isinstance(one, Overview) else None))
        return lines

    def _publish(self, lines: tuple[Line, ...], whole: float | None, trouble: str = "") -> None:
        with self._lock:
            before = self._seen
            whole = before.whole if whole is None else whole
            same = (before.lines, before.trouble, before.whole is None) == (lines, trouble, whole is None)
            self._seen = Seen(lines, before.version if same else before.version + 1, whole, trouble)
            self._named.set()


def _kept(known: Line | None, line: Line) -> Overview | None:
    """What was known of a run stays until it is read again, so that rows do not come and go."""
    return line.overview if line.overview is not None or known is None else known.overview


def _key(relative: str) -> str:
    return hashlib.sha256(os.fsencode(relative)).hexdigest()[:32]
