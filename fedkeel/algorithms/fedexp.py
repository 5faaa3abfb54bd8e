"""FedExP: the server extrapolates (Jhunjhunwala et al., ICLR 2023).

The more the clients' updates differ in direction, the more their mean shrinks, and the longer the server's step.

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   Δ_i ← y_i − w;   Δ̄ ← mean_S Δ_i;   η_g ← max(1, ½ mean_S ‖Δ_i‖²/(‖Δ̄‖² + ε));   w ← w + η_g Δ̄

Such steps overshoot to and fro. The paper therefore evaluates the mean of the last two models, which is offered beside
the global one.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Law, Paper, Problem, Round, Uploads
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State


class FedExP(Algorithm):
    name = "fedexp"
    title = "FedExP"
    idea = "The server's step is the longer the more the clients' updates differ."
    paper = Paper("FedExP: Speeding Up Federated Averaging via Extrapolation", "Jhunjhunwala et al.", "ICLR", 2023)
    laws = (Law("FedExP(ε → ∞) is FedAvg with equal weights", {"epsilon": 1e30}, "fedavg", {"weights": "uniform"}),)
    any_optimiser = True
    params: Params

    class Params(AlgorithmParams):
        modes = {"code": {"floor": "scaled", "weights": "n", "evaluate": ("last_two", "global")}}
        epsilon: float = Field(
            1e-3, gt=0, description="ε, against a vanishing mean; 1e-3 in the program, 0.1 for EMNIST"
        )
        floor: Literal["constant", "scaled"] = Field(
            "constant", description="what is added to ‖Δ̄‖²: ε, or S ε (η_t/η_0)² as in the authors' program"
        )
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of both means: equal, or samples")
        evaluate: tuple[Literal["global", "last_two"], ...] = Field(
            ("global", "last_two"),
            min_length=1,
            description="models to evaluate, the reported one first: global (w), last_two (mean of the last two w)",
        )

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, before=problem.w0)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        p = uploads.clients.weights(self.params.weights)
        mean = average(uploads.y, p) - server.w
        lengths = torch.stack([_square(y - server.w) for y in uploads.y])
        floor = self.params.epsilon
        if self.params.floor == "scaled":
            floor *= uploads.clients.S * (round.lr / round.lr0) ** 2
        eta_g = max(1.0, 0.5 * float(average(lengths, p)) / (float(_square(mean)) + floor))
        return server.replace(w=server.w + eta_g * mean, before=server.w).noting(eta_g=eta_g)

    def candidates(self, server: State) -> dict[str, Tensor]:
        models = {"global": server.w, "last_two": (server.w + server.before) / 2}
        return {name: models[name] for name in self.params.evaluate}


def _square(x: Tensor) -> Tensor:
    """‖x‖² in double precision, where squares of float32 do not overflow."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return length.square()
