"""SlowMo, FedAdam, FedYogi, FedAdagrad and FedProxM."""

from __future__ import annotations

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace

READERS = {
    "server_u": lambda replay: replay.server("u"),
    "server_m": lambda replay: replay.server("m"),
    "server_v": lambda replay: replay.server("v"),
    "server_velocity": lambda replay: replay.server("v"),
}
PARAMS = {
    "slowmo": ("weights", "beta", "alpha_s"),
    "fedadam": ("weights", "beta1", "beta2", "tau", "eta_g", "v0"),
    "fedyogi": ("weights", "beta1", "beta2", "tau", "eta_g", "v0"),
    "fedadagrad": ("weights", "beta1", "tau", "eta_g", "v0"),  # its files name a β₂ that it does not use
    "fedproxm": ("weights", "mu", "beta", "eta_g"),
}


def _spec(trace: Trace) -> Setup:
    params = keep(trace.hyper, *PARAMS[trace.algorithm])
    return Setup(make_algorithm(trace.algorithm, **params), work(trace.hyper), READERS)


SETUPS = {(name, "spec"): _spec for name in PARAMS}
