"""FedGVR: FedProx with weighted control variates (Wang et al., ICPADS 2022), the local phase of FedGVRGM.

As in SCAFFOLD a client replaces its own mean gradient c_k by everybody's, c, but only a share ε of it; ε falls as the
accuracy of the global model stops rising, because the errors in c − c_k weigh more near the end.

    CWC      sub(t) ← max(sub(t − 1), accuracy of w in percent)
             ε ← 1 for t < h,  else (sub(t) − sub(t − h))/h, within [0, 1]
    client   y ← w;  K_k times:  y ← y − η (∇F_k(y) + μ (y − w) + ε (c − c_k))
             c_k⁺ ← (w − y)/(K_k η) − ε (c − c_k);   sends y_k and δ_k = c_k⁺ − c_k
    server   w ← w + η_g Σ_S p_k (y_k − w);   c ← c + 1/N Σ_S ω_k δ_k

c_k⁺ is the mean gradient (with the proximal term) that the client saw. Only for ε = 1, or with SCAFFOLD's recursion,
can the server form δ_k from y_k; then uploads carry the model only. ω_k = N n_k/n makes c the data-weighted mean
gradient; with equal weights it is left out. The accuracy comes from evaluation, so a run that should be judged on the
test set needs a validation set.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Claim,
    Clients,
    Law,
    Local,
    Message,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.fedgvrgm_parts import PAPER, ProximalParams, mean_step, proximal
from fedkeel.algorithms.server_steps import average, average_gap
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class ControlParams(AlgorithmParams):
    """The control variates and their weight ε."""

    h: int = Field(5, ge=1, description="h, rounds over which the gain in accuracy is taken; 5 in the paper")
    acc_unit: Literal["percent", "fraction"] = Field(
        "percent", description="fraction: accuracy in [0, 1], as printed, which all but switches the correction off"
    )
    eps_clipped: bool = Field(True, description="keep ε within [0, 1]; false as printed")
    c_update: Literal["exact", "scaffold"] = Field(
        "exact", description="scaffold: c_k⁺ = c_k − c + (w − y)/(K_k η), as printed, which undoes ε over time"
    )
    c_factor: Literal["steps", "printed"] = Field(
        "steps", description="factor on w − y in c_k⁺: 1/(K_k η), or the printed η/E with E local epochs"
    )
    c_sign: Literal["alg", "eq7"] = Field(
        "alg", description="sign of w − y in c_k⁺: Algorithm 1's, or equation 7's opposite"
    )
    weights_c: Literal["same", "uniform", "omega"] = Field(
        "same", description="weights in the mean of δ_k: as the model's, 1, or ω_k = N n_k/n"
    )
    traffic: Literal["min", "paper"] = Field("min", description="paper: δ_k is uploaded also where it can be derived")


class FedGVR(Algorithm):
    name = "fedgvr"
    title = "FedGVR"
    idea = "FedProx with SCAFFOLD's control variates, turned down as the accuracy stops rising."
    paper = PAPER
    observes = True
    laws = (Law("FedGVR(μ = 0, ε = 1) is SCAFFOLD", {"mu": 0.0, "h": 1_000_000, "weights": "uniform"}, "scaffold"),)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("Table III", "CIFAR-10, Dirichlet 0.5, 10 %: rounds to training loss 0.45", 270, "rounds"),
        Claim("Table III", "MNIST, Dirichlet 0.5, 10 %: rounds to training loss 0.2", 101, "rounds"),
    )

    class Params(ControlParams, ProximalParams):
        modes = {
            "literal": {
                "weights": "uniform",
                "restart": True,
                "acc_unit": "fraction",
                "eps_clipped": False,
                "c_update": "scaffold",
                "c_factor": "printed",
            }
        }

    def server_init(self, problem: Problem) -> State:
        """``sub`` holds the running maximum of the accuracy at this round's start and the h rounds before."""
        return State(w=problem.w0, c=problem.zeros(), sub=torch.empty(0, dtype=torch.float64))

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros())

    def observe(self, server: State, metrics: dict[str, float]) -> State:
        best = torch.cat([server.sub[-1:], server.sub.new_tensor([metrics["accuracy"]])]).max()
        return server.replace(sub=torch.cat([server.sub[-self.params.h :], best.unsqueeze(0)]))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c, eps=self.epsilon(server))

    def epsilon(self, server: State) -> float:
        """CWC: the weight ε of the correction in the coming round."""
        if len(server.sub) <= self.params.h:
            return 1.0
        gain = float(server.sub[-1] - server.sub[0]) * (100 if self.params.acc_unit == "percent" else 1)
        eps = gain / float(self.params.h)
        return min(eps, 1.0) if self.params.eps_clipped else eps

    def correction(self, local: Local) -> Correction:
        return proximal(self.params, local) + shift(local.down.eps * (local.down.c - local.client.c))

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        c, c_k, eps = local.down.c, local.client.c, local.down.eps
        c_new = self._seen(local, y) - (eps * (c - c_k) if self.params.c_update == "exact" else c - c_k)
        message = Message(y=y) if self._derivable(eps) else Message(y=y, delta_c=c_new - c_k)
        return message, local.client.replace(c=c_new)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        w = server.w + self.params.eta_g * mean_step(self.params, server.w, uploads)
        return server.replace(w=w, c=server.c + self.control_step(server, uploads))

    def control_step(self, server: State, uploads: Uploads) -> Tensor:
        """1/N Σ_S ω_k δ_k, or without the ω_k [d]."""
        clients = uploads.clients
        rule = self.params.weights_c if self.params.weights_c != "same" else self.params.weights
        shares = clients.uniform * clients.omega.squeeze(1) if rule in ("n", "omega") else clients.uniform
        if self._derivable(self.epsilon(server)):  # the sum of all δ_k, without forming each
            seen = shares / uploads.travel.squeeze(1) * (1 if self.params.c_sign == "alg" else -1)
            step: Tensor = average_gap(server.w, uploads.y, seen) - shares.sum() * server.c
        else:
            step = average(uploads.delta_c, shares)
        return step * (clients.S / clients.N)

    def _derivable(self, eps: float) -> bool:
        """Whether δ_k = ±(w − y)/(K_k η) − c, without c_k: SCAFFOLD's recursion, which for ε = 1 is the exact one."""
        recursion = self.params.c_update == "scaffold" or eps == 1
        return bool(recursion and self.params.c_factor == "steps" and self.params.traffic == "min")

    def _seen(self, local: Local, y: Tensor) -> Tensor:
        """(w − y)/(K_k η), the mean gradient that the steps took [K, d], or what was printed in its place."""
        moved = local.w - y if self.params.c_sign == "alg" else y - local.w
        if self.params.c_factor == "steps":
            return moved / local.travel
        epochs = (local.steps.to(y.dtype) / local.steps_per_epoch).unsqueeze(1)
        return moved * local.round.lr / epochs
