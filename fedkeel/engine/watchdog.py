"""Whether a worker still works: by what the system says of its process, never by how long a client takes.

A stopped process (SIGSTOP, a shell's job control) would keep a round waiting for ever, and so would one that sleeps
without ever computing. Where the system does not say (no ``/proc``), nobody is suspected.

Sleep has a particular cause in a process that was forked while other threads were at work: a lock that one of them held
is held in it for ever. Such a process is doubtful until it has once given an answer.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 30.0
"""Seconds for which a worker may be stopped before another takes its place."""
IDLE = 20
"""So many times longer a worker may sleep without computing at all: it could wait for a disk or a device. A doubtful
one may not."""
LOOKS = 10
"""How often a worker is looked at within the patience."""


@dataclass(frozen=True)
class Seen:
    """What the system says of a process."""

    state: str
    """R running, S sleeping, D waiting for a device, T stopped, t traced, Z gone, …"""
    ticks: int
    """Processor time used so far."""


def look(pid: int) -> Seen | None:
    """None where the system does not say."""
    try:
        # The name stands in parentheses and may contain anything, parentheses included.
        values = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        return Seen(values[0], int(values[11]) + int(values[12]))
    except (OSError, ValueError, IndexError):
        return None


@dataclass
class Watch:
    """One worker under observation."""

    ticks: int = -1
    stopped: float = 0.0
    """Seconds for which it was seen stopped without a break."""
    idle: float = 0.0
    """Seconds for which it was seen asleep, without having computed anything."""

    def complaint(self, pid: int, passed: float, patience: float, doubtful: bool = False) -> str | None:
        """Look again, ``passed`` seconds after the last time; why it should be replaced, if it should."""
        seen = look(pid)
        asleep = seen is not None and seen.state == "S" and seen.ticks == self.ticks
        self.stopped = self.stopped + passed if seen is not None and seen.state == "T" else 0.0
        self.idle = self.idle + passed if asleep else 0.0
        self.ticks = -1 if seen is None else seen.ticks
        if self.stopped >= patience:
            return f"was stopped for {self.stopped:.0f} s (state T)"
        if self.idle >= patience * (1 if doubtful else IDLE):
            return f"slept for {self.idle:.0f} s without computing (state S)"
        return None


@dataclass
class Watchdog:
    """Looks at busy workers now and then."""

    patience: float = PATIENCE
    _watches: dict[int, Watch] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self.patience / LOOKS

    def restart(self) -> None:
        """Forget what was seen: nobody was waited for since."""
        self._watches.clear()
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._last >= self.interval

    def complaints(self, busy: list[int], doubtful: Collection[int] = ()) -> dict[int, str]:
        """What is wrong with which of the processes that should be computing."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        # If this process was stopped itself, so were the workers; they are given time to go on as well.
        passed = min(passed, 2 * self.interval)
        self._watches = {pid: self._watches.get(pid, Watch()) for pid in busy}
        found = {
            pid: watch.complaint(pid, passed, self.patience, pid in doubtful) for pid, watch in self._watches.items()
        }
        return {pid: text for pid, text in found.items() if text is not None}
