"""MOON: model-contrastive federated learning (Li, He & Song, CVPR 2021).

A client's features are drawn towards those of the global model and pushed away from those of its own previous models,
so that local training does not undo what the average has learnt.

    client   y ← w;  on every batch z, z_w, z_1 … z_B: the features of y, w and the B previous local models
             ℓ = −log [ exp(cos(z, z_w)/T) / (exp(cos(z, z_w)/T) + Σ_j exp(cos(z, z_j)/T)) ]
             K_i times:  y ← y − η ∇(F_i(y) + μ ℓ(y))
             the previous models move up and y becomes the newest
    server   w ← Σ_S p_i y_i

Features are the output of everything before the model's last stage; w and the previous models run in evaluation mode.

A client that has not trained yet has no previous model, and by default no contrast: ℓ = 0. Putting the model that it
has just received in the place would do the same, for with z_1 = z_w the gradient of ℓ is exactly zero.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Contrast, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Message, Paper, Problem
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import State
from fedkeel.learning.objectives import cuts


class Moon(FedAvg):
    name = "moon"
    title = "MOON"
    idea = "A contrastive loss holds a client's features near the global model's and off its own previous ones."
    paper = Paper("Model-Contrastive Federated Learning", "Li et al.", "CVPR", 2021)
    laws: ClassVar[tuple[Law, ...]] = (
        Law("MOON(μ = 0) is FedAvg of the same model", {"mu": 0.0}, "fedavg", needs=frozenset({"stages"})),
    )
    gradients_a_step = 5 / 3  # two more forward passes
    params: Params

    class Params(FedAvg.Params):
        # The authors' program keeps the models of all clients after each of the last rounds. The pool is empty in
        # round 0; from then on it also holds the initial models of clients that have not trained yet.
        modes = {"code": {"pool": "rounds"}}
        mu: float = Field(1.0, ge=0, description="μ, weight of the contrastive loss; 0.1 to 10, 5 for CIFAR-10")
        T: float = Field(0.5, gt=0, description="T, temperature of the contrastive loss")
        buffer: int = Field(1, ge=1, le=2, description="B, previous models to stand off from: 1 or 2")
        pool: Literal["own", "rounds"] = Field(
            "own",
            description="own: a client's last B models, as far as it has trained; rounds: what it held after each of "
            "the last B rounds, its initial model included",
        )

    def client_init(self, problem: Problem) -> State:
        slots = self.params.buffer
        return State(
            prev=problem.w0.repeat(slots, 1),
            prev_b=problem.b0.repeat(slots, 1),
            when=problem.w0.new_full((slots,), -1),  # the round in which each was trained
        )

    def local_round(self, local: Local) -> Answer:
        cuts(local.task, self.title)
        prev, prev_b, when, valid = self.contrasted(local.client, local.round.t)
        contrast = Contrast(
            self.params.mu,
            self.params.T,
            models=torch.cat([local.w.unsqueeze(1), prev], dim=1),
            buffers=torch.cat([local.b.unsqueeze(1), prev_b], dim=1),
            counts=torch.cat([torch.ones_like(valid[:, :1]), valid], dim=1),
        )
        trained = local.train_by(Rule(inside=contrast))
        client = State(
            prev=torch.cat([prev[:, 1:], trained.y.unsqueeze(1)], dim=1),
            prev_b=torch.cat([prev_b[:, 1:], trained.b.unsqueeze(1)], dim=1),
            when=torch.cat([when[:, 1:], torch.full_like(when[:, :1], local.round.t)], dim=1),
        )
        return Message(y=trained.y), client, trained

    def contrasted(self, client: State, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What K clients stand off from in round t, oldest first: models, their buffers, their rounds, and which count.

        Shapes [K, B, d], [K, B, m], [K, B] and [K, B].
        """
        prev, prev_b, when = client.prev, client.prev_b, client.when
        if self.params.pool == "own":
            return prev, prev_b, when, when >= 0
        # In every round that a client missed, what it held moved up by one slot and stayed in the newest, too.
        slots = torch.arange(when.shape[1])
        missed = (t - 1 - when[:, -1:]).long()
        held = (slots + missed).clamp(max=slots[-1])
        rows = torch.arange(len(when)).unsqueeze(1)
        valid = (slots >= len(slots) - t).expand(len(when), -1)
        return prev[rows, held], prev_b[rows, held], when[rows, held], valid
