"""Where a new run starts when it starts from an old one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fedkeel import arguments
from fedkeel.engine.rounds import Rounds, RunState
from fedkeel.errors import DataError, invalid
from fedkeel.notices import notice
from fedkeel.runs.fit import check_fits
from fedkeel.runs.history import History
from fedkeel.runs.store import Store


@dataclass(frozen=True)
class Fork:
    """A round of an old run; None is its last. ``other_data`` lets the new run have data that the old one had not."""

    directory: Path
    round: int | None = None
    other_data: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", arguments.path("fork.directory", self.directory))
        if self.round is not None:
            object.__setattr__(self, "round", arguments.whole("fork.round", self.round, 0))

    @classmethod
    def of(cls, given: Fork | str | Path | None) -> Fork | None:
        """What ``fork=`` names: a ``Fork``, a directory, or text as for ``parse``."""
        if given is None or isinstance(given, Fork):
            return given
        return cls.parse(given) if isinstance(given, str) else cls(arguments.path("fork", given))

    @classmethod
    def parse(cls, text: str) -> Fork:
        """``runs/old`` or ``runs/old@40``."""
        found = re.fullmatch(r"(.+)@(\d{1,9})", text)
        if found and not Path(text).is_dir():
            return cls(Path(found[1]), int(found[2]))
        return cls(Path(text))

    def read(self, source: Store, simulation: Rounds) -> tuple[RunState, History]:
        """The state and history that the new run begins with; they must fit it, and leave it something to do."""
        state = source.read_state(self.round)
        if state is None:
            raise DataError(f"the run in {self.directory} has no state yet; wait for its first round.")
        state = _with_own_average(state, simulation, self.directory)
        history = source.history(until=state.t)
        check_fits(simulation, state, history, f"the state of {self.directory} after round {state.t}")
        if simulation.training.rounds <= state.t:
            allowed = f"above {state.t}, the round that the new run starts from"
            raise invalid("training.rounds", allowed, simulation.training.rounds)
        return state, history


def _with_own_average(state: RunState, simulation: Rounds, directory: Path) -> RunState:
    """The state with an average over rounds only if it is the one that the new run asks for; another begins anew."""
    averaging, averaged = simulation.server.averaging, state.averaged
    if averaged is not None and str(averaging) == averaged.rule:
        return state
    if averaging is not None and state.t >= averaging.first:
        before = "has none" if averaged is None else f"has another ({averaged.rule})"
        notice("average", f"the {averaging} begins anew after round {state.t}: the run in {directory} {before}")
    return replace(state, averaged=None)
