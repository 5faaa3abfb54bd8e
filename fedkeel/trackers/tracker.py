"""A tracker follows a run from a thread of its own: whatever becomes of it, the run neither waits for it nor ends.

One that fails is switched off with a notice. It is opened after the first round: by then the worker processes are made,
which should not be made beside threads, and a run that never had a round leaves nothing behind.
"""

from __future__ import annotations

import queue
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from fedkeel.errors import FedkeelError, InputError, shown
from fedkeel.notices import FedkeelWarning, notice
from fedkeel.runs.history import History, Measured, RoundSummary, mean
from fedkeel.runs.runner import Progress
from fedkeel.runs.watching import About, Follower

WAITING = 10_000
"""Rounds that may wait to be written; a tracker that falls further behind is switched off."""
PATIENCE = 20.0
"""Seconds that the end of a run waits for the last rounds to be written."""

Numbers = dict[str, float]
"""What is told of a round, by name: ``test/accuracy``, ``round/train_loss``, ``value/tau_bar``, …"""
Rows = list[tuple[int, Numbers]]
"""Numbers of rounds, in their order."""


class Writer(Protocol):
    """Writes into one run of a tracking library; used by one thread alone."""

    def write(self, rows: Rows) -> None:
        """Keep the numbers of some rounds."""

    def close(self, how: str) -> None:
        """The run ended: ``finished``, ``until``, ``stopped`` or ``failed``."""


Opening = Callable[[About], Writer]
"""Makes the writer for a run; for one that goes on, in the place where it was written before."""


class Tracker(Follower):
    """A watcher that hands what a run measures to a tracking library."""

    def __init__(self, name: str, modules: Sequence[str], opening: Opening) -> None:
        """``modules`` are what the library is imported by: they must be there, and are imported when a run begins."""
        for module in modules:
            if find_spec(module.partition(".")[0]) is None:
                raise InputError(
                    f"the tracker {name} needs {module.partition('.')[0]}, which is not installed: "
                    f"pip install 'fedkeel[{name}]'."
                )
        self.name = name
        self._modules, self._opening = modules, opening
        self._thread: threading.Thread | None = None
        self._waiting: queue.Queue[tuple[int, Numbers] | str] = queue.Queue()
        self._about: About | None = None
        self._failure: str | None = None
        self._off = True

    def begin(self, about: About) -> None:
        """Follow a run from here on; a tracker may follow several, one after the other."""
        self._about, self._thread, self._failure, self._off = about, None, None, False
        self._waiting = queue.Queue(WAITING)
        try:
            for module in self._modules:
                import_module(module)
        except Exception as error:
            self._failure = said(error)
            self._tell()

    def __call__(self, progress: Progress, /) -> None:
        self._tell()
        if self._off or self._about is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=_write_all,
                args=(self._opening, self._about, self._waiting, self._fail),
                name=f"fedkeel {self.name}",
                daemon=True,
            )
            self._thread.start()
        try:
            self._waiting.put_nowait((progress.round, numbers_of(progress.summary, progress.measured, progress.noted)))
        except queue.Full:
            self._failure = f"it is {WAITING} rounds behind"
            self._tell()

    def end(self, how: str) -> None:
        """Wait a little until everything is written."""
        if self._thread is not None and not self._off:
            try:
                self._waiting.put(how, timeout=PATIENCE)
                self._thread.join(PATIENCE)
            except queue.Full:
                pass
            if self._thread.is_alive() and self._failure is None:
                self._failure = f"it had not written everything {PATIENCE:.0f} s after the last round"
        self._tell()
        self._about, self._off = None, True

    def _fail(self, error: BaseException, whose: queue.Queue[Any]) -> None:
        if whose is self._waiting:  # else it was of a run that ended meanwhile
            self._failure = said(error)

    def _tell(self) -> None:
        """Switch off after a failure, and say so once."""
        if self._failure is None or self._off:
            return
        self._off = True
        text = f"the tracker {self.name} was switched off, {self._failure}; the run goes on and keeps everything itself"
        try:
            notice("tracker", text)
        except FedkeelError:  # the diary cannot be written either
            warnings.warn(text, FedkeelWarning, stacklevel=2)


def _write_all(
    opening: Opening,
    about: About,
    waiting: queue.Queue[tuple[int, Numbers] | str],
    fail: Callable[[BaseException, queue.Queue[Any]], None],
) -> None:
    """What the thread does: open, write whatever waits at once, close."""
    try:
        writer = opening(about)
        how = None
        while how is None:
            rows: Rows = []
            found: tuple[int, Numbers] | str | None = waiting.get()
            while found is not None and how is None:
                if isinstance(found, str):
                    how = found
                else:
                    rows.append(found)
                    try:
                        found = waiting.get_nowait()
                    except queue.Empty:
                        found = None
            if rows:
                writer.write(rows)
        writer.close(how)
    except BaseException as error:  # also what a library ends a program with: this thread is nobody's program
        fail(error, waiting)


def said(error: BaseException) -> str:
    """An error of somebody else's code in a few words."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {shown(text)[1:-1]}" if text else type(error).__name__


def numbers_of(summary: RoundSummary, measured: Sequence[Measured], noted: Mapping[str, Any]) -> Numbers:
    """A round in numbers under names; ``test/accuracy`` is of the reported model, the first that was measured.

    Values that the algorithm noted for each client are told as their mean.
    """
    found: Numbers = {f"round/{name}": float(value) for name, value in asdict(summary).items() if name != "round"}
    first = next((m.model for m in measured if m.split == "test"), None)
    for m in measured:
        of = m.split if m.model == first else f"{m.split} of {_safe(m.model)}"
        found |= {f"{of}/accuracy": m.accuracy, f"{of}/loss": m.loss}
        found |= {f"{of}/{_safe(name)}": float(value) for name, value in m.metrics.items()}
    for name, value in noted.items():
        each = isinstance(value, dict)
        found[f"{'mean value' if each else 'value'}/{_safe(name)}"] = mean(value.values()) if each else float(value)
    return found


def rows_of(history: History) -> Rows:
    """All rounds of a history."""
    measured: dict[int, list[Measured]] = {}
    for m in history.measured:
        measured.setdefault(m.round, []).append(m)
    return [(r.round, numbers_of(r, measured.get(r.round, []), history.noted.get(r.round, {}))) for r in history.rounds]


def _safe(name: str) -> str:
    """A name of anybody's as every library takes it; different names stay different."""
    return re.sub(r"[^\w .-]|^[. ]|[. ]$|_(?=[0-9a-f]+_)", lambda found: f"_{ord(found[0]):x}_", name)
