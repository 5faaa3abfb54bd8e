"""A run stopped after any round and resumed is the run that was never stopped, to the bit."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.engine.pool import Pool
from fedkeel.engine.rounds import RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.runs.fit import check_fits
from fedkeel.runs.history import History
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store
from fedkeel.state.rows import Rows

ROUNDS = 4
EVALUATION = Evaluation(train=True, clients=True, initial=True)


def bits(value: Any) -> Any:
    """A state's value as something that is equal only if all bits are, NaN included."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, Rows):
        return {client: bits(row) for client, row in value.items()}
    return repr(value)


def everything(state: RunState) -> dict[str, Any]:
    values = {"t": state.t, "b": bits(state.b), "client_buffers": bits(state.client_buffers)}
    values |= {f"server.{name}": bits(value) for name, value in state.server.items()}
    if state.averaged is not None:
        values |= {f"average.{name}": bits(value) for name, value in vars(state.averaged).items()}
    return values | {f"client.{name}": bits(rows) for name, rows in state.clients.items()}


def timeless(history: History) -> str:
    """Everything measured, as text, because NaN differs from itself."""
    return repr([replace(summary, seconds=0.0) for summary in history.rounds]) + repr(history.measured)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_stopped_after_every_round(name: str, tmp_path: Path) -> None:
    """Each round in a simulation and a store of its own, serial and pool in turn: nothing can survive but the file."""
    whole, expected = execute(tiny_simulation(make_algorithm(name), participation=0.6, rounds=ROUNDS), EVALUATION)

    store, state, history = Store.create(tmp_path), None, None
    for round in range(1, ROUNDS + 1):
        simulation = tiny_simulation(make_algorithm(name), participation=0.6, rounds=ROUNDS)
        if round % 2 == 0:
            simulation.executor = Pool(workers=2)
        if state is not None and history is not None:
            check_fits(simulation, state, history, "the run")
        execute(simulation, EVALUATION, store, None, state, history, stop=lambda: True)
        simulation.executor.close()
        store.close()
        store = Store.open(tmp_path)
        state, history = store.read_state(), store.history()
        assert state is not None
        assert state.t == round
    store.close()
    assert state is not None
    assert history is not None
    assert everything(state) == everything(whole)
    assert timeless(history) == timeless(expected)
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT count(DISTINCT round) FROM clients").fetchone() == (ROUNDS,)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "one_client" not in ALGORITHMS[name].needs])
def test_stacked_runs_go_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Groups are made from the round alone, so that a resumed run makes the same ones."""

    def simulation() -> Simulation:
        made = tiny_simulation(make_algorithm(name), participation=0.8, rounds=ROUNDS)
        made.executor = Pool(workers=1, stack=True)
        return made

    whole, _ = execute(simulation(), EVALUATION)
    store = Store.create(tmp_path)
    execute(simulation(), EVALUATION, store, stop=lambda: True)
    store.close()
    store = Store.open(tmp_path)
    resumed, _ = execute(simulation(), EVALUATION, store, None, store.read_state(), store.history())
    store.close()
    assert everything(resumed) == everything(whole)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "mifa"])
def test_every_kept_round_comes_back_and_goes_on(name: str, tmp_path: Path) -> None:
    """Kept rounds share unchanged rows; each still gives the state of its time, and goes on to the same end."""
    simulation = tiny_simulation(make_algorithm(name), participation=0.4, rounds=6)
    states = {0: simulation.start()}

    store = Store.create(tmp_path)
    for _ in range(6):
        states[max(states) + 1], _ = simulation.step(states[max(states)])
    for t, state in states.items():
        store.commit(state, None, None, [], keep=t % 2 == 0)
    assert store.kept_rounds() == [0, 2, 4, 6]
    for t in (0, 2, 4, 6):
        read = store.read_state(t)
        assert read is not None
        assert everything(read) == everything(states[t])
    store.close()


def test_a_row_dropped_after_a_kept_round_is_there_in_it_and_gone_in_the_next(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("scaffold"))
    state, _ = simulation.step(simulation.start())
    fewer = replace(state, t=2, clients={name: rows.drop([0, 2]) for name, rows in state.clients.items()})
    store.commit(state, None, None, [], keep=True)
    store.commit(fewer, None, None, [], keep=True)
    store.commit(replace(fewer, t=3), None, None, [], keep=True)
    store.commit(replace(fewer, t=4), None, None, [])  # so that kept rounds are read from where they are kept
    for t, expected in ((1, {0, 1, 2, 3, 4}), (2, {1, 3, 4}), (3, {1, 3, 4})):
        read = store.read_state(t)
        assert read is not None
        assert set(read.clients["c"]) == expected
    store.close()
