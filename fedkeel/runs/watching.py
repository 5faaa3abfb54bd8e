"""Who follows a run beside the run itself: functions that are told of rounds, and watchers that also begin and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedkeel.runs.history import History
from fedkeel.runs.runner import Progress, Watcher

FAILED = "failed"
"""How a run ended that an error ended; else it is what ``Run.ended`` says."""


@dataclass(frozen=True)
class About:
    """What a watcher may want to know of a run before its first round from now."""

    name: str
    directory: Path | None
    """Where the run is kept; None for one in memory."""
    settings: Mapping[str, object]
    """Everything that the run was started with, by dotted field."""
    history: History
    """What it did before; empty unless it goes on."""


class Follower(ABC):
    """A watcher that is also told of the beginning and the end of a run, in the thread that runs it."""

    @abstractmethod
    def begin(self, about: About) -> None:
        """Rounds will follow."""

    @abstractmethod
    def __call__(self, progress: Progress, /) -> None:
        """A round is committed."""

    @abstractmethod
    def end(self, how: str) -> None:
        """No more rounds follow; why, as ``Run.ended`` says it, or ``failed``."""


class Several(Follower):
    """Watchers as one, told in their order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def __call__(self, progress: Progress, /) -> None:
        for watcher in self._watchers:
            watcher(progress)

    def begin(self, about: About) -> None:
        for watcher in self._watchers:
            if isinstance(watcher, Follower):
                watcher.begin(about)

    def end(self, how: str) -> None:
        for watcher in self._watchers:
            if isinstance(watcher, Follower):
                watcher.end(how)


class Outcome:
    """How a run ended, to be set by whoever runs it."""

    how = FAILED


@contextmanager
def followed(watch: Watcher | None, about: About) -> Iterator[Outcome]:
    """Tell a follower of the beginning and, whatever happens in the block, of the end."""
    outcome = Outcome()
    if not isinstance(watch, Follower):
        yield outcome
        return
    watch.begin(about)
    try:
        yield outcome
    finally:
        watch.end(outcome.how)
