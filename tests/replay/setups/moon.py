"""MOON and MOONM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.engine.rounds import RunState
from fedkeel.state.rows import Rows
from tests.replay.run import Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace, Vectors


def _moon_repo(trace: Trace) -> Setup:
    hyper = trace.hyper
    params = keep(hyper, "mu", T="temperature", buffer="model_buffer_size")
    if hyper.get("server_momentum"):
        algorithm = make_algorithm("moonm", mode="code", beta=hyper["server_momentum"], **params)
    else:
        algorithm = make_algorithm("moon", mode="code", **params)

    def prepare(state: RunState, vectors: Vectors) -> RunState:
        """Every client of the program starts with a random model of its own, which fills its pool."""
        own = [vectors.split(vector) for vector in trace.arrays["client_nets_init"]]
        rows = {}
        for name, part in (("prev", 0), ("prev_b", 1)):
            models = [torch.from_numpy(pair[part]).to(state.server.w.dtype) for pair in own]
            rows[name] = Rows({i: model.repeat(params["buffer"], 1) for i, model in enumerate(models)})
        return replace(state, clients=state.clients | rows)

    readers = {
        "pool": _pool,
        "pool_size": lambda replay: np.array([_pool_size(row) for row in _pool(replay)]),
        "server_momentum_final": lambda replay: replay.server("v")[-1],
    }
    return Setup(algorithm, work(hyper) | {"drop_last": True}, readers, prepare=prepare)


def _pool(replay: Replay) -> np.ndarray:
    """The previous models as used in round t, oldest first, NaN in slots not filled yet [R, B, N, P]."""
    simulation = replay.simulation
    everybody = range(simulation.federation.N)
    template = simulation.algorithm.client_init(simulation.problem)
    used = []
    for t, state in enumerate(replay.states[:-1]):
        clients = State(**{name: rows.take(everybody, template[name]) for name, rows in state.clients.items()})
        prev, prev_b, _, valid = simulation.algorithm.contrasted(clients, t)  # type: ignore[attr-defined]
        models = np.full((valid.shape[1], len(everybody), replay.vectors.length), np.nan)
        for i in everybody:
            filled = [slot for slot in range(valid.shape[1]) if valid[i, slot]]
            for place, slot in enumerate(filled):
                models[place, i] = replay.vectors.join(prev[i, slot], prev_b[i, slot])
        used.append(models)
    return np.stack(used)


def _pool_size(models: np.ndarray) -> int:
    return int((~np.isnan(models[:, 0, 0])).sum())


SETUPS = {("moon", "moonrepo"): _moon_repo}
