"""SCAFFOLD-M: SCAFFOLD with momentum inside the local steps (Cheng et al., ICLR 2024).

A client's corrected gradient is mixed with the last round's mean step g.

    client   y ← w;  K_i times:  y ← y − η (β (∇F_i(y) − c_i + c) + (1 − β) g)
             c_i ← mean of the K_i gradients ∇F_i(y)
    server   g ← mean_S (w − y_i)/(K_i η);   w ← w − γ g,   γ = η_g · mean_S K_i η;   c ← c + 1/N Σ_S Δc_i

The server sends u = β c + (1 − β) g, which is all of c and g that a step needs: β ∇F_i(y) − β c_i + u. The mean of such
steps is (w − y_i)/(K_i η), so that both sides find Δc_i = ((w − y_i)/(K_i η) − u)/β, and uploads carry the model only.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Controls
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


class ScaffoldM(Algorithm):
    name = "scaffold_m"
    title = "SCAFFOLD-M"
    idea = "SCAFFOLD whose local steps also follow the last round's mean step."
    paper = Paper("Momentum Benefits Non-IID Federated Learning Simply and Provably", "Cheng et al.", "ICLR", 2024)
    laws = (
        Law("SCAFFOLD-M(β = 1) is SCAFFOLD", {"beta": 1.0}, "scaffold", needs=frozenset({"equal_steps"})),
        Law(
            "SCAFFOLD-M(β = 1) with a server learning rate is SCAFFOLD with it",
            {"beta": 1.0, "eta_g": 0.7},
            "scaffold",
            {"eta_g": 0.7},
            needs=frozenset({"equal_steps"}),
        ),
    )
    params: Params

    class Params(AlgorithmParams):
        beta: float = Field(0.1, gt=0, le=1, description="β, share of a client's own corrected gradient; 1 is SCAFFOLD")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate: γ in units of the mean way K_i η")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, c=problem.zeros(), g=problem.zeros())

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, u=self._mixed(server))

    def correction(self, local: Local) -> Correction:
        return scaled(self.params.beta) + shift(local.down.u - self.params.beta * local.client.c)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        gain = ((local.w - y) / local.travel - local.down.u) / self.params.beta
        return Message(y=y), local.client.replace(c=local.client.c + gain)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        g = mean_direction(server.w, uploads.y, uploads.travel)
        gain = (g - self._mixed(server)) / self.params.beta  # mean_S Δc_i
        c = server.c + gain * (uploads.clients.S / uploads.clients.N)
        gamma = self.params.eta_g * uploads.travel.mean()
        return server.replace(w=server.w - gamma * g, c=c, g=g)

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c)

    def _mixed(self, server: State) -> Tensor:
        """u = β c + (1 − β) g [d]."""
        mixed: Tensor = self.params.beta * server.c + (1 - self.params.beta) * server.g
        return mixed
