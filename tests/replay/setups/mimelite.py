"""MimeLite."""

from __future__ import annotations

from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Setup
from tests.replay.setups.absent import present_only
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace

READERS = {
    "server_momentum": lambda replay: replay.server("m"),
    "full_gradients": present_only(
        "full_gradients",
        lambda replay: replay.per_client(lambda _, o, i: o.message.r[i].numpy(), (replay.simulation.task.d,)),
    ),
}


def _fedjax(trace: Trace) -> Setup:
    algorithm = make_algorithm("mimelite", mode="code", **keep(trace.hyper, beta="momentum", eta_g="server_lr"))
    return Setup(algorithm, work(trace.hyper) | {"momentum": 0.0}, READERS)  # its momentum is the server's β


def _spec(trace: Trace) -> Setup:
    algorithm = make_algorithm("mimelite", **({"eta_g": 1.0} | keep(trace.hyper, "beta", "eta_g", "weights", "form")))
    return Setup(algorithm, work(trace.hyper), READERS)


SETUPS = {("mimelite", "fedjaxrepo"): _fedjax, ("mimelite", "spec"): _spec}
