"""Processes that this one starts, and that must not outlive it, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_DEATH_SIGNAL = 1
"""prctl's PR_SET_PDEATHSIG."""
PARENT = "FEDKEEL_PARENT"
MEMORY = "FEDKEEL_MEMORY"
GRACE = 10.0
"""Seconds that a process has to end by itself."""


def end_with_parent() -> None:
    """Let this process end when the one that started it does, also when that is killed."""
    parent = int(os.environ.get(PARENT, "0"))
    if not parent:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we could ask to be told
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), name="parent watch", daemon=True).start()


def _watch(parent: int) -> None:
    """A second look, for systems without a signal, and for a process that does not heed it."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(GRACE)
    os._exit(1)


def limit_memory() -> None:
    """Let this process have no more memory than the one that started it allows; requests for more then fail alone."""
    most = int(os.environ.get(MEMORY, "0"))
    if most and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Children:
    """Started processes, by name; leaving the ``with`` block ends all of them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a process whose output goes to ``name.log``; its number."""
        settings = {**os.environ, **(environment or {}), PARENT: str(os.getpid())}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=settings, start_new_session=True
            )
        return self._running[name].pid

    def ended(self) -> dict[str, int]:
        """Exit codes of those that are no more."""
        found = {name: process.poll() for name, process in self._running.items()}
        return {name: code for name, code in found.items() if code is not None}

    def last_words(self, name: str) -> str:
        """The last line that a process has printed."""
        try:
            lines = (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        """Ask all to end, the last first, and kill those that do not."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + GRACE
        for process in self._running.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
