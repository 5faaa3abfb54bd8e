"""FedPMVR: partial momentum for variance reduction (anonymous authors, 2024, under review).

In the last layers P, where clients drift most, every local step follows an average of the round's gradients.

    client   y ← w;  m ← 0;  K_i times:  m ← α m + (1 − α) ∇F_i(y)_P
                                         y_P ← y_P − η m,   elsewhere  y ← y − η ∇F_i(y)
    server   w ← Σ_S p_i y_i

That is ``step`` (eqs. 12–14), which did best of those that keep FedAvg's cost where we measured them. The paper and its
program describe five more, which train as FedAvg does and then correct y_P:

    shrink     y_P ← y_P − α (y − w)_P: a server learning rate of 1 − α on P; keeps FedAvg's fixed points
    ema        m ← α (y − w)_P + (1 − α) m, kept between rounds;  y_P ← y_P − m: pulls P towards its initial value
    alg1       after training g ← ∇F_i(y) over all data;  y_P ← y_P − α g_P,  elsewhere y ← y − η g
    repo       m ← m + α (y − w)_P, kept between rounds;  y_P ← y_P − m: feeds back on itself and diverges
    repo_dead  what the published program does: nothing, so that it is FedAvg
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Claim, Law, Local, Message, Paper, Problem
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import State
from fedkeel.learning.averaging import Averaging


class FedPMVR(FedAvg):
    name = "fedpmvr"
    title = "FedPMVR"
    idea = "In the layers nearest the output, local steps follow an average of the round's gradients."
    paper = Paper(
        "FedPMVR: Addressing Data Heterogeneity in Federated Learning through Partial Momentum Variance Reduction",
        "Anonymous authors",
        "manuscript under review",
        2024,
    )
    laws = (
        Law("FedPMVR(α = 0) is FedAvg", {"alpha": 0.0}, "fedavg"),
        Law("FedPMVR(ema, α = 0) is FedAvg", {"alpha": 0.0, "variant": "ema"}, "fedavg"),
        Law("FedPMVR(shrink, α = 0) is FedAvg", {"alpha": 0.0, "variant": "shrink"}, "fedavg"),
        Law("FedPMVR(repo, α = 0) is FedAvg", {"alpha": 0.0, "variant": "repo"}, "fedavg"),
        Law("FedPMVR's program is FedAvg", {"mode": "code"}, "fedavg", {"weights": "uniform"}),
        Law(
            "FedPMVR(shrink) on all layers is FedAvg with server learning rate 1 − α",
            {"alpha": 0.3, "mask": "all", "variant": "shrink"},
            "fedavg",
            {"eta_g": 0.7},
        ),
    )
    claims = (
        Claim("Table 1", "CIFAR-10, CNN, 10 clients, Dirichlet 0.1: best accuracy", 51.86, "%"),
        Claim("Table 1", "MNIST, LeNet, 10 clients, Dirichlet 0.1: best accuracy", 97.86, "%"),
        Claim("Table 1", "Fashion-MNIST, LeNet, 10 clients, Dirichlet 0.1: best accuracy", 83.18, "%"),
        Claim("Table 2", "MNIST, LeNet, 10 clients, Dirichlet 0.1: rounds to FedAvg's best", 50, "rounds"),
    )

    class Params(FedAvg.Params):
        modes = {
            "literal": {"variant": "alg1", "weights": "uniform"},
            # The program's test on a list index is never true; it would name the last layer only.
            "code": {"variant": "repo_dead", "weights": "uniform", "mask": "last1"},
        }
        alpha: float = Field(
            0.1, ge=0, le=1, description="α, weight of the past in m; the paper: near 0, its grid 0.001 to 0.8"
        )
        variant: Literal["shrink", "ema", "alg1", "step", "repo", "repo_dead"] = Field(
            "step", description="which of the paper's descriptions; see the box"
        )
        mask: str = Field(
            "last2", description="P, the corrected layers: all, none, conv, linear, norm, last1, last2, … or layer:NAME"
        )
        keep: bool = Field(False, description="step: keep m between rounds instead of starting from 0")

    def client_init(self, problem: Problem) -> State:
        """m on the corrected coordinates only [v], for the variants that remember it."""
        if self.params.variant in ("ema", "repo") or (self.params.variant == "step" and self.params.keep):
            return State(m=problem.w0.new_zeros(int(self._mask(problem).sum())))
        self._mask(problem)  # a layer that does not exist is an error in every variant, and before the first round
        return State()

    def local_round(self, local: Local) -> tuple[Message, State]:
        if self.params.variant == "step":
            return self._train_with_steps(local)
        return self.finish(local, local.train())

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        P, alpha, variant = self._mask(local.problem), self.params.alpha, self.params.variant
        if variant == "repo_dead":
            return Message(y=y), local.client
        if variant == "alg1":
            # One gradient at the trained model serves both parts: an extra step, also outside P.
            rate = torch.full_like(y[0], local.round.lr).masked_fill(P, alpha)
            return Message(y=y - rate * local.full_gradient(y)), local.client
        m = alpha * (y - local.w)[:, P]
        if variant == "ema":
            m = m + (1 - alpha) * local.client.m
        elif variant == "repo":
            m = m + local.client.m
        corrected = y.clone()
        corrected[:, P] -= m
        return Message(y=corrected), local.client if variant == "shrink" else local.client.replace(m=m)

    def _train_with_steps(self, local: Local) -> tuple[Message, State]:
        """``step``: an average of past gradients takes the gradient's place on P, at every local step."""
        P = local.problem.layout.slices(self.params.mask)
        size = sum(part.stop - part.start for part in P)
        m = local.client.m.clone() if self.params.keep else local.w.new_zeros(len(local.w), size)
        y = local.train(averaging=Averaging(P, self.params.alpha, m))
        return Message(y=y), local.client.replace(m=m) if self.params.keep else local.client

    def _mask(self, problem: Problem) -> Tensor:
        return problem.layout.mask(self.params.mask)
