"""FedVeca."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.fedveca import step_quotient, usable
from fedkeel.algorithms.registry import make_algorithm
from tests.replay.run import Reader, Replay, Setup
from tests.replay.setups.common import keep, work
from tests.replay.trace import Trace


def _after(name: str) -> Reader:
    """A value of the server after every round [R, ...]."""
    return lambda replay: replay.server(name)[1:]


def _from_A(value: Any) -> Reader:
    """What ``value(algorithm, usable A of the cohort, L)`` gives for the clients whose A is known, NaN elsewhere."""

    def read(replay: Replay) -> np.ndarray:
        out = np.full((replay.trace.rounds, replay.simulation.federation.N), np.nan)
        for t, state in enumerate(replay.states[1:]):
            ids = list(replay.recorder.jobs[t].clients.ids)
            used = usable(state.server.A[ids])
            if used is not None:
                out[t, ids] = value(replay.simulation.algorithm, used, state.server.L).numpy()
        return out

    return read


def _alpha(algorithm: Any, A: Tensor, L: float) -> float:
    return float(algorithm.alpha(A, L) if algorithm.params.alpha_cap else algorithm.params.alpha)


def _directions(replay: Replay) -> list[Tensor]:
    """G_i of each round's cohort [S, d]."""
    out = []
    for state, job, outcome in zip(replay.states[:-1], replay.recorder.jobs, replay.recorder.outcomes, strict=True):
        out.append((state.server.w - outcome.message.y) / (job.round.lr * job.steps.double().unsqueeze(1)))
    return out


def _G(replay: Replay) -> np.ndarray:
    directions = _directions(replay)
    return replay.per_client(lambda job, _, i: directions[job.round.t][i].numpy(), (replay.simulation.task.d,))


def _D(replay: Replay) -> np.ndarray:
    jobs = replay.recorder.jobs
    return np.stack([(job.clients.p @ G).numpy() for job, G in zip(jobs, _directions(replay), strict=True)])


def _losses(replay: Replay, w: Tensor, t: int) -> list[float]:
    """F_i(w) of a round's cohort."""
    simulation, b = replay.simulation, replay.states[t].b
    ids = replay.recorder.jobs[t].clients.ids
    return [simulation.task.evaluate(w, b, *simulation.samples.of_client(i)).loss for i in ids]


def _loss_start(replay: Replay) -> np.ndarray:
    losses = [_losses(replay, replay.states[t].server.w, t) for t in range(replay.trace.rounds)]
    return replay.per_client(lambda job, _, i: losses[job.round.t][i])


def _loss_of_candidate(replay: Replay) -> np.ndarray:
    out = []
    for t, (job, D) in enumerate(zip(replay.recorder.jobs, _D(replay), strict=True)):
        before, after = replay.states[t].server, replay.states[t + 1].server
        candidate = before.w - job.round.lr * after.tau_bar * torch.from_numpy(D)
        out.append(float(np.dot(job.clients.p.numpy(), _losses(replay, candidate, t))))
    return np.array(out)


def _gamma(replay: Replay) -> np.ndarray:
    """γ as sent; the 0 of the first round stands for no gradient yet."""
    sent = np.array([job.message.gamma for job in replay.recorder.jobs])
    return np.where(sent == 0, np.nan, sent)


def _delta(replay: Replay) -> np.ndarray:
    return replay.per_client(lambda _, outcome, i: float(outcome.message.delta[i]))


READERS: dict[str, Reader] = {
    "tau": lambda replay: replay.server("tau"),
    "tau_bar": _after("tau_bar"),
    "tau_ratio": _from_A(lambda algorithm, A, L: step_quotient(A, _alpha(algorithm, A, L))),
    "beta": _after("beta"),
    "delta": _delta,
    "A": _after("A"),
    "A_used": _from_A(lambda algorithm, A, L: A),
    "L_quotient": lambda replay: replay.server("L_next")[:-1],
    "L": _after("L"),
    "premise": _after("premise"),
    "premise_ok": lambda replay: replay.server("premise")[1:] >= 1,
    "D": _D,
    "G": _G,
    "grad_local": lambda replay: replay.per_client(lambda _, o, i: o.message.r[i].numpy(), (replay.simulation.task.d,)),
    "grad_global": _after("grad_prev"),
    "grad_norm": lambda replay: np.linalg.norm(replay.server("grad_prev")[1:], axis=1),
    "gamma": _gamma,
    "loss_start": _loss_start,
    "loss_end": lambda replay: replay.per_client(lambda _, outcome, i: float(outcome.message.loss[i])),
    "F_candidate": _after("F"),
    "F_best": _after("F_best"),
    "accepted": _after("accepted"),
    "assumption2_ok": _after("assumption_2"),
    "bound": _after("bound"),
    "loss_global_candidate": _loss_of_candidate,
}


def _spec(trace: Trace) -> Setup:
    hyper = trace.hyper
    params = keep(hyper, "alpha", "tau_max", "tau_min", "accept", "alpha_cap", "grad_norm", "L0", tau_0="tau0")
    if "beta_mode" in hyper:
        params["beta"] = "same_batch" if hyper["beta_mode"] == "same_batch" else "full"
    if "delta" in hyper:
        params["delta"] = "printed" if hyper["delta"] == "printed" else "normalised"
    if "taubar" in hyper:
        params["tau_bar"] = "used" if hyper["taubar"] == "used" else "printed"
    algorithm = make_algorithm("fedveca", **params)
    return Setup(algorithm, work(hyper), READERS, relative=frozenset({"A", "A_used", "beta", "delta"}))


SETUPS = {("fedveca", "spec"): _spec}
