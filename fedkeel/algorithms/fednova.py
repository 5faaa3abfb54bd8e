"""FedNova: normalised averaging (Wang et al., NeurIPS 2020).

A client that takes more steps travels further, and a plain average then optimises a mixture of the clients' losses that
nobody asked for. FedNova averages directions per unit of step weight and gives the mean one common length.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + μ (y − w))
             ‖a_i‖₁ ← the weight of all its gradients in (w − y)/η;  K_i for plain SGD
    server   τ_eff ← Σ_S p_i ‖a_i‖₁;   w ← w − τ_eff Σ_S p_i (w − y_i)/‖a_i‖₁

With server momentum γ (``gmf``) the last line is  u ← γ u + (that step)/η_t,  w ← w − η_t u.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.errors import invalid
from fedkeel.learning.correction import Correction


class FedNova(Algorithm):
    name = "fednova"
    title = "FedNova"
    idea = "Updates are divided by the client's own step weight before they are averaged."
    paper = Paper(
        "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        "Wang et al.",
        "NeurIPS",
        2020,
    )
    laws = (
        Law("FedNova with equal steps is FedAvg", {}, "fedavg", needs=frozenset({"equal_steps"})),
        Law(
            "FedNova(μ) with equal steps is FedProx(μ)",
            {"mu": 0.1},
            "fedprox",
            {"mu": 0.1},
            needs=frozenset({"equal_steps"}),
        ),
    )
    params: Params

    class Params(AlgorithmParams):
        # The authors' program counts steps instead of step weights where there is a proximal term, and lets that term
        # and local momentum meet, although the paper has no ‖a_i‖₁ for the two together.
        modes = {"code": {"tau_eff": "K", "prox_momentum": True}}
        mu: float = Field(0.0, ge=0, description="μ, strength of a proximal term as FedProx's; 0: none")
        weights: Literal["n", "uniform"] = Field("n", description="weights p_i: samples, or equal")
        gmf: float = Field(
            0.0, ge=0, lt=1, description="γ, server momentum in units of gradients, as SlowMo's; 0: none"
        )
        tau_eff: Literal["a", "K"] = Field("a", description="τ_eff: Σ p_i ‖a_i‖₁; K: Σ p_i K_i where μ > 0")
        prox_momentum: bool = Field(False, description="allow μ > 0 with local momentum, by the program's rule")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, **({"u": problem.zeros()} if self.params.gmf else {}))

    def correction(self, local: Local) -> Correction | None:
        momentum = float(local.sgd.momentum)
        if self.params.mu and momentum and not self.params.prox_momentum:
            hint = "Set one of them to 0, or fednova.prox_momentum = true for the authors' rule."
            raise invalid("fednova.mu", f"0 with training.momentum = {momentum:g}", self.params.mu, hint)
        return pull(self.params.mu, towards=local.w) if self.params.mu else None

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        eta_mu = local.round.lr * self.params.mu
        return Message(y=y, a=step_weight(local.steps, float(local.sgd.momentum), eta_mu, y.dtype)), local.client

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        p = uploads.clients.weights(self.params.weights)
        direction = average((server.w - uploads.y) / uploads.a.unsqueeze(1), p)
        step = self.common_weight(p, uploads.a, uploads.steps) * direction
        if not self.params.gmf:
            return server.replace(w=server.w - step)
        u = self.params.gmf * server.u + step / round.lr
        return server.replace(w=server.w - round.lr * u, u=u)

    def common_weight(self, p: Tensor, a: Tensor, steps: Tensor) -> Tensor:
        """τ_eff, a scalar, from the cohort's weights, step weights and steps [S]."""
        counts_steps = self.params.tau_eff == "K" and self.params.mu > 0
        return average(steps.to(a.dtype) if counts_steps else a, p)


def step_weight(steps: Tensor, momentum: float, eta_mu: float, dtype: torch.dtype) -> Tensor:
    """‖a_i‖₁ of K clients [K], by the recursion over their steps [K]."""
    a = torch.zeros(len(steps), dtype=dtype)
    repeats = 0.0
    for k in range(int(steps.max())):
        repeats = momentum * repeats + 1  # with momentum a gradient moves y again in every later step
        grown = a + repeats if momentum or not eta_mu else a
        if eta_mu:
            grown = (1 - eta_mu) * grown + 1  # the spring takes back ημ of what was travelled
        a = torch.where(k < steps, grown, a)
    return a
