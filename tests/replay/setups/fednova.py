"""FedNova."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Clients, Message, Problem, Round
from fedkeel.algorithms.fednova import FedNova
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import PerClient, State
from tests.replay.run import Replay, Setup
from tests.replay.setups.absent import present_only
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


class _RecordedSteps(FedNova):
    """FedNova with the steps that its program drew at random for each client and round."""

    def __init__(self, trace: Trace, **fields: Any) -> None:
        super().__init__(**fields)
        self._steps = torch.from_numpy(trace.arrays["local_steps"]).long()

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        steps = self._steps[round.t, list(clients.ids)]
        return super().broadcast(server, round, clients).replace(steps=PerClient(steps))

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor:
        steps: Tensor = down.steps.rows
        return steps


def _tau_eff(replay: Replay) -> np.ndarray:
    algorithm = replay.simulation.algorithm
    assert isinstance(algorithm, FedNova)
    pairs = zip(replay.recorder.jobs, replay.recorder.outcomes, strict=True)
    return np.array([float(algorithm.common_weight(j.clients.p, o.message.a, j.steps)) for j, o in pairs])


READERS = {
    "norm_a": present_only("norm_a", lambda replay: replay.per_client(lambda _, o, i: float(o.message.a[i]))),
    "tau_eff": _tau_eff,
    "server_momentum": lambda replay: replay.server("u")[1:],
}


def _repo(trace: Trace) -> Setup:
    hyper = trace.hyper
    params = {"mode": "code"} | keep(hyper, "mu", "gmf")
    if hyper.get("local_epochs_pattern", "constant") == "constant":
        return Setup(make_algorithm("fednova", **params), work(hyper), READERS)
    return Setup(_RecordedSteps(trace, **params), work(hyper), READERS)


def _spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    params = keep(hyper, "mu", "gmf", "weights")
    if hyper.get("tau_eff", "a") != "a":
        params["tau_eff"] = "K"
    momentum = hyper.get("rho", 0.0)
    if momentum and params.get("mu"):
        params["prox_momentum"] = True
    training = work(hyper) | {"momentum": momentum}
    return Setup(make_algorithm("fednova", **params), training, READERS)


SETUPS = {("fednova", "fednovarepo"): _repo, ("fednova", "spec"): _spec}
