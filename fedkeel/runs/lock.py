"""One process at a time in a run's directory.

The kernel holds the lock and lets go of it when the process ends, however it ends; the file beside it only says who.
A record lock (``lockf``) stays with this process: workers that are forked later neither inherit nor prolong it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import struct
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from fedkeel.errors import FedkeelError

FILE = "run.lock"
_held_here: set[tuple[int, int, int]] = set()
"""Process and file of every lock held; record locks do not see a second holder in the same process."""
_looking = Lock()
"""Closing any handle of a file releases this process's lock on it, so nobody looks while another thread takes one."""


class LockedError(FedkeelError):
    """Another process works in the directory of a run."""


class RunLock:
    """``with RunLock(directory): …``; ``LockedError`` says who holds it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: int | None = None
        self._key = (0, 0, 0)

    def __enter__(self) -> RunLock:
        with _looking:
            return self._taken()

    def _taken(self) -> RunLock:
        path = self.directory / FILE
        if path.exists() and _key(path.stat()) in _held_here:
            # Asked before opening: closing any handle of the file would release this process's lock.
            raise LockedError(f"the run in {self.directory} is already going on in this process; wait until it ends.")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LockedError(
                f"the run directory {self.directory} cannot be locked: {error.strerror}; "
                "make it writable, or choose another with --out."
            ) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.pread(file, 4096, 0))
            os.close(file)
            raise LockedError(
                f"the run in {self.directory} is held by {holder}; wait until it ends, or choose another directory "
                "with --out."
            ) from None
        self._file, self._key = file, _key(os.fstat(file))
        _held_here.add(self._key)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):  # on a full disk the lock holds all the same, only without a name
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps({"pid": os.getpid(), "since": since}).encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        with suppress(OSError):
            os.ftruncate(self._file, 0)
        _held_here.discard(self._key)
        os.close(self._file)


def is_held(directory: Path) -> bool:
    """Whether a process works in a directory. It is only asked: no lock is taken that could be in somebody's way."""
    return holder(directory) is not None


def holder(directory: Path) -> int | None:
    """The process that works in a directory, as the system knows it: 0 or less for one of another machine."""
    path = directory / FILE
    with _looking:
        try:
            if _key(path.stat()) in _held_here:
                return os.getpid()
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            asked = fcntl.fcntl(file, fcntl.F_GETLK, _described(fcntl.F_WRLCK))
        except OSError:  # a file system without locks, on which no run can have one
            return None
        finally:
            os.close(file)
    values = struct.unpack(_FLOCK, asked)
    return None if values[_TYPE] == fcntl.F_UNLCK else int(values[_PROCESS])


_LINUX = platform.system() == "Linux"
_FLOCK = "hhqqi4x" if _LINUX else "qqihh"
"""C's ``struct flock`` of a 64-bit system; the BSDs and macOS have another order."""
_TYPE, _PROCESS = (0, 4) if _LINUX else (3, 2)
"""Which of its values are the kind of lock and the process that holds it."""


def _described(kind: int) -> bytes:
    """A lock on a whole file as C's ``struct flock``."""
    if _LINUX:
        return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
    return struct.pack(_FLOCK, 0, 0, 0, kind, os.SEEK_SET)


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _holder(content: bytes) -> str:
    try:
        found = json.loads(content)
        return f"process {int(found['pid'])} since {str(found['since'])[:40]}"
    except (ValueError, KeyError, TypeError):
        return "another process"
