"""What FedVeca's clients estimate while they train: how much their gradients bend, and how long they grow together."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.algorithms.fedveca_record import TINY


class Estimates:
    """β and the largest ‖Σ_{s≤λ} q_s‖²/(λ + 1) of K clients [K] while they train."""

    def __init__(self, w: Tensor) -> None:
        self.w, self.sum = w, torch.zeros_like(w)
        self.beta, self.delta = w.new_zeros(len(w)), w.new_zeros(len(w))

    def compare(self, y: Tensor, q: Tensor, at_w: Tensor, terms: int, active: Tensor | None) -> None:
        """Renew both by gradients q at y and at_w at w [K, d], for the clients that take this step."""
        steps_on = torch.ones_like(self.beta, dtype=torch.bool) if active is None else active
        distance = torch.linalg.vector_norm(y - self.w, dim=1)
        bend = torch.linalg.vector_norm(at_w - q, dim=1) / distance
        self.beta = torch.where(steps_on & (distance > TINY), torch.maximum(self.beta, bend), self.beta)
        length = torch.maximum(self.delta, self.sum.square().sum(dim=1) / terms)
        self.delta = torch.where(steps_on, length, self.delta)
