"""FedVeca as printed, and with what its text offers.

accept      a round counts only if its loss is the lowest yet: Σ p_i F_i(y_i) as printed, or Σ p_i F_i(w⁺)
beta        the gradient at w in β over all data, r_i, against one of a minibatch: noise comes in
delta       ‖Σ q‖² divided by (λ + 1)² in place of λ + 1, so that δ does not grow with τ
grad_norm   γ of this round's gradients, which the server divides by when it knows them
alpha_cap   α below 2L/min A, as Theorem 2 asks;  L0: L starts from ‖∇F(w_0)‖/‖w_0‖
tau_bar     τ̄ of the steps before they are raised to τ_min;  traffic: ∇F(w_{k−1}) travels, not only its norm
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedkeel.algorithms import fedveca_record as record
from fedkeel.algorithms.contract import Answer, Clients, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.fedveca import FedVeca, usable
from fedkeel.algorithms.fedveca_estimates import Estimates
from fedkeel.algorithms.fedveca_record import norm
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.task import Batch


class FedVecaVariant(FedVeca):
    def server_init(self, problem: Problem) -> State:
        # The first quotient of L compares w_0 with this: with itself it is skipped, with 0 it is ‖∇F(w_0)‖/‖w_0‖.
        server = super().server_init(problem)
        return server.replace(w_prev=problem.zeros()) if self.params.L0 else server

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        message = super().broadcast(server, round, clients)
        if self.params.grad_norm == "current":
            return Message(w=message.w, tau=message.tau)  # the server divides by γ when it knows it
        if self.params.traffic == "paper":
            return Message(w=message.w, tau=message.tau, grad=server.grad_prev)
        return message

    def local_round(self, local: Local) -> Answer:
        w, r, seen = local.w, local.full_gradient(local.w), Estimates(local.w)

        def at_w(b: Tensor, batch: Batch, draws: list[Tensor]) -> Tensor:
            if self.params.beta == "full":
                return r
            if not local.task.draws_nothing:
                draw_again(local.task.device, draws)
            return local.task.gradient(w, b, batch)[0]

        def gradient(y: Tensor, b: Tensor, batch: Batch, lam: int) -> tuple[Tensor, Tensor, Tensor]:
            draws = drawn_so_far(local.task.device)
            q, loss, b_after = local.task.gradient(y, b, batch)
            seen.sum = seen.sum + q
            if lam >= 1:
                terms = (lam + 1) ** 2 if self.params.delta == "normalised" else lam + 1
                seen.compare(y, q, at_w(b, batch, draws), terms, batch.active)
            return q, loss, b_after

        trained = local.train(gradient=gradient)
        delta, loss = self._over_gamma(seen.delta, local.down), local.full_loss(trained.y)
        return Message(y=trained.y, r=r, loss=loss, beta=seen.beta, delta=delta), State(), trained

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        p, eta, rows = uploads.clients.p, round.lr, torch.tensor(uploads.clients.ids)
        grad = average(uploads.r, p)
        D = average((server.w - uploads.y) / uploads.travel, p)
        steps = uploads.travel[:, 0] / eta if self.params.tau_bar == "used" else server.tau_floor[rows].to(p.dtype)
        tau_bar = float(average(steps, p))
        candidate = server.w - eta * tau_bar * D
        loss = self._judged(uploads, candidate)
        judged = self.params.accept != "off"
        accepted = not judged or loss <= server.F_best
        current = self.params.grad_norm == "current"
        gamma = norm(grad if current else server.grad_prev) ** 2
        beta, delta = uploads.beta.double(), uploads.delta.double() / (gamma if current and gamma else 1.0)
        A = eta * beta.square() * delta if gamma else torch.full_like(delta, math.nan)
        used = usable(A)
        alpha = self.params.alpha if used is None else self.alpha(used, record.smoothness(server))
        floor = self.floor(A, server.tau_floor[rows], alpha)
        after = server.replace(
            w=candidate if accepted else server.w,
            grad_prev=grad,
            tau=server.tau.index_copy(0, rows, floor.clamp(min=self.params.tau_min)),
            **record.renewed(server, uploads, eta, record.Seen(grad, D, tau_bar, beta, delta, A, floor)),
            F=loss,
            F_best=loss if accepted and judged else server.F_best,
            accepted=accepted,
        )
        after = record.noting(after, uploads)
        return after.noting(accepted=accepted) if judged else after

    def alpha(self, A: Tensor, L: float) -> float:
        """α_k, held below 2L/min A if wanted and as soon as there is an L."""
        if self.params.alpha_cap and not math.isnan(L):
            return min(self.params.alpha, 0.999 * 2 * L / float(A.min()))
        return self.params.alpha

    def _over_gamma(self, delta: Tensor, down: State) -> Tensor:
        """δ_i [K]; 0 in the first round, which has no earlier gradient."""
        if self.params.grad_norm == "current":
            return delta
        gamma = norm(down.grad) ** 2 if self.params.traffic == "paper" else down.gamma
        return delta / gamma if gamma else torch.zeros_like(delta)

    def _judged(self, uploads: Uploads, candidate: Tensor) -> float:
        """The loss that the acceptance test looks at; NaN where there is no test."""
        if self.params.accept == "off":
            return math.nan
        losses = uploads.loss if self.params.accept == "local" else uploads.losses_at(candidate)
        return float(average(losses, uploads.clients.p))
