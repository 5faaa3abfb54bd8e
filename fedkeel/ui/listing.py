"""Which runs a list shows, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fedkeel.runs.overview import Overview
from fedkeel.ui.catalogue import Line

PAGE = 100
"""Rows of a page."""
STATES = ("running", "finished", "stopped", "interrupted", "damaged")
COLUMNS: dict[str, tuple[str, Callable[[Overview], Any]]] = {
    "name": ("run", lambda run: run.name),
    "state": ("state", lambda run: run.state),
    "algorithm": ("algorithm", lambda run: run.algorithm),
    "data": ("data", lambda run: run.data),
    "seed": ("seed", lambda run: -1 if run.seed is None else run.seed),
    "rounds": ("rounds", lambda run: run.done),
    "last": ("last", lambda run: _known(run.accuracy.last)),
    "best": ("best", lambda run: _known(run.accuracy.best)),
    "bytes": ("MB", lambda run: run.bytes),
    "time": ("time", lambda run: run.seconds),
}
"""What a list is sorted by: heading and value."""
FALLING = ("rounds", "last", "best", "bytes", "time")
"""Of these, the largest come first unless asked otherwise."""


@dataclass(frozen=True)
class Query:
    """What a person asked of the list."""

    text: str = ""
    state: str = ""
    sort: str = "name"
    down: bool = False
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """From an address; what it cannot mean is left out."""
        sort = given.get("sort", "name")
        sort = sort if sort in COLUMNS else "name"
        order = given.get("order", "")
        state, page = given.get("state", ""), given.get("page", "1")
        return cls(
            given.get("q", "")[:200],
            state if state in STATES else "",
            sort,
            order == "down" if order in ("up", "down") else sort in FALLING,
            min(max(int(page), 1), 10**6) if page.isascii() and page.isdecimal() and len(page) < 8 else 1,
        )

    def address(self, **other: Any) -> str:
        """Where the same list is, with something else in it."""
        values = {"q": self.text, "state": self.state, "sort": self.sort, "order": "down" if self.down else "up"}
        values |= {"page": str(self.page)} | {name: str(value) for name, value in other.items()}
        shown = {name: value for name, value in values.items() if value and (name, value) != ("page", "1")}
        return "/?" + urlencode(shown)

    def turned(self, column: str) -> str:
        """Where the list sorted by a column is: its usual order first, then the other."""
        down = not self.down if column == self.sort else column in FALLING
        return self.address(sort=column, order="down" if down else "up", page=1)

    def choose(self, lines: Sequence[Line]) -> list[Line]:
        """The runs that are asked for, in order; those that were not read yet come last, and are in no state."""
        words = self.text.lower().split()
        found = [line for line in lines if all(word in _text(line) for word in words)]
        if self.state:
            found = [line for line in found if line.overview is not None and line.overview.state == self.state]
        value = COLUMNS[self.sort][1]
        read = [(line.overview, line) for line in found if line.overview is not None]
        # Twice, because Python's sort keeps the order of equals: by name, then by what is asked for.
        read.sort(key=lambda pair: pair[1].name)
        read.sort(key=lambda pair: value(pair[0]), reverse=self.down)
        return [line for _, line in read] + [line for line in found if line.overview is None]


def _text(line: Line) -> str:
    run = line.overview
    words = [line.name] if run is None else [line.name, run.algorithm, run.data, run.state, f"seed {run.seed}"]
    return " ".join(words).lower()


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value
