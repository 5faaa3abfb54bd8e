"""FedPVR and VRL-SGD."""

from __future__ import annotations

import numpy as np
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.algorithms.vrlsgd import delta
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _spread(replay: Replay, part: np.ndarray) -> np.ndarray:
    """Vectors of the corrected coordinates as whole ones, zero elsewhere."""
    mask = replay.states[0].server.mask.numpy()
    whole = np.zeros((*part.shape[:-1], len(mask)))
    whole[..., mask] = part
    return whole


def _table_of_c(replay: Replay) -> np.ndarray:
    return _spread(replay, replay.table("c", torch.zeros_like(replay.states[0].server.c)))


READERS: dict[str, Reader] = {
    "server_c": lambda replay: _spread(replay, replay.server("c")),
    "state_c": _table_of_c,
}


def _repo(trace: Trace) -> Setup:
    hyper = trace.hyper
    layers = sum(name.endswith("weight") for name, _ in trace.meta["layout"][hyper["start_layer"] :])
    algorithm = make_algorithm("fedpvr", mode="code", mask=f"last{layers}", **keep(hyper, "momentum_corrected"))
    return Setup(algorithm, work(hyper) | {"momentum": hyper["momentum_uncorrected"]}, READERS)


def _spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    mask = hyper["mask"] if hyper["mask"] in ("all", "none") else f"layer:{hyper['mask']}"
    return Setup(make_algorithm("fedpvr", mask=mask, **keep(hyper, "weights")), work(hyper), READERS)


def _state_delta(replay: Replay) -> np.ndarray:
    """Δ_i after every round, which a client knows once it has the new model [R+1, N, P]."""
    z, rate = replay.table("z"), replay.table("rate", torch.zeros(1, dtype=torch.float64))
    rows = [
        delta(state.server.w, State(z=torch.from_numpy(z[t]), rate=torch.from_numpy(rate[t]))).numpy()
        for t, state in enumerate(replay.states)
    ]
    return np.stack(rows)


def _vrlsgd_spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    training = work(hyper) | {"epochs": None, "steps": hyper["local_steps"]}
    return Setup(make_algorithm("vrlsgd", **keep(hyper, "weights")), training, {"state_delta": _state_delta})


SETUPS = {("fedpvr", "fedpvrrepo"): _repo, ("fedpvr", "spec"): _spec, ("vrlsgd", "spec"): _vrlsgd_spec}
