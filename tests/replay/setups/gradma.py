"""GradMA, GradMA-W and GradMA-S."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from fedkeel.algorithms.registry import algorithm_class, make_algorithm
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.engine.client import train_one
from fedkeel.learning import projection
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace

SWITCHES = ("beta1", "beta2", "m", "eta_g", "blocks", "prev_init", "weights", "rows", "rho_l", "rho_g")


def _members(replay: Replay) -> Iterator[tuple[int, State, int, int]]:
    """Round, server after it, place in the buffer and client."""
    for t, state in enumerate(replay.states[1:]):
        for place, client in enumerate(state.server.buf.tolist()):
            yield t, state.server, place, client


def _memory(later: int) -> Reader:
    """D of every client after each round, decayed ``later`` more times; NaN where there is none [R, N, P]."""

    def read(replay: Replay) -> np.ndarray:
        beta2 = replay.simulation.algorithm.params.beta2
        D = np.full((replay.trace.rounds, replay.simulation.federation.N, replay.vectors.length), np.nan)
        for t, server, place, client in _members(replay):
            D[t, client] = beta2 ** (int(server.age[place]) + later) * server.D[client].numpy()
        return D

    return read


def _counters(replay: Replay) -> np.ndarray:
    counters = np.zeros((replay.trace.rounds, replay.simulation.federation.N))
    for t, server, place, client in _members(replay):
        counters[t, client] = int(server.c[place])
    return counters


def _buffer(replay: Replay) -> np.ndarray:
    return np.asarray(_counters(replay) > 0)


def _momentum(replay: Replay) -> np.ndarray:
    """m before its projection, from what the server had and received [R, P]."""
    params = replay.simulation.algorithm.params
    rounds = zip(replay.states, replay.recorder.jobs, replay.recorder.outcomes, strict=False)
    return np.stack(
        [
            (
                params.beta1 * state.server.m
                + average(state.server.w - outcome.message.y, job.clients.weights(params.weights))
            ).numpy()
            for state, job, outcome in rounds
        ]
    )


def _server_active(replay: Replay) -> np.ndarray:
    """Constraints of each round's server problem with a positive multiplier [R]."""
    active = np.zeros(replay.trace.rounds)
    for t, m in enumerate(torch.from_numpy(_momentum(replay))):
        server = replay.states[t + 1].server
        directions = [server.D[i] for i in server.buf.tolist()]
        with mock.patch.object(projection, "_dual", wraps=projection._dual) as solve:
            projection.project(m, directions, 0.0, server.bounds)
        active[t] = sum(int((projection._dual(*call.args) > 0).sum()) for call in solve.call_args_list)
    return active


def _worker_active(replay: Replay) -> np.ndarray:
    """Constraints with a positive multiplier over all steps of each worker; 0 for the absent [R, N]."""
    active = np.zeros((replay.trace.rounds, replay.simulation.federation.N))
    solve = projection.multipliers

    for t, job in enumerate(replay.recorder.jobs):
        for i, client in enumerate(job.clients.ids):

            def counted(*problems: Any, at: tuple[int, int] = (t, client)) -> projection.Matrix:
                steps = solve(*problems)
                active[at] += sum(c > 0 for own in steps for c in own)
                return steps

            with mock.patch.object(projection, "multipliers", counted):
                train_one(job, i)
    return active


SERVER: dict[str, Reader] = {
    "server_m": _momentum,
    "server_m_tilde": lambda replay: replay.server("m"),
    "memory_D": _memory(later=0),
    "memory_D_after_decay": _memory(later=1),
    "counters": _counters,
    "buffer_mask": _buffer,
    "server_active": _server_active,
}
WORKER: dict[str, Reader] = {"last_local": Replay.last_local, "worker_active": _worker_active}
READERS = SERVER | WORKER | {"global_default_tol": Replay.global_vectors}


def _repo(trace: Trace) -> Setup:
    hyper = trace.hyper
    fields = algorithm_class(trace.algorithm).Params.model_fields
    named = {"beta1": "beta_1", "beta2": "beta_2", "m": "memory_num", "eta_g": "server_lr"}
    params = keep(hyper, "rho_l", "rho_g", **named)
    algorithm = make_algorithm(trace.algorithm, mode="code", **{k: v for k, v in params.items() if k in fields})
    training = work(hyper) | {"steps": hyper["local_steps"], "weight_decay": hyper["weight_decay_on_weights_only"]}
    # The program's own solver tolerance, used for global_default_tol and in single precision, is loose.
    tight, loose = (1e-5, 5e-3) if hyper["lr"] >= 1 else (1e-8, 1e-4)
    return Setup(algorithm, training, READERS, tight, {"global_default_tol": loose, "global_f32": loose})


def _spec(trace: Trace) -> Setup:
    fields = algorithm_class(trace.algorithm).Params.model_fields
    params = {name: value for name, value in keep(trace.hyper, *SWITCHES).items() if name in fields}
    if trace.meta["mode"] == "code":
        params["mode"] = "code"
    algorithm = make_algorithm(trace.algorithm, **params)
    training = work(trace.hyper) | keep(trace.hyper, "steps", steps="local_steps")
    return Setup(algorithm, training, READERS, 1e-8 if trace.hyper["lr"] >= 1 else 1e-10)


SETUPS = {(name, "gradmarepo"): _repo for name in ("gradma", "gradma_w", "gradma_s")} | {
    (name, "spec"): _spec for name in ("gradma", "gradma_w", "gradma_s")
}
