"""FedAvg-M: FedAvg with momentum inside the local steps (Cheng et al., ICLR 2024).

Not FedAvgM, whose momentum is the server's own. Here all clients mix the last round's mean step g into each of
theirs, and the server steps along the new one.

    client   y ← w;  K_i times:  y ← y − η (β ∇F_i(y) + (1 − β) g)
    server   g ← mean_S (w − y_i)/(K_i η);   w ← w − γ g,   γ = η_g · mean_S K_i η

Where all clients take the same number of steps this is FedCM with a = β. Where they do not, g, and so the server's
step, counts every client alike, while FedCM's average counts a client the more the more steps it takes.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Clients,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import scaled, shift
from fedkeel.algorithms.server_steps import mean_direction
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedAvgCM(Algorithm):
    name = "fedavg_cm"
    title = "FedAvg-M"
    idea = "Last round's mean step is mixed into every local step (not FedAvgM: that momentum is the server's)."
    paper = Paper("Momentum Benefits Non-IID Federated Learning Simply and Provably", "Cheng et al.", "ICLR", 2024)
    laws = (
        Law(
            "FedAvg-M is FedCM(a = β)",
            {"beta": 0.3, "eta_g": 0.8},
            "fedcm",
            {"a": 0.3, "eta_g": 0.8},
            needs=frozenset({"equal_steps"}),
        ),
        Law(
            "FedAvg-M(β = 1) is FedAvg with equal weights",
            {"beta": 1.0},
            "fedavg",
            {"weights": "uniform"},
            needs=frozenset({"equal_steps"}),
        ),
    )
    partial = "FedAvg-M is proved for rounds with every client; its paper has SCAFFOLD-M (scaffold_m) for part of them."
    params: Params

    class Params(AlgorithmParams):
        beta: float = Field(0.1, gt=0, le=1, description="β, share of a client's own gradient; 1 is FedAvg")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate: γ in units of the mean way K_i η")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, g=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, g=server.g)

    def correction(self, local: Local) -> Correction:
        return scaled(self.params.beta) + shift((1 - self.params.beta) * local.down.g)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        g = mean_direction(server.w, uploads.y, uploads.travel)
        gamma = self.params.eta_g * uploads.travel.mean()
        return server.replace(w=server.w - gamma * g, g=g)
