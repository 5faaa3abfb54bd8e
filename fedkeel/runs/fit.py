"""Whether a state read from disk is one that a simulation can go on from."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedkeel.engine.rounds import Rounds, RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError
from fedkeel.runs.history import History
from fedkeel.state.rows import Rows


def check_fits(simulation: Rounds, state: RunState, history: History, whose: str) -> None:
    """Refuse a state of another model, algorithm or federation, and one that is not at the end of its history."""
    if [summary.round for summary in history.rounds] != list(range(1, state.t + 1)):
        raise DataError(f"{whose} is not whole: its state is that after round {state.t}, its history is not.")
    if len(state.counted) > simulation.N:
        raise DataError(f"{whose} does not fit: it is one of {len(state.counted)} clients, not of {simulation.N}.")
    expected = simulation.start()
    template = simulation.algorithm.client_init(simulation.problem)
    _same("names of server values", sorted(expected.server), sorted(state.server), whose)
    for name, value in expected.server.items():
        grows = isinstance(value, Tensor) and simulation.task.d not in value.shape  # a list of clients, of scores, …
        kind = _loose_kind if grows else _kind
        _same(f"kind of server.{name}", kind(value), kind(state.server[name]), whose)
    _same("kind of buffers", _kind(expected.b), _kind(state.b), whose)
    _check_average(simulation, state, whose)
    _same("names of client values", sorted(expected.clients), sorted(state.clients), whose)
    tables = {f"client.{name}": (rows, template[name]) for name, rows in state.clients.items()}
    tables["client buffers"] = (state.client_buffers, expected.b)
    for name, (rows, example) in tables.items():
        _same(f"kind of {name}", "rows", _kind(rows), whose)
        for client, row in rows.items():
            if client not in range(simulation.N):
                raise DataError(f"{whose} does not fit: it has {name} of client {client} of {simulation.N}.")
            _same(f"kind of {name}[{client}]", _kind(example), _kind(row), whose)
    _same("names of the clock's values", sorted(expected.clock), sorted(state.clock), whose)
    for name, value in expected.clock.items():
        _same(f"kind of clock.{name}", _loose_kind(value), _loose_kind(state.clock[name]), whose)
    if isinstance(simulation, Simulation):
        _check_buffers(simulation, state, whose)


def _check_average(simulation: Rounds, state: RunState, whose: str) -> None:
    """Refuse an average of other models, by another rule, or of more models than there were rounds."""
    averaged, averaging = state.averaged, simulation.server.averaging
    if averaged is None:
        return
    _same("rule of the average over rounds", str(averaging), averaged.rule, whose)
    _same("kind of the average over rounds", _kind(state.server.w), _kind(averaged.w), whose)
    _same("kind of the averaged buffers", _kind(state.b), _kind(averaged.b), whose)
    if not (isinstance(averaged.models, int) and 0 < averaged.models <= state.t):
        raise DataError(f"{whose} is not whole: its average is one of {averaged.models} models of {state.t} rounds.")


def _check_buffers(simulation: Simulation, state: RunState, whose: str) -> None:
    """Refuse to go on without statistics that stayed with the clients, as those of a run over sites have."""
    if simulation.server.buffer_rule != "local" or not state.b.numel():
        return
    absent = [client for client in state.counted.nonzero().flatten().tolist() if client not in state.client_buffers]
    if absent:
        raise DataError(
            f"{whose} does not fit: client {absent[0]} took part, but the buffers that it keeps to itself are not "
            "here; a run over sites goes on over sites only."
        )


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "rows" if isinstance(value, Rows) else "number or text"


def _loose_kind(value: Any) -> str:
    return f"{value.dtype}, {value.dim()} axes" if isinstance(value, Tensor) else _kind(value)


def _same(what: str, expected: object, got: object, whose: str) -> None:
    if expected != got:
        raise DataError(
            f"{whose} does not fit this model, algorithm and data: the {what} must be {expected}, got {got}."
        )
