"""Several runs at once, in processes of their own that serve until their input ends.

What is to be run, and what becomes of it, is somebody else's affair: an ``Office``. A worker that dies costs the run
that it had, not the others.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import fedkeel
from fedkeel.papers.worker import Job, perform

LOOK = 0.5
"""Seconds between two looks at whether to stop."""
Run = TypeVar("Run")
"""Whatever an office knows a run by."""


class Office(Protocol[Run]):
    """Knows what is to be run."""

    def next(self) -> tuple[Run, Job] | None:
        """A run that can begin; None if there is none, or none yet."""

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
                        idle = Process(logs, len(crew))
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


class Process(Generic[Run]):
    """A worker, and the run that it has at the moment."""

    def __init__(self, logs: Path, number: int) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"worker{number}.log"
        self.run: Run | None = None
        self.has_ended = False
        self._rest = b""
        ours = str(Path(fedkeel.__file__).resolve().parents[1])
        path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedkeel.papers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                bufsize=0,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout

    def give(self, run: Run, job: Job) -> None:
        """Let it do a run."""
        self.run = run
        self._say(json.dumps(asdict(job)).encode())

    def ask_to_stop(self) -> None:
        """After the round that it is at."""
        self._say(b"")

    def _say(self, line: bytes) -> None:
        with suppress(OSError):  # it has ended; its output says so, too
            self._input.write(line + b"\n")

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has said since; also notes when it says no more."""
        read = os.read(self.output.fileno(), 1 << 16)
        self.has_ended = not read
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def obituary(self) -> str:
        """How it ended, for the run that it had."""
        code = self._process.wait()
        if code >= 0:
            return f"its process ended with exit code {code} ({self._log} may say why); the same command tries again."
        hint = ", perhaps for want of memory (--workers 1 needs less)" if code == -9 else ""
        return f"its process was ended by signal {-code}{hint}; the same command goes on with it."

    def close(self) -> None:
        """Its input ends, and with that the process, at once."""
        for pipe in (self._input, self.output):
            with suppress(OSError):
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
