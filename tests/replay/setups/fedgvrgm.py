"""FedGVR, FedGM and FedGVRGM."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace

ERRATA: dict[int, dict[str, Any]] = {
    1: {"restart": True},
    2: {"c_factor": "printed"},
    3: {"c_update": "scaffold"},
    4: {"gm": "printed"},
    8: {"c_momentum": "heavy_ball"},
    9: {"acc_unit": "fraction", "eps_clipped": False},
}
"""The literal reading of single rows of the errata table."""


def _sub(replay: Replay) -> np.ndarray:
    """The running maximum in percent; the last row is what the server would note of the final model."""
    last = {"accuracy": float(replay.trace.arrays["acc"][-1]) / 100}
    servers = [state.server for state in replay.states]
    servers[-1] = replay.simulation.algorithm.observe(servers[-1], last)
    return np.array([100 * float(server.sub[-1]) for server in servers])


def _velocity_c(replay: Replay) -> np.ndarray:
    """v_c, zero where c has no momentum."""
    return replay.server("v_c") if "v_c" in replay.states[0].server else 0 * replay.server("c")


READERS: dict[str, Reader] = {
    "state_c": lambda replay: replay.table("c"),
    "server_c": lambda replay: replay.server("c"),
    "server_velocity": lambda replay: replay.server("v"),
    "server_velocity_c": _velocity_c,
    "server_mw": lambda replay: replay.server("v"),
    "server_mc": _velocity_c,
    "eps": lambda replay: np.array([job.message.eps for job in replay.recorder.jobs]),
    "sub": _sub,
}


def _mode(trace: Trace, known: set[str]) -> dict[str, Any]:
    """What a file's mode presets: nothing, the whole print, or one row of it."""
    mode = str(trace.meta.get("mode", "default"))
    if "errata" in mode:
        rows = [ERRATA.get(int(number), {}) for number in re.findall(r"\d+", mode)]
        return {name: value for row in rows for name, value in row.items() if name in known}
    return {"mode": "literal"} if mode.startswith("literal") else {}


def _spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    algorithm = make_algorithm(trace.algorithm)
    known = set(type(algorithm.params).model_fields)
    given = keep(hyper, *(known - {"mode", "c_update", "weights_c"}))
    # Where a file calls a switch "literal" or "printed", its mode has set it already.
    params = _mode(trace, known) | {name: value for name, value in given.items() if value not in ("literal", "printed")}
    if "c_update" in hyper and "c_update" in known:
        params["c_update"] = "exact" if hyper["c_update"] == "exact" else "scaffold"
    if "weights_c" in hyper and "weights_c" in known:
        params["weights_c"] = "uniform" if hyper["weights_c"] == "uniform" else "omega"
    accuracy = trace.arrays.get("acc")
    return Setup(make_algorithm(trace.algorithm, **params), work(hyper), READERS, accuracy=accuracy)


SETUPS = {("fedgvr", "spec"): _spec, ("fedgm", "spec"): _spec, ("fedgvrgm", "spec"): _spec}
