"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022).

Each client keeps a drift h_i that is added to its model before averaging, so that the average does not have to wait for
the clients to agree. A linear term, as in SCAFFOLD, removes what is left of the gradient drift.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + α_i (y + h_i − w) − c_i + c/ω_i),   α_i = α/ω_i
             c_i ← c_i − c/ω_i + (w − y)/(K_i η);   h_i ← h_i + (y − w)
    server   h̄ ← h̄ + 1/N Σ_S (y_i − w);   c ← c + 1/N Σ_S ω_i Δc_i;   w ← mean_S y_i + h̄

Without the linear term this is FedDyn. The server derives Δc_i from y_i, so uploads carry the model only.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms import last_models
from fedkeel.algorithms.contract import Algorithm, Claim, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.corrections import pull, shift
from fedkeel.algorithms.feddyn import relative_size
from fedkeel.algorithms.server_steps import average, average_gap
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedDC(Algorithm):
    name = "feddc"
    title = "FedDC"
    idea = "Clients carry their drift along and add it before averaging; a linear term corrects the gradients."
    paper = Paper(
        "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
        "Gao et al.",
        "CVPR",
        2022,
    )
    laws = (
        Law("FedDC without its linear term is FedDyn", {"linear": False, "alpha": 0.05}, "feddyn", {"alpha": 0.05}),
        Law(
            "FedDC(α = 0) with no drift in the average is SCAFFOLD",
            {"alpha": 0.0, "use_h": False},
            "scaffold",
            needs=frozenset({"equal_sizes"}),
        ),
    )
    claims = (
        Claim("Table 1", "MNIST, Dirichlet 0.3, 15 %: rounds to 98 %", 62, "rounds"),
        Claim("Table 1", "MNIST, Dirichlet 0.6, 15 %: rounds to 98 %", 60, "rounds"),
        Claim("Table 3", "MNIST, Dirichlet 0.3, 15 %: best accuracy", 98.40, "%"),
    )

    class Params(last_models.CandidateParams):
        modes = {
            # The print: no scaling by size, the last update itself as linear term, one data-weighted sum of y + h.
            "literal": {
                "alpha_scaled": False,
                "c_scaled": False,
                "g": "last_update",
                "agg": "eq7",
                "c_lr": "initial",
                "c_steps": "common",
            },
            # The authors' program divides by the average client's steps and the learning rate of round 0.
            "code": {"c_lr": "initial", "c_steps": "common"},
        }
        alpha: float = Field(
            0.1, ge=0, description="α, weight of the penalty ‖y + h − w‖²; 0.01 on CIFAR, 0.1 on MNIST"
        )
        linear: bool = Field(True, description="the SCAFFOLD-like linear term")
        use_h: bool = Field(True, description="add the drift before averaging")
        alpha_scaled: bool = Field(True, description="α_i = α/ω_i; false: α for everybody, as printed")
        c_scaled: bool = Field(True, description="c/ω_i in the step and ω_i Δc_i in the mean of c")
        g: Literal["recursion", "last_update"] = Field(
            "recursion", description="the linear term: SCAFFOLD's or as printed"
        )
        agg: Literal["repo", "eq7"] = Field(
            "repo", description="mean_S y + mean_N h, or Σ_S p_i (y_i + h_i) as printed"
        )
        c_lr: Literal["current", "initial"] = Field("current", description="learning rate in the update of c_i")
        c_steps: Literal["true", "common"] = Field(
            "true", description="steps in the update of c_i: K_i or the average's"
        )
        omega_min: float = Field(
            0.0, ge=0, description="floor on ω_i, against α/ω_i exploding for tiny clients; 0: off"
        )
        traffic: Literal["min", "paper"] = Field(
            "min", description="paper: Δc_i is uploaded although it can be derived"
        )

    def server_init(self, problem: Problem) -> State:
        drift = {"c": problem.zeros(), "h": problem.zeros(), "common_steps": problem.common_steps}
        return State(w=problem.w0, **drift, **last_models.initial(self.params, problem))

    def client_init(self, problem: Problem) -> State:
        return State(h=problem.zeros(), c=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c)

    def correction(self, local: Local) -> Correction:
        omega = relative_size(local.clients, self.params.omega_min)
        penalty = pull(
            self.params.alpha / omega if self.params.alpha_scaled else self.params.alpha,
            towards=local.w - local.client.h,
        )
        if not self.params.linear:
            return penalty
        return penalty + shift(self._for_client(local.down.c, local.clients) - local.client.c)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        travel = self._travel(local.travel, local.steps, local.problem.common_steps, local.round)
        seen = (local.w - y) / travel
        if self.params.g == "recursion":
            c_new = local.client.c - self._for_client(local.down.c, local.clients) + seen
        else:
            c_new = seen
        h_new = local.client.h + (y - local.w)
        message = Message(y=y)
        if self._uploads_c:
            message = message.replace(delta_c=c_new - local.client.c)
        if self.params.agg == "eq7":
            message = message.replace(h=h_new)
        return message, local.client.replace(h=h_new, c=c_new)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients, y = uploads.clients, uploads.y
        theta = average(y, clients.uniform)
        h = server.h + (theta - server.w) * (clients.S / clients.N)
        if self.params.agg == "eq7":
            w = average(y + uploads.h, clients.p)
        else:
            w = theta + h if self.params.use_h else theta
        omega = (
            relative_size(clients, self.params.omega_min) if self.params.c_scaled else torch.ones_like(clients.omega)
        )
        if self._uploads_c:
            change = average(uploads.delta_c, clients.uniform * omega.squeeze(1))
        else:  # Σ_S ω_i Δc_i/S with Δc_i = (w − y_i)/(K_i η) − c/ω_i, without forming each
            travel = self._travel(uploads.travel, uploads.steps, server.common_steps, round)
            change = average_gap(server.w, y, clients.uniform * (omega / travel).squeeze(1)) - server.c
        c = server.c + change * (clients.S / clients.N)
        return server.replace(w=w, c=c, h=h, **last_models.renewed(server, uploads, theta))

    def candidates(self, server: State) -> dict[str, Tensor]:
        return last_models.candidates(self.params, server)

    @property
    def _uploads_c(self) -> bool:
        return bool(self.params.g == "last_update" or self.params.traffic == "paper")

    def _for_client(self, c: Tensor, clients: Clients) -> Tensor:
        """c as a client of its size uses it [K, d]."""
        return c / relative_size(clients, self.params.omega_min) if self.params.c_scaled else c

    def _travel(self, travel: Tensor, steps: Tensor, common_steps: int, round: Round) -> Tensor:
        """K_i·η_t, or what a mode puts in place of either factor [K, 1]."""
        if self.params.c_steps == "common":
            travel = travel * (common_steps / steps.to(travel.dtype)).unsqueeze(1)
        return travel * (round.lr0 / round.lr) if self.params.c_lr == "initial" else travel
