"""Runs that are started, stopped, resumed and forked from the page.

A run is a process of its own, ``fedkeel run``, in a session of its own: it outlives the page and its server, as it
outlives a terminal that started it with nohup, and goes on to its end unless it is stopped. Whatever it prints is kept
beside the runs, in ``.ui``. Algorithms named ``module:Class`` are not started from a page: whoever can reach the page
could then run code.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fedkeel import changes, config
from fedkeel.errors import FedkeelError, InputError
from fedkeel.runs import lock
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.store import Store, holds_run

FOLDER = ".ui"
"""Beside the runs: experiments as they were sent, and what their processes printed."""
FILE = "experiment.toml"
"""What complaints call the text of the form."""
TAIL = 4000
"""Characters of output that are shown."""


@dataclass
class Job:
    """A process that was started from the page."""

    number: int
    what: str
    labels: tuple[str, ...]
    out: Path
    """The folder that its runs are in."""
    log: Path
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.time)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it goes on."""
        return self.process.poll()

    @property
    def output(self) -> str:
        """The end of what it printed."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        except OSError:
            return ""


def planned(text: str) -> list[config.Planned]:
    """The runs of an experiment, checked as ``fedkeel run`` checks a file; an error names the line."""
    if len(text.encode()) > config.LARGEST_FILE:
        raise InputError(f"an experiment must have at most {config.LARGEST_FILE:,} bytes.")
    return config.plan_text(text, FILE)


class Launcher:
    """Starts and stops processes for the runs of a folder."""

    def __init__(self, folder: Path, data_dir: Path | None = None) -> None:
        self.folder = folder.absolute()
        self.data_dir = data_dir
        self._jobs: list[Job] = []
        self._asked: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    @property
    def jobs(self) -> list[Job]:
        """The newest first."""
        return self._jobs[::-1]

    def job(self, number: int) -> Job | None:
        return next((job for job in self._jobs if job.number == number), None)

    def start(self, text: str) -> Job:
        """Run an experiment, or all runs of its sweep."""
        runs = planned(text)
        _check_free([run.experiment.label for run in runs], self.folder)
        return self._launch(text, runs, self.folder, f"run of {_named(runs)}", [])

    def fork(self, text: str, parent: Path, round: int | None) -> Job:
        """Start a new run from the state of another."""
        runs = planned(text)
        if len(runs) != 1:
            raise InputError(f"a fork is one run, this experiment stands for {len(runs)}: leave its sweep out.")
        label = runs[0].experiment.label
        _check_free([label], self.folder)
        source = str(parent.absolute()) if round is None else f"{parent.absolute()}@{round}"
        if round is not None and Path(source).is_dir():
            raise InputError(f"{source} is a folder, so that round {round} of {parent.name} has no name; rename it.")
        return self._launch(text, runs, self.folder, f"fork of {parent.name} as {label}", ["--fork", source])

    def resume(self, text: str, directory: Path) -> Job:
        """Let a run go on, with the changes that are allowed to one that goes on."""
        runs = planned(text)
        if len(runs) != 1:
            raise InputError(f"what goes on is one run, this experiment stands for {len(runs)}: leave its sweep out.")
        if lock.is_held(directory):
            raise InputError(f"the run {directory.name} is going on already.")
        asked = runs[0].experiment
        with closing(Store.reading(directory)) as store:
            was, done = changes.stored(store.configuration(), directory), store.rounds_done()
        changes.allowed(was, asked, done, directory)
        more = ["--resume"]
        if asked.label != directory.name:  # a folder that was renamed, or a name that was changed
            more += ["--set", f"name={config.toml(directory.name)}"]
            runs = config.plan_text(text, FILE, [more[-1]])
        return self._launch(text, runs, directory.absolute().parent, f"resumed {directory.name}", more)

    def stop(self, directory: Path) -> int:
        """Ask the process of a run to stop after its round, which is kept; its number.

        Only a ``fedkeel run`` is asked: a notebook or a program of one's own would take the signal for something else.
        """
        process = lock.holder(directory)
        if process is None:
            raise InputError(f"the run {directory.name} is not going on.")
        with self._lock:
            holding = (process, _since(directory))
            if holding in self._asked:
                raise InputError(f"process {process} was asked already, and stops after its round.")
            if process <= 1 or not (self._is_own(process) or is_command(process)):
                raise InputError(
                    f"the run {directory.name} is in the hands of process {process}, which is no `fedkeel run` of this "
                    "machine; stop it where it was started."
                )
            _interrupt(process, directory)
            self._asked.add(holding)
        return process

    def _is_own(self, process: int) -> bool:
        return any(job.process.pid == process and job.code is None for job in self._jobs)

    def _launch(self, text: str, runs: Sequence[config.Planned], out: Path, what: str, more: Sequence[str]) -> Job:
        folder = self.folder / FOLDER
        with self._lock:
            number = len(self._jobs) + 1
            stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
            file, log = folder / f"{stem}.toml", folder / f"{stem}.log"
            command = [sys.executable, "-P", "-m", "fedkeel", "run", str(file), "--out", str(out), "--quiet", *more]
            if self.data_dir is not None:
                command += ["--data-dir", str(self.data_dir)]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                    )
            except OSError as error:
                raise InputError(f"the run cannot be started: {error.strerror or error}.") from None
            job = Job(number, what, tuple(run.experiment.label for run in runs), out, log, process)
            self._jobs.append(job)
        return job


def is_command(process: int) -> bool:
    """Whether a process is ``fedkeel run …``, as far as the system tells."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    names = [os.path.basename(word) for word in words]
    return any(name == b"fedkeel" and after == b"run" for name, after in zip(names, words[1:], strict=False))


def _interrupt(process: int, directory: Path) -> None:
    """SIGINT to the process that holds a run, and to no other that has got its number in the meantime."""
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(process, signal.SIGINT)
            return
        handle = os.pidfd_open(process)
        try:
            if lock.holder(directory) == process:
                signal.pidfd_send_signal(handle, signal.SIGINT)
        finally:
            os.close(handle)
    except ProcessLookupError:
        return  # it has just ended
    except OSError as error:
        raise InputError(f"process {process} cannot be asked to stop: {error.strerror or error}.") from None


def _since(directory: Path) -> int:
    """When the lock of a run was last taken: another process may have the same number later."""
    try:
        return (directory / lock.FILE).stat().st_mtime_ns
    except OSError:
        return 0


def _check_free(labels: Sequence[str], out: Path) -> None:
    for label in labels:
        if _is_run(out / label):
            raise InputError(
                f"{label} is there already: give the new run another name (name = '…' at the top), or resume that one."
            )


def _is_run(directory: Path) -> bool:
    try:
        return holds_run(directory)
    except FedkeelError:
        return True


def _named(runs: Sequence[config.Planned]) -> str:
    first = runs[0].experiment.label
    return first if len(runs) == 1 else f"{first} and {len(runs) - 1} more"
