"""The other descriptions of FedPMVR: all train as FedAvg does and then correct y on P."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Answer, Local, Message, Problem
from fedkeel.algorithms.fedpmvr import FedPMVR
from fedkeel.algorithms.state import State


class FedPMVRVariant(FedPMVR):
    def client_init(self, problem: Problem) -> State:
        """m on the corrected coordinates only [v], for the descriptions that remember it."""
        P = problem.layout.mask(self.params.mask)
        return State(m=problem.w0.new_zeros(int(P.sum()))) if self.params.variant in ("ema", "repo") else State()

    def local_round(self, local: Local) -> Answer:
        trained = local.train()
        return *self.finish(local, trained.y), trained

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        P, alpha, variant = local.problem.layout.mask(self.params.mask), self.params.alpha, self.params.variant
        if variant == "repo_dead":
            return Message(y=y), local.client
        if variant == "alg1":
            # One gradient at the trained model serves both parts: an extra step, also outside P.
            rate = torch.full_like(y[0], local.round.lr).masked_fill(P, alpha)
            return Message(y=y - rate * local.full_gradient(y)), local.client
        m = alpha * (y - local.w)[:, P]
        if variant == "ema":
            m = m + (1 - alpha) * local.client.m
        elif variant == "repo":
            m = m + local.client.m
        corrected = y.clone()
        corrected[:, P] -= m
        return Message(y=corrected), local.client if variant == "shrink" else local.client.replace(m=m)
