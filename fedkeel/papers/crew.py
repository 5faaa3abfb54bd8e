"""Several runs at once, in processes of their own that serve until their input ends.

What is to be run, and what becomes of it, is somebody else's affair: an ``Office``. A worker that dies costs the run
that it had, not the others.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedkeel.papers.process import Process, Run
from fedkeel.papers.worker import perform

LOOK = 0.5
"""Seconds between two looks at whether to stop."""


class Office(Protocol[Run]):
    """Knows what is to be run."""

    def next(self) -> tuple[Run, Any] | None:
        """A run that can begin, and its job; None if there is none, or none yet."""

    def told(self, run: Run, news: dict[str, Any]) -> bool:
        """Take in what is said of a run; whether that was the last word."""

    def failed(self, run: Run, why: str) -> None:
        """One run has no result."""


def cores() -> int:
    """How many runs go on beside each other, unless somebody says."""
    return os.cpu_count() or 1


def get_done(office: Office[Run], logs: Path, workers: int, stop: Callable[[], bool]) -> bool:
    """Everything that an office has, in so many processes (0: in this one); whether it was stopped before the end."""
    return _here(office, stop) if workers == 0 else _crew(office, logs, workers, stop)


def _here(office: Office[Run], stop: Callable[[], bool]) -> bool:
    """One run after the other in this process."""
    while not stop() and (found := office.next()) is not None:
        perform(found[1], partial(_tell, office, found[0]), stop)
    return stop()


def _tell(office: Office[Run], run: Run, news: dict[str, Any]) -> None:
    office.told(run, news)


def _crew(office: Office[Run], logs: Path, count: int, stop: Callable[[], bool]) -> bool:
    crew: list[Process[Run]] = []
    asked = False
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                if stop() and not asked:
                    asked = True
                    for process in crew:
                        process.ask_to_stop()
                while not asked and sum(process.run is not None for process in crew) < count:
                    found = office.next()
                    if found is None:
                        break
                    idle = next((process for process in crew if process.run is None), None)
                    if idle is None:
                        idle = Process(logs, str(len(crew)))
                        crew.append(idle)
                        selector.register(idle.output, selectors.EVENT_READ, idle)
                    idle.give(*found)
                if not any(process.run is not None for process in crew):
                    return asked
                for ready, _ in selector.select(LOOK):
                    if _heard(office, ready.data):
                        selector.unregister(ready.fileobj)
                        crew.remove(ready.data)
                        ready.data.close()
        finally:
            for process in crew:
                process.close()


def _heard(office: Office[Run], process: Process[Run]) -> bool:
    """Take in what a process says; whether it will say no more."""
    for news in process.news():
        if process.run is not None and office.told(process.run, news):
            process.run = None
    if process.has_ended and process.run is not None:
        office.failed(process.run, process.obituary())
    return process.has_ended
