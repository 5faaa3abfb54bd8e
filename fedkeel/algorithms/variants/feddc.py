"""FedDC as printed, as programmed, and without one of its parts.

α_i        α for everybody, as printed                                                     ``alpha_scaled``
c/ω_i      c, as printed                                                                   ``c_scaled``
c_i        (w − y)/(K η), the last update alone, as printed; it swings from round to round ``g = "last_update"``
K_i, η_t   the average client's steps, the learning rate of round 0                        ``c_steps``, ``c_lr``
w          Σ_S p_i (y_i + h_i), as printed: right only if everybody takes part             ``agg = "eq7"``
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.algorithms import last_models
from fedkeel.algorithms.contract import Clients, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.corrections import pull, shift
from fedkeel.algorithms.feddc import FedDC
from fedkeel.algorithms.feddyn import relative_size
from fedkeel.algorithms.server_steps import average, control_gain
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedDCVariant(FedDC):
    def server_init(self, problem: Problem) -> State:
        return super().server_init(problem).replace(common_steps=problem.common_steps)

    def correction(self, local: Local) -> Correction:
        omega = relative_size(local.clients, self.params.omega_min)
        alpha = self.params.alpha / omega if self.params.alpha_scaled else self.params.alpha
        penalty = pull(alpha, towards=local.w - local.client.h)
        return penalty + shift(self._for_client(local) - local.client.c) if self.params.linear else penalty

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        c = (local.w - y) / self._travel(local.travel, local.steps, local.problem.common_steps, local.round)
        if self.params.g == "recursion":
            c = local.client.c - self._for_client(local) + c
        h = local.client.h + (y - local.w)
        message = Message(y=y, delta_c=c - local.client.c) if self._uploads_c else Message(y=y)
        message = message.replace(h=h) if self.params.agg == "eq7" else message
        return message, local.client.replace(h=h, c=c)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients, y = uploads.clients, uploads.y
        theta = average(y, clients.uniform)
        h = server.h + (theta - server.w) * (clients.S / clients.N)
        if self.params.agg == "eq7":
            w = average(y + uploads.h, clients.p)
        else:
            w = theta + h if self.params.use_h else theta
        omega = self._omega(clients)
        if self._uploads_c:
            gain = average(uploads.delta_c, clients.uniform * omega.squeeze(1))
        else:
            travel = self._travel(uploads.travel, uploads.steps, server.common_steps, round)
            gain = control_gain(server.w, y, clients.uniform * (omega / travel).squeeze(1), server.c)
        c = server.c + gain * (clients.S / clients.N)
        return server.replace(w=w, c=c, h=h, **last_models.renewed(server, uploads, theta))

    @property
    def _uploads_c(self) -> bool:
        return self.params.g == "last_update" or self.params.traffic == "paper"

    def _for_client(self, local: Local) -> Tensor:
        """c as clients of their size use it [K, d]."""
        c: Tensor = local.down.c
        return c / self._omega(local.clients) if self.params.c_scaled else c

    def _omega(self, clients: Clients) -> Tensor:
        """ω_i where c knows sizes, 1 where it does not [K, 1]."""
        known = relative_size(clients, self.params.omega_min)
        return known if self.params.c_scaled else torch.ones_like(known)

    def _travel(self, travel: Tensor, steps: Tensor, common_steps: int, round: Round) -> Tensor:
        """K_i·η_t, or what takes the place of either factor [K, 1]."""
        if self.params.c_steps == "common":
            travel = travel * (common_steps / steps.to(travel.dtype)).unsqueeze(1)
        return travel * (round.lr0 / round.lr) if self.params.c_lr == "initial" else travel
