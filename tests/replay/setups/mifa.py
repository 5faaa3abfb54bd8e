"""MIFA and MIFAM."""

from __future__ import annotations

import numpy as np

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _table(replay: Replay) -> np.ndarray:
    clients, zero = range(replay.simulation.federation.N), replay.simulation.problem.zeros()
    return np.stack([state.server.U.take(clients, zero).numpy() for state in replay.states])


def _stepped(replay: Replay) -> np.ndarray:
    return np.asarray(np.diff(replay.server("w"), axis=0).any(axis=1))


READERS: dict[str, Reader] = {
    "update_table": _table,
    "stepped": _stepped,
    "server_velocity": lambda replay: replay.server("v"),
}


def _filled_in(replay: Replay) -> int:
    """The round in which everybody trained to fill the table."""
    return next(t for t, state in enumerate(replay.states[1:]) if state.server.U)


def _uploads_after_filling(replay: Replay) -> np.ndarray:
    uploads = replay.uploads()
    uploads[: _filled_in(replay) + 1] = np.nan
    return uploads


WAITING: dict[str, Reader] = READERS | {
    "table_init_round": lambda replay: np.array(_filled_in(replay)),
    "table_init_uploads": lambda replay: replay.uploads()[_filled_in(replay)],
    "uploads": _uploads_after_filling,
}


def _repo(trace: Trace) -> Setup:
    wait = trace.hyper["variant"] != "fdu_no_wait"
    algorithm = make_algorithm("mifa", mode="code", wait=wait)
    if not wait:
        return Setup(algorithm, work(trace.hyper), READERS)
    # The program's extra round of training stands apart in the file; here it is the round in which it happens.
    if "table_init_batches" in trace.arrays:
        trace.arrays["batches"][int(trace.arrays["table_init_round"])] = trace.arrays.pop("table_init_batches")
    return Setup(algorithm, work(trace.hyper), WAITING)


def _spec(trace: Trace) -> Setup:
    params = keep(trace.hyper, "wait", "weights", "eta_g", "beta")
    if trace.meta["mode"].startswith("code"):
        params["mode"] = "code"
    return Setup(make_algorithm(trace.algorithm, **params), work(trace.hyper), READERS)


SETUPS = {("mifa", "mifarepo"): _repo, ("mifa", "spec"): _spec, ("mifam", "spec"): _spec}
