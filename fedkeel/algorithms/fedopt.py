"""FedAdam, FedYogi and FedAdagrad: adaptive server optimisers (Reddi et al., ICLR 2021).

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   Δ̄ ← Σ_S p_i (y_i − w);   m ← β₁ m + (1 − β₁) Δ̄
             v ← β₂ v + (1 − β₂) Δ̄²                     FedAdam
             v ← v − (1 − β₂) Δ̄² sign(v − Δ̄²)           FedYogi
             v ← v + Δ̄²                                 FedAdagrad
             w ← w + η_g m/(√v + τ)

There is no bias correction; v starts at τ², so the first steps are not huge. The rule stands before any base, as
server momentum does: Δ̄ is the step that the base would take.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Law, Paper, Problem, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import State

_PAPER = Paper("Adaptive Federated Optimization", "Reddi et al.", "ICLR", 2021)


class AdaptiveParams(AlgorithmParams):
    eta_g: float = Field(
        0.01, gt=0, description="η_g, server learning rate, roughly the largest move of a coordinate; 10^-2.5 to 1"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="β₁, momentum of the step")
    tau: float = Field(1e-3, gt=0, description="τ, how far the step adapts: the smaller the more; 1e-3, up to 1e-1")
    v0: Literal["tau2", "zero"] = Field("tau2", description="v at the start: τ² as in the paper, or 0")


class SecondMomentParams(AdaptiveParams):
    beta2: float = Field(0.99, ge=0, le=1, description="β₂, memory of the squared steps; at 1 v never changes")


class AdaptiveServer(Algorithm):
    """To stand before a base among a class's parents: ``class FedAdam(AdaptiveServer, FedAvg)``."""

    params: AdaptiveParams
    server_rate = 1.0

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """The next v [d], from the current one and Δ̄."""
        raise NotImplementedError

    def server_init(self, problem: Problem) -> State:
        start = self.params.tau**2 if self.params.v0 == "tau2" else 0.0
        return super().server_init(problem).replace(m=problem.zeros(), v=torch.full_like(problem.w0, start))

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        base = super().aggregate(server, uploads, round)
        delta = base.w - server.w
        m = self.params.beta1 * server.m + (1 - self.params.beta1) * delta
        v = self.second_moment(server.v, delta)
        return base.replace(w=server.w + self.params.eta_g * m / (v.sqrt() + self.params.tau), m=m, v=v)


class FedAdam(AdaptiveServer, FedAvg):
    name = "fedadam"
    title = "FedAdam"
    idea = "The server divides its step, coordinate by coordinate, by a moving average of past sizes."
    paper = _PAPER
    laws = (
        Law(
            "FedAdam(β₁ = 0, v constant) is FedAvg with server rate η_g/2τ",
            {"beta1": 0.0, "beta2": 1.0, "tau": 0.5, "eta_g": 1.0},
            "fedavg",
        ),
    )
    params: Params

    class Params(SecondMomentParams, FedAvg.Params):
        pass

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        beta2 = self.params.beta2
        return beta2 * v + (1 - beta2) * delta.square()


class FedYogi(AdaptiveServer, FedAvg):
    name = "fedyogi"
    title = "FedYogi"
    idea = "FedAdam whose memory of sizes shrinks by bounded amounts only."
    paper = _PAPER
    laws = (
        Law(
            "FedYogi(β₁ = 0, v constant) is FedAvg with server rate η_g/2τ",
            {"beta1": 0.0, "beta2": 1.0, "tau": 0.5, "eta_g": 1.0},
            "fedavg",
        ),
    )
    params: Params

    class Params(SecondMomentParams, FedAvg.Params):
        pass

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        square = delta.square()
        return v - (1 - self.params.beta2) * square * torch.sign(v - square)


class FedAdagrad(AdaptiveServer, FedAvg):
    name = "fedadagrad"
    title = "FedAdagrad"
    idea = "The server divides its step, coordinate by coordinate, by the size of all past ones together."
    paper = _PAPER
    params: Params

    class Params(AdaptiveParams, FedAvg.Params):
        pass

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta.square()
