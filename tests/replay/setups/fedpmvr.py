"""FedPMVR."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fedkeel.algorithms.contract import Answer, Local
from fedkeel.algorithms.fedpmvr import FedPMVR
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


class Watched(FedPMVR):
    """FedPMVR that also notes the trained models before their correction."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.trained: dict[tuple[int, int], Tensor] = {}

    def local_round(self, local: Local) -> Answer:
        message, state, trained = super().local_round(local)
        for client, y in zip(local.clients.ids, trained.y, strict=True):
            self.trained[local.round.t, client] = y
        return message, state, trained


def _trained(replay: Replay) -> np.ndarray:
    seen = replay.simulation.algorithm.trained  # type: ignore[attr-defined]
    return replay.per_client(lambda job, _, i: seen[job.round.t, job.clients.ids[i]].numpy(), (replay.vectors.length,))


def _mask(replay: Replay) -> np.ndarray:
    mask: np.ndarray = replay.simulation.problem.layout.mask(replay.simulation.algorithm.params.mask).numpy()
    return mask


def _momentum(replay: Replay) -> np.ndarray:
    """m among all coordinates [R+1, N, P]; zero off the mask and for variants that keep none."""
    mask = _mask(replay)
    out = np.zeros((replay.trace.rounds + 1, replay.simulation.federation.N, len(mask)))
    out[..., mask] = replay.table("m", replay.simulation.algorithm.client_init(replay.simulation.problem)["m"])
    return out


def _unused_momentum(replay: Replay) -> np.ndarray:
    """What the published program adds up and never uses: α (y − w) on the last layer [R, N, P]."""
    moved = _trained(replay) - replay.global_vectors()[:-1, None]
    return np.cumsum(replay.simulation.algorithm.params.alpha * moved * _mask(replay), axis=0)


READERS: dict[str, Reader] = {"trained": _trained, "state_m": _momentum, "momentum_terms": _unused_momentum}


def _repo(trace: Trace) -> Setup:
    return Setup(Watched(mode="code", **keep(trace.hyper, "alpha")), work(trace.hyper), READERS)


def _spec(trace: Trace) -> Setup:
    # The tiny model has two layers; the corrected ones are the last.
    params = {"mask": "last1"} | keep(trace.hyper, "alpha", "variant", "keep", "weights", "mask")
    return Setup(Watched(**params), work(trace.hyper), READERS)


SETUPS = {("fedpmvr", "fedpmvrrepo"): _repo, ("fedpmvr", "spec"): _spec}
