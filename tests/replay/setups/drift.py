"""SCAFFOLD, FedDyn and FedDC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace

ALL = {"evaluate": ("global", "selected", "all")}
READERS = {
    "last_local": Replay.last_local,
    "state_c": lambda replay: replay.table("c"),
    "state_h": lambda replay: replay.table("h"),
    "server_c": lambda replay: replay.server("c"),
    "server_h_mean": lambda replay: replay.server("h"),
}


def _candidate(name: str) -> Any:
    def read(replay: Replay) -> np.ndarray:
        offered = [replay.simulation.algorithm.candidates(state.server) for state in replay.states[1:]]
        return np.stack([models[name].numpy() for models in offered])

    return read


CANDIDATES = {"eval_avg_selected": _candidate("selected"), "eval_avg_all": _candidate("all")}


def _everybody_alike(replay: Replay) -> np.ndarray:
    return np.ones(replay.simulation.federation.N)


MEANS = {
    "eval_avg_selected": lambda replay: replay.mean_of_selected(_everybody_alike(replay)),
    "eval_avg_all": lambda replay: replay.mean_of_all(_everybody_alike(replay)),
}


def _scaffold_feddc_repo(trace: Trace) -> Setup:
    hyper, sizes = trace.hyper, trace.meta["sizes"]
    # The program fixes the number of steps; here it follows from the epochs of a client of average size.
    per_epoch = math.ceil(sum(sizes) / len(sizes) / hyper["batch_size"])
    training = work(hyper) | {"epochs": hyper["n_minibatch"] // per_epoch}
    algorithm = make_algorithm("scaffold", mode="code", **keep(hyper, eta_g="global_learning_rate"))
    return Setup(algorithm, training, READERS | MEANS)


def _scaffold_fedpvr_repo(trace: Trace) -> Setup:
    return Setup(make_algorithm("scaffold"), work(trace.hyper), READERS)


def _scaffold_spec(trace: Trace) -> Setup:
    params = keep(trace.hyper, "weights", "option", "eta_g")
    return Setup(make_algorithm("scaffold", **params), work(trace.hyper), READERS)


def _feddyn_repo(trace: Trace) -> Setup:
    algorithm = make_algorithm(trace.algorithm, mode="code", alpha=trace.hyper["alpha"], **ALL)
    return Setup(algorithm, work(trace.hyper), READERS | CANDIDATES)


def _feddyn_spec(trace: Trace) -> Setup:
    return Setup(make_algorithm("feddyn", **keep(trace.hyper, "alpha"), **ALL), work(trace.hyper), READERS | CANDIDATES)


def _feddc_spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    params = keep(hyper, "alpha", "linear", "use_h", "alpha_scaled", "agg", "g", "c_steps", c_scaled="scale")
    if "c_lr" in hyper:
        params["c_lr"] = {"decayed": "current"}.get(hyper["c_lr"], "initial")
    return Setup(make_algorithm("feddc", **params, **ALL), work(hyper), READERS | CANDIDATES)


SETUPS = {
    ("scaffold", "feddcrepo"): _scaffold_feddc_repo,
    ("scaffold", "feddynrepo"): _scaffold_feddc_repo,
    ("scaffold", "fedpvrrepo"): _scaffold_fedpvr_repo,
    ("scaffold", "spec"): _scaffold_spec,
    ("feddyn", "feddcrepo"): _feddyn_repo,
    ("feddyn", "feddynrepo"): _feddyn_repo,
    ("feddyn", "spec"): _feddyn_spec,
    ("feddc", "feddcrepo"): _feddyn_repo,
    ("feddc", "spec"): _feddc_spec,
}
