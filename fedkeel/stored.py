"""A run in its directory as things to measure: what it was built from, and the state after its last whole round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fedkeel import build, changes
from fedkeel.data.digest import differences, digests
from fedkeel.engine.rounds import RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError
from fedkeel.runs import same_data
from fedkeel.runs.fit import check_fits
from fedkeel.runs.history import History
from fedkeel.runs.store import Store


def read_run(
    directory: Path, data_dir: Path | None = None, allow_plugins: bool = False
) -> tuple[Simulation, RunState, History]:
    """A run of an experiment, which may be going on; nothing is written. Its data must be those that it began with."""
    with closing(Store.reading(directory)) as store:
        experiment = changes.stored(store.configuration(), directory)
        state = store.read_state()
        if state is None:
            raise DataError(f"the run in {directory} has no whole round yet; wait for its first.")
        history = store.history(state.t)
        before = same_data.recorded(store)
    simulation = build.make_simulation(experiment, data_dir, None, allow_plugins)
    changed = [] if before is None else differences(before, digests(simulation.federation))
    if changed:
        said = same_data.said(changed, simulation.federation.dataset.name)
        raise DataError(
            f"the run in {directory} cannot be measured: {said} those that it began with; put the old data back."
        )
    check_fits(simulation, state, history, f"the run in {directory}")
    return simulation, state, history
