"""FedPVR: partial variance reduction (Li et al., CVPR 2023).

SCAFFOLD's control variates on the layers where clients differ most, the classifier P; plain averaging elsewhere.

    client   y ← w;  K_i times:  y ← y − η q,   q_P = ∇F_i(y)_P − c_i + c,   q elsewhere = ∇F_i(y)
             c_i⁺ ← c_i − c + (w − y)_P/(K_i η)
    server   w ← mean_S y_i;   c ← c + 1/N Σ_S (c_i⁺ − c_i)

c and c_i have only the v coordinates of P. The server derives c_i⁺ − c_i from y_i, so uploads carry the model only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Controls, Rule
from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Answer,
    Clients,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
    travel,
)
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction
from fedkeel.learning.loop import Sgd


class FedPvr(Algorithm):
    name = "fedpvr"
    title = "FedPVR"
    idea = "SCAFFOLD's correction on the classifier alone."
    paper = Paper(
        "On the Effectiveness of Partial Variance Reduction in Federated Learning with Heterogeneous Data",
        "Li et al.",
        "CVPR",
        2023,
    )
    laws = (
        Law("FedPVR of all layers is SCAFFOLD", {"mask": "all"}, "scaffold"),
        Law("FedPVR of no layer is FedAvg with equal weights", {"mask": "none"}, "fedavg", {"weights": "uniform"}),
    )
    params: Params

    class Params(AlgorithmParams):
        # The authors' program trains the corrected layers without momentum, whatever the others have (0.9 there).
        modes = {"code": {"momentum_corrected": 0.0}}
        mask: str = Field(
            "last1",
            description="P, the corrected layers: last1, last2, …, linear (VGG-11 in the paper), layer:NAME, all, none",
        )
        momentum_corrected: float | None = Field(
            None, ge=0, lt=1, description="local momentum of the corrected layers; absent: training.momentum"
        )
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of the model average")
        traffic: Literal["min", "paper"] = Field(
            "min", description="paper: Δc_i is uploaded although it can be derived"
        )

    def server_init(self, problem: Problem) -> State:
        mask = problem.layout.mask(self.params.mask)
        return State(w=problem.w0, c=problem.zeros()[mask], mask=mask)

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros()[problem.layout.mask(self.params.mask)])

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c)

    def local_round(self, local: Local) -> Answer:
        trained = local.train_by(Rule(correction=self.correction(local)), sgd=self._sgd(local))
        return *self.finish(local, trained.y), trained

    def correction(self, local: Local) -> Correction:
        by = torch.zeros_like(local.w)
        by[:, self._mask(local)] = local.down.c - local.client.c
        return shift(by)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        moved = (local.w - y)[:, self._mask(local)]
        delta_c = moved / self._travel(local.travel, local.steps, local.round) - local.down.c
        message = Message(y=y, delta_c=delta_c) if self.params.traffic == "paper" else Message(y=y)
        return message, local.client.replace(c=local.client.c + delta_c)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients = uploads.clients
        if self.params.traffic == "paper":
            delta_c = uploads.delta_c
        else:
            moved = (server.w - uploads.y)[:, server.mask]
            delta_c = moved / self._travel(uploads.travel, uploads.steps, round) - server.c
        c = server.c + average(delta_c, clients.uniform) * (clients.S / clients.N)
        return server.replace(w=average(uploads.y, clients.weights(self.params.weights)), c=c)

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c, server.mask)

    def _mask(self, local: Local) -> Tensor:
        return local.problem.layout.mask(self.params.mask)

    def _sgd(self, local: Local) -> Sgd:
        """The optimiser, with momentum by coordinate where the corrected layers have their own."""
        corrected = self.params.momentum_corrected
        if corrected is None or corrected == local.sgd.momentum:
            return local.sgd
        rest = torch.as_tensor(local.sgd.momentum, dtype=local.w.dtype).expand(local.task.d)
        return replace(local.sgd, momentum=torch.where(self._mask(local), corrected, rest))

    def _travel(self, usual: Tensor, steps: Tensor, round: Round) -> Tensor:
        """η_t·‖a_i‖₁ of the corrected coordinates [K, 1]; K_i·η_t without momentum."""
        corrected = self.params.momentum_corrected
        return usual if corrected is None else travel(round.lr, steps, corrected, usual.dtype)
