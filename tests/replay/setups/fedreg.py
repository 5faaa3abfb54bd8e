"""FedReg."""

from __future__ import annotations

import re

import numpy as np

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.engine.client import local_of
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _fedreg_repo(trace: Trace) -> Setup:
    params = keep(trace.hyper, "gamma", "beta", eta_s="ps_eta", eta_p="pt_eta", P="p_iters")
    algorithm = make_algorithm("fedreg", mode="code", mask=trace.hyper["add_mask"] > 0, **params)
    return Setup(algorithm, work(trace.hyper), {name: _first(name) for name in trace.arrays if name.startswith("r0_")})


def _first(name: str) -> Reader:
    """An array ``r0_first_WHAT_k``: of the first client of round 0, what its k-th pseudo batch holds."""
    found = re.fullmatch(r"r0_first_(pseudo_x|pseudo_softlabel|perturbed_x)_(\d+)", name)
    assert found is not None, name
    what, k = found[1], int(found[2])

    def read(replay: Replay) -> np.ndarray:
        local = local_of(replay.recorder.jobs[0], 0)
        pseudo, perturbed, _ = replay.simulation.algorithm.pseudo_data(local)  # type: ignore[attr-defined]
        batch = (perturbed if what == "perturbed_x" else pseudo)[k]
        return np.asarray((batch.y if what == "pseudo_softlabel" else batch.x)[0])

    return read


SETUPS = {("fedreg", "fedregrepo"): _fedreg_repo}
