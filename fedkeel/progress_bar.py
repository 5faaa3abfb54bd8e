"""How a run goes, for whoever called it from Python: a bar in a notebook, a line in a terminal.

fk.train("feddc", data=fed, rounds=100, watch=fk.progress())
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from fedkeel.errors import printable
from fedkeel.runs.runner import Progress
from fedkeel.runs.watching import About, Follower

EVERY = 0.2
"""Seconds between two looks of a person."""
Show = Callable[[str, str], None]
"""Shows the latest state in the place of the one before: as HTML, and as text."""


def progress(show: Show | None = None) -> Follower:
    """A watcher that shows round, accuracy and time left, in place.

    In a notebook it is a bar, in a terminal a line; where neither is, as in a log file, nothing but the end is
    written. ``show(html, text)`` may be given to show it elsewhere.
    """
    return _Shown(show)


class _Shown(Follower):
    def __init__(self, show: Show | None) -> None:
        self._given = show
        self._show: Show = show or (lambda html, text: None)
        self._name = ""
        self._before = 0
        self._began = self._told = 0.0
        self._last: Progress | None = None
        self._accuracy = math.nan

    def begin(self, about: About) -> None:
        self._show = self._given or _notebook() or _terminal()
        self._name, self._before = printable(about.name), len(about.history.rounds)
        self._began, self._told, self._last = time.monotonic(), -math.inf, None
        self._accuracy = math.nan

    def __call__(self, progress: Progress, /) -> None:
        self._last = progress
        tested = [m.accuracy for m in progress.measured if m.split == "test"]
        self._accuracy = tested[0] if tested else self._accuracy
        if time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            self._show(*self._now(""))

    def end(self, how: str) -> None:
        if self._last is not None:
            self._show(*self._now(how))
        if isinstance(self._show, _Line):
            self._show.end()

    def _now(self, how: str) -> tuple[str, str]:
        assert self._last is not None
        done, of = self._last.round, self._last.rounds
        took = time.monotonic() - self._began
        left = took / max(1, done - self._before) * (of - done)
        parts = [f"round {done} of {of}"]
        parts += [] if math.isnan(self._accuracy) else [f"accuracy {self._accuracy:.2%}"]
        parts.append(f"{how} after {took:.0f} s" if how else f"about {left:.0f} s left")
        text = f"{self._name}: {' · '.join(parts)}"
        bar = f'<progress value="{done}" max="{of}" aria-label="{escape(text)}"></progress>'
        return f"<div>{bar} {escape(text)}</div>", text


def _notebook() -> Show | None:
    """The place for output of the running cell; None outside of a notebook."""
    shell = sys.modules.get("IPython")
    running: Any = None if shell is None else shell.get_ipython()
    if running is None or not hasattr(running, "kernel"):
        return None
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda html, text: handle.update(HTML(html))


class _Line:
    """A line of a terminal that is written over; elsewhere only the last state."""

    def __init__(self) -> None:
        self._last = ""
        self._width = 0
        self._live = sys.stderr.isatty()

    def __call__(self, html: str, text: str) -> None:
        self._last = text
        if self._live:
            sys.stderr.write(f"\r{text:<{self._width}}")
            sys.stderr.flush()
            self._width = len(text)

    def end(self) -> None:
        """Nothing more follows."""
        if self._last:
            sys.stderr.write("\n" if self._live else f"{self._last}\n")


def _terminal() -> Show:
    return _Line()
