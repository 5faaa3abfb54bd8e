"""FedAvg, FedProx and FedAvgM."""

from __future__ import annotations

import numpy as np

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _sizes(replay: Replay) -> np.ndarray:
    return np.asarray(replay.simulation.federation.sizes, dtype=float)


LAST = {
    "last_local": Replay.last_local,
    "eval_avg_selected": lambda replay: replay.mean_of_selected(_sizes(replay)),
    "eval_avg_all": lambda replay: replay.mean_of_all(_sizes(replay)),
}


def _feddc_repo(trace: Trace) -> Setup:
    mode = {"mode": "code"} if trace.algorithm == "fedprox" else {}
    return Setup(make_algorithm(trace.algorithm, **mode), work(trace.hyper), LAST)


def _feddyn_repo(trace: Trace) -> Setup:
    return Setup(make_algorithm("fedprox", mu=trace.hyper["mu_argument"]), work(trace.hyper), LAST)


def _fedbn_repo(trace: Trace) -> Setup:
    params = {"mu": trace.hyper["mu"], "skip_first": True} if trace.algorithm == "fedprox" else {}
    algorithm = make_algorithm(trace.algorithm, weights="uniform", **params)
    return Setup(algorithm, work(trace.hyper) | {"buffers": "uniform"}, {"client_after": _client_after})


def _client_after(replay: Replay) -> np.ndarray:
    """After communication every client holds the global vector [R, N, P]."""
    return np.repeat(replay.global_vectors()[1:, None], replay.simulation.federation.N, axis=1)


def _fednova_repo(trace: Trace) -> Setup:
    params = keep(trace.hyper, "mu") if trace.algorithm == "fedprox" else {}
    return Setup(make_algorithm(trace.algorithm, **params), work(trace.hyper))


def _moon_repo(trace: Trace) -> Setup:
    training = work(trace.hyper) | {"drop_last": True}
    if trace.algorithm == "fedprox":
        return Setup(make_algorithm("fedprox", mu=trace.hyper["mu"]), training)
    beta = trace.hyper.get("server_momentum", 0.0)
    algorithm = make_algorithm("fedavgm", beta=beta, dampened=True) if beta else make_algorithm("fedavg")
    return Setup(algorithm, training, {"server_momentum_final": lambda replay: replay.server("v")[-1]})


def _spec(trace: Trace) -> Setup:
    algorithm = make_algorithm(trace.algorithm, **keep(trace.hyper, "weights"))
    return Setup(algorithm, work(trace.hyper))


def _spec_prox(trace: Trace) -> Setup:
    return Setup(make_algorithm("fedprox", **keep(trace.hyper, "weights", "mu")), work(trace.hyper))


def _spec_momentum(trace: Trace) -> Setup:
    algorithm = make_algorithm("fedavgm", **keep(trace.hyper, "weights", "beta", "eta_g"))
    return Setup(algorithm, work(trace.hyper), {"server_velocity": lambda replay: replay.server("v")})


SETUPS = {
    ("fedavg", "feddcrepo"): _feddc_repo,
    ("fedavg", "feddynrepo"): _feddc_repo,
    ("fedavg", "fedbnrepo"): _fedbn_repo,
    ("fedavg", "fednovarepo"): _fednova_repo,
    ("fedavg", "moonrepo"): _moon_repo,
    ("fedavg", "spec"): _spec,
    ("fedprox", "feddcrepo"): _feddc_repo,
    ("fedprox", "feddynrepo"): _feddyn_repo,
    ("fedprox", "fedbnrepo"): _fedbn_repo,
    ("fedprox", "fednovarepo"): _fednova_repo,
    ("fedprox", "moonrepo"): _moon_repo,
    ("fedprox", "spec"): _spec_prox,
    ("fedavgm", "spec"): _spec_momentum,
}
