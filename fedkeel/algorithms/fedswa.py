"""FedSWA: federated stochastic weight averaging (Liu et al., ICML 2025).

Steps begin large and end small in every round, which leads clients to the middle of a flat region; the server moves the
average over rounds towards them, or beyond.

    client   y ← w;  k = 0 … K_i − 1:  y ← y − η_k ∇F_i(y),   η_k = η (1 − (1 − ρ) k/K_i)
    server   v ← Σ_S p_i y_i;   w ← w + α (v − w)
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Law, Paper, Round, Uploads
from fedkeel.algorithms.server_steps import average, towards
from fedkeel.algorithms.state import State

PAPER = Paper(
    "Improving Generalization in Federated Learning with Highly Heterogeneous Data via Momentum-Based Stochastic "
    "Controlled Weight Averaging",
    "Liu et al.",
    "ICML",
    2025,
)


class FedSWA(Algorithm):
    name = "fedswa"
    title = "FedSWA"
    idea = "Steps shrink within every round; the server averages over rounds."
    paper = PAPER
    any_optimiser = True
    any_mean = True
    laws: ClassVar[tuple[Law, ...]] = (
        Law("FedSWA(ρ = 1, α = 1) is FedAvg", {"rho": 1.0, "alpha": 1.0}, "fedavg"),
        Law("FedSWA(ρ = 1) is FedAvg with η_g = α", {"rho": 1.0, "alpha": 1.5}, "fedavg", {"eta_g": 1.5}),
    )
    params: Params

    class Params(AlgorithmParams):
        # The authors' program lets steps fall to nothing, and takes the plain average.
        modes = {"code": {"rho": 0.0, "alpha": 1.0, "weights": "uniform"}}
        rho: float = Field(0.1, ge=0, le=1, description="ρ, what the step size falls to within a round; 1: it does not")
        alpha: float = Field(1.5, gt=0, description="α, how far w moves to the average; beyond it above 1")
        weights: Literal["n", "uniform"] = Field("n", description="weights of the average: samples, or equal")

    def pace(self, steps: Tensor) -> Tensor:
        return falling(steps, self.params.rho)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.y, uploads.clients.weights(self.params.weights))
        return server.replace(w=towards(server.w, mean, self.params.alpha))


def falling(steps: Tensor, rho: float) -> Tensor:
    """1 − (1 − ρ) k/K_i at step k of clients that take K_i steps [K], as [K, most steps]."""
    k = torch.arange(int(steps.max()), dtype=torch.float64)
    return 1 - (1 - rho) * k / steps.unsqueeze(1)
