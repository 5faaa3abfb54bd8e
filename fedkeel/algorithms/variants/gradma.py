"""GradMA, GradMA-W and GradMA-S as their authors' program computes them.

x_{−1}      the global model, or for a new worker the received one          ``prev_init``, ``unseen``
decay       λ x is part of all three gradients, where no bias is, and so projected
dropout     each of the three gradients drops units of its own
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedkeel.algorithms.advanced import Projection, Rule
from fedkeel.algorithms.contract import Answer, Local, Message, Problem, Trained
from fedkeel.algorithms.gradma import GradMA, Worker, noting
from fedkeel.algorithms.gradma_s import GradMAS
from fedkeel.algorithms.gradma_w import GradMAW
from fedkeel.algorithms.state import State
from fedkeel.learning.projection import bounds_of


class WorkerVariant(Worker):
    def client_init(self, problem: Problem) -> State:
        """x^(i) = x_0, and where that matters that it is no model yet."""
        if self.params.prev_init == "global":
            return State()
        first = State(x=problem.w0)
        return first if self.params.unseen == "initial" else first.replace(seen=problem.w0.new_zeros(1))

    def local_round(self, local: Local) -> Answer:
        bounds = bounds_of(local.problem.layout, self.params.blocks)
        rule = Projection(self.params.rows, self._previous_model(local), self.params.rho_l, bounds)
        trained = train(local, self.params.decay, replace(rule, own_draws=self.params.dropout == "own"))
        now = {"x": trained.y, "seen": trained.y.new_ones(len(trained.y), 1)}
        state = local.client.replace(**{name: now[name] for name in local.client})
        return noting(local, trained), state, trained

    def _previous_model(self, local: Local) -> Tensor:
        """x_{−1} [K, d]."""
        if self.params.prev_init == "global":
            return local.w
        kept: Tensor = local.client.x
        return kept if self.params.unseen == "initial" else torch.where(local.client.seen > 0, kept, local.w)


class GradMAVariant(GradMA, WorkerVariant):
    pass


class GradMAWVariant(GradMAW, WorkerVariant):
    pass


class GradMASVariant(GradMAS):
    def local_round(self, local: Local) -> Answer:
        if self.params.decay == "all":
            return super().local_round(local)
        nothing = Projection((), local.w, 0.0, bounds_of(local.problem.layout, "flat"))
        trained = train(local, self.params.decay, nothing)
        return Message(y=trained.y), State(), trained


def train(local: Local, decay: str, rule: Projection) -> Trained:
    """The steps of K workers, with weight decay before or after the projection."""
    if decay == "all":
        return local.train_by(Rule(projection=rule))
    strength = torch.zeros_like(local.problem.w0)
    for entry in local.problem.layout:
        strength[entry.start : entry.stop] = 0.0 if "bias" in entry.name else local.sgd.weight_decay
    rule = replace(rule, decay=strength)
    return local.train_by(Rule(projection=rule), sgd=replace(local.sgd, weight_decay=0.0))
