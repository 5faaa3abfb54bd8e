"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020).

A client replaces its own mean gradient c_i by everybody's, c, in every local step.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) − c_i + c)
             c_i⁺ ← ∇F_i(w)  (option I)   or   c_i − c + (w − y)/(K_i η)  (option II)
    server   w ← w + η_g (mean_S y_i − w);   c ← c + 1/N Σ_S (c_i⁺ − c_i)

With option II the server forms c_i⁺ − c_i = −c + (w − y_i)/(K_i η) by itself, so uploads carry the model only.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Controls
from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Clients,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.server_steps import average, control_gain, towards
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class Scaffold(Algorithm):
    name = "scaffold"
    title = "SCAFFOLD"
    idea = "Control variates replace a client's own mean gradient by everybody's."
    paper = Paper(
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", "Karimireddy et al.", "ICML", 2020
    )
    params: Params

    class Params(AlgorithmParams):
        # FedDyn's and FedDC's program: every client takes the average client's steps, c is scaled by size in the
        # step but not in the update of c_i, and that update divides by the learning rate of round 0.
        modes = {"code": {"c_scaled": True, "c_lr": "initial", "c_steps": "common"}}
        option: Literal[1, 2] = Field(2, description="how c_i is renewed: 1 full gradient at w, 2 from the steps taken")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of the model average")
        c_scaled: bool = Field(False, description="c/ω_i in the step and ω_i Δc_i in the mean of c, ω_i = N n_i/n")
        c_lr: Literal["current", "initial"] = Field("current", description="learning rate in the update of c_i")
        c_steps: Literal["true", "common"] = Field(
            "true", description="local steps: each client's, or one number for all"
        )
        traffic: Literal["min", "paper"] = Field(
            "min", description="paper: Δc_i is uploaded although it can be derived"
        )

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, c=problem.zeros())

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c)

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor | None:
        if self.params.c_steps == "true":
            return None
        return clients.sizes.new_full((len(clients.ids),), problem.common_steps)

    def correction(self, local: Local) -> Correction:
        c = local.down.c / local.clients.omega if self.params.c_scaled else local.down.c
        return shift(c - local.client.c)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        if self.params.option == 1:
            c_new = local.full_gradient(local.w)
        else:
            c_new = local.client.c - local.down.c + (local.w - y) / self._travel(local.travel, local.round)
        message = Message(y=y)
        if self._uploads_c:
            message = message.replace(delta_c=c_new - local.client.c)
        return message, local.client.replace(c=c_new)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = uploads.clients
        mean = average(uploads.y, clients.weights(self.params.weights))
        shares = clients.uniform * clients.omega.squeeze(1) if self.params.c_scaled else clients.uniform
        if self._uploads_c:
            change = average(uploads.delta_c, shares)
        else:
            rates = shares / self._travel(uploads.travel, round).squeeze(1)
            change = control_gain(server.w, uploads.y, rates, shares.sum() * server.c)
        c = server.c + change * (clients.S / clients.N)
        return server.replace(w=towards(server.w, mean, self.params.eta_g), c=c)

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c)

    @property
    def _uploads_c(self) -> bool:
        return self.params.option == 1 or self.params.traffic == "paper"

    def _travel(self, travel: Tensor, round: Round) -> Tensor:
        """K_i·η as the update of c_i uses it [K, 1]."""
        return travel * (round.lr0 / round.lr) if self.params.c_lr == "initial" else travel
