"""FedMLB."""

from __future__ import annotations

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _fedmlb_repo(trace: Trace) -> Setup:
    params = keep(trace.hyper, "lambda1", "lambda2", "lambda3", T="temp")
    return Setup(make_algorithm("fedmlb", **params), work(trace.hyper))


SETUPS = {("fedmlb", "fedmlbrepo"): _fedmlb_repo}
