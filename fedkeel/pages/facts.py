"""What a report tells of a run beside its numbers: how it ended, where it was computed, what was noted on the way."""

from __future__ import annotations

import tomllib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fedkeel.plots.sources import Source
from fedkeel.runs import machine
from fedkeel.runs.overview import overview
from fedkeel.runs.store import Event, Store

ROUTINE = frozenset({"started", "resumed", "finished", "executor"})
"""Events that need nobody's attention."""


@dataclass(frozen=True)
class Facts:
    """Of one run."""

    name: str
    seed: int
    done: int
    rounds: int | None
    state: str
    """running, finished, stopped or interrupted; ``in memory`` of a run without a directory."""
    note: str = ""
    events: tuple[Event, ...] = ()
    machine: dict[str, str] = field(default_factory=dict)
    """By name, as stored."""
    versions: tuple[str, ...] = ()
    """Of fedkeel, which began the run and went on with it."""
    configuration: str = ""
    """As TOML."""

    @property
    def by_train(self) -> bool:
        """Whether the run is that of a Python call, which no file can repeat."""
        return "made_by" in tomllib.loads(self.configuration)

    @property
    def told(self) -> list[str]:
        """Everything in the diary that is not routine; what befell clients is counted."""
        own = [e for e in self.events if e.kind not in ROUTINE and not e.text.startswith("client ")]
        clients = Counter(e.kind for e in self.events if e.kind not in ROUTINE and e.text.startswith("client "))
        lines = list(dict.fromkeys(f"{e.text} ({e.kind}{f', round {e.round}' if e.round else ''})" for e in own))
        return lines + [f"{kind}: {count} times a client" for kind, count in clients.items()]


def facts_of(source: Source) -> Facts:
    """What is known of a run, which may be going on."""
    run = source.run
    done = len(run.history.rounds)
    if source.place is None:
        return Facts(run.name, run.seed, done, run.rounds, "in memory")
    line = overview(source.place)
    with closing(Store.reading(source.place)) as store:
        events, text, record = store.events(), store.configuration(), store.meta(machine.KEY)
    known = {} if record is None else machine.recorded(record, source.place).model_dump()
    return Facts(
        run.name,
        run.seed,
        done,
        run.rounds,
        line.state,
        line.note,
        tuple(events),
        {name: _said(value) for name, value in known.items()},
        tuple(dict.fromkeys(e.text for e in events if e.kind in ("started", "resumed") and e.text)),
        text,
    )


def _said(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return str(value)


def short_names(places: list[Path]) -> dict[Path, str]:
    """Directories as a page may name them: seen from the folder that holds them all, never from the machine's root."""
    if not places:
        return {}
    full = [place.resolve() for place in places]
    shared = full[0].parent
    while not all(one.is_relative_to(shared) and one != shared for one in full):
        shared = shared.parent
    return {place: one.relative_to(shared).as_posix() for place, one in zip(places, full, strict=True)}
