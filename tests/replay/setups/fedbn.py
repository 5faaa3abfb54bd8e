"""FedBN."""

from __future__ import annotations

import numpy as np
import torch

from fedkeel.algorithms.fedbn import joined
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job
from tests.replay.run import Replay, Setup
from tests.replay.setups.common import work
from tests.replay.trace import Trace


def _fedbn_repo(trace: Trace) -> Setup:
    readers = {"uploads": _uploads, "client_after": _client_after}
    return Setup(make_algorithm("fedbn", mode="code"), work(trace.hyper), readers)


def _uploads(replay: Replay) -> np.ndarray:
    """The trained models: what is uploaded and what stays with the clients."""
    norm = replay.states[0].server.norm

    def model(_: Job, outcome: Outcome, i: int) -> np.ndarray:
        y = joined(outcome.message.shared[i : i + 1], outcome.states.beta[i : i + 1], norm)
        return replay.vectors.join(y[0], outcome.buffers[i])

    return replay.per_client(model, (replay.vectors.length,))


def _client_after(replay: Replay) -> np.ndarray:
    """What every client holds after communication: the average with its own normalisation [R, N, P]."""
    simulation = replay.simulation
    everybody = range(simulation.federation.N)
    template = simulation.algorithm.client_init(simulation.problem)
    after = []
    for state in replay.states[1:]:
        beta = state.clients["beta"].take(everybody, template.beta)
        models = simulation.algorithm.personal(state.server, State(beta=beta))
        assert models is not None
        buffers = state.client_buffers.take(everybody, torch.as_tensor(state.b))
        after.append(np.stack([replay.vectors.join(y, b) for y, b in zip(models, buffers, strict=True)]))
    return np.stack(after)


SETUPS = {("fedbn", "fedbnrepo"): _fedbn_repo}
