"""A worker process that does one run after the other, and what is said to it and heard from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import fedkeel
from fedkeel.papers.worker import Job, SweepJob

LOGS = "logs"
"""The folder of what workers print, inside a working folder."""
Run = TypeVar("Run")
"""What whoever gives a job knows it by."""


class Process(Generic[Run]):
    """A worker, and the run that it has at the moment."""

    def __init__(self, logs: Path, name: str) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"worker{name}.log"
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

    def give(self, run: Run, job: Job | SweepJob) -> None:
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
