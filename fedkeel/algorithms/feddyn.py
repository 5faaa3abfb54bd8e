"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021).

Each client keeps the sum h_i of its past updates; its penalty is centred so that the clients' optima agree with the
server's when training ends.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + α_i (y − w + h_i)),   α_i = α/ω_i
             h_i ← h_i + (y − w)
    server   θ̄ ← mean_S y_i;   h̄ ← h̄ + 1/N Σ_S (y_i − w);   w ← θ̄ + h̄

Dividing α by ω_i = N n_i/n makes the fixed point the data-weighted optimum although the averages are unweighted.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms import last_models
from fedkeel.algorithms.contract import Algorithm, Clients, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.corrections import decay, pull, shift
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedDyn(Algorithm):
    name = "feddyn"
    title = "FedDyn"
    idea = "A moving quadratic penalty lines every client's optimum up with the global one."
    paper = Paper("Federated Learning Based on Dynamic Regularization", "Acar et al.", "ICLR", 2021)
    any_optimiser = True
    params: Params

    class Params(last_models.CandidateParams):
        # The authors' program adds the quadratic part to the optimiser's weight decay, which escapes clipping.
        modes = {"code": {"quadratic": "decay"}}
        alpha: float = Field(0.01, gt=0, description="α, weight of the penalty; 0.01 in the papers, 0.1 in other works")
        quadratic: Literal["clipped", "decay"] = Field(
            "clipped", description="where α_i y stands: inside or after the clip"
        )
        omega_min: float = Field(
            0.0, ge=0, description="floor on ω_i, against α/ω_i exploding for tiny clients; 0: off"
        )

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, h=problem.zeros(), **last_models.initial(self.params, problem))

    def client_init(self, problem: Problem) -> State:
        return State(h=problem.zeros())

    def correction(self, local: Local) -> Correction:
        alpha = self.params.alpha / relative_size(local.clients, self.params.omega_min)
        target = local.w - local.client.h
        if self.params.quadratic == "decay":
            return shift(-alpha * target) + decay(alpha)
        return pull(alpha, towards=target)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        return Message(y=y), local.client.replace(h=local.client.h + (y - local.w))

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = uploads.clients
        theta = average(uploads.y, clients.uniform)
        h = server.h + (theta - server.w) * (clients.S / clients.N)
        return server.replace(w=theta + h, h=h, **last_models.renewed(server, uploads, theta))

    def candidates(self, server: State) -> dict[str, Tensor]:
        return last_models.candidates(self.params, server)


def relative_size(clients: Clients, floor: float) -> Tensor:
    """ω_i [K, 1], not below the floor."""
    return clients.omega.clamp(min=floor) if floor else clients.omega
