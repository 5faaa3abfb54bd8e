"""FedVeca: federated vectorized averaging with adaptive local steps (Luo et al., IEEE TPDS 2024).

FedNova's normalised average, in which the server chooses every client's number of local steps τ_i anew each round. A
client gets fewer the more its gradients bend (β_i) and outgrow the global gradient (δ_i), next to the calmest client.

    client   r_i ← ∇F_i(w) over all its data;   y ← w
             λ = 0 … τ_i − 1:  q_λ ← ∇F_i(y; ξ_λ);   y ← y − η q_λ,  and from λ = 1 on, before that step,
                 β_i ← max(β_i, ‖∇F_i(w; ξ_λ) − q_λ‖/‖w − y‖);   δ_i ← max(δ_i, ‖Σ_{s≤λ} q_s‖²/((λ + 1) γ))
             sends y_i, r_i, F_i(y_i), β_i, δ_i
    server   ∇F(w) ← Σ p_i r_i;   G_i ← (w − y_i)/(η τ_i);   D ← Σ p_i G_i;   τ̄ ← Σ p_i τ_i
             w ← w − η τ̄ D
             A_i ← η β_i² δ_i;   τ_i ← ⌊A_i/(A_i − α min_j A_j)⌋, held between τ_min and τ_max
             γ ← ‖∇F(w)‖² for the next round

The calmest client takes 1/(1 − α) steps. Sums run over the cohort; absent clients keep their τ_i. The server also keeps
a record of Theorem 1: L, the premise η τ̄ L ≥ 1, the bound (14) and Assumption 2, ‖D‖ ≤ ‖∇F(w)‖ (``fedveca_record``).
The configured epochs or steps are not used.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkeel.algorithms import fedveca_record as record
from fedkeel.algorithms.contract import Algorithm, Answer, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.fedveca_estimates import Estimates
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import PerClient, State
from fedkeel.algorithms.variants.readings import FedVecaReadings
from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.task import Batch


class FedVeca(Algorithm):
    name = "fedveca"
    title = "FedVeca"
    idea = "The server gives every client its own number of local steps, by how much its gradients bend and stray."
    paper = Paper(
        "FedVeca: Federated Vectorized Averaging on Non-IID Data With Adaptive Bi-Directional Global Objective",
        "Luo et al.",
        "IEEE Transactions on Parallel and Distributed Systems",
        2024,
    )
    laws = (
        Law(
            "FedVeca with τ fixed at one step is FedNova",
            {"tau_0": 1, "tau_min": 1, "tau_max": 1},
            "fednova",
            needs=frozenset({"single_step"}),
        ),
    )
    unknown = record.UNKNOWN
    sets_steps = True
    gradients_a_step, passes_a_round = 2.0, 4 / 3
    partial = (
        "FedVeca's paper has all clients in every round; with part of them its accuracy swings, because few steps are "
        "stretched to the cohort's mean: alpha = 0.5 calms it."
    )
    variant = "fedkeel.algorithms.variants.fedveca:FedVecaVariant"
    params: Params

    class Params(FedVecaReadings):
        alpha: float = Field(0.95, gt=0, lt=1, description="α, sets the most steps, 1/(1 − α); 0.5, 0.95 or 0.995")
        tau_0: int = Field(10, ge=1, description="τ_0, steps of every client in the first two rounds; not published")
        tau_min: int = Field(2, ge=1, description="fewest steps; δ needs two")
        tau_max: int = Field(50, ge=1, description="most steps; 50 in the paper")

        @model_validator(mode="after")
        def _ordered(self) -> FedVeca.Params:
            if self.tau_min > self.tau_max:
                raise ValueError(f"given a tau_min of at most tau_max = {self.tau_max}")
            return self

    def server_init(self, problem: Problem) -> State:
        tau = torch.full((problem.N,), min(max(self.params.tau_0, self.params.tau_min), self.params.tau_max))
        return State(w=problem.w0, grad_prev=problem.zeros(), tau=tau, **record.initial(problem, tau))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        tau = PerClient(server.tau[list(clients.ids)].to(torch.int32))
        return Message(w=server.w, tau=tau, gamma=record.norm(server.grad_prev) ** 2)

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor:
        tau: Tensor = down.tau.rows
        return tau.long()

    def local_round(self, local: Local) -> Answer:
        w, r, seen = local.w, local.full_gradient(local.w), Estimates(local.w)

        def gradient(y: Tensor, b: Tensor, batch: Batch, lam: int) -> tuple[Tensor, Tensor, Tensor]:
            draws = drawn_so_far(local.task.device)
            q, loss, b_after = local.task.gradient(y, b, batch)
            seen.sum = seen.sum + q
            if lam >= 1:
                if not local.task.draws_nothing:
                    draw_again(local.task.device, draws)  # the same dropout in both gradients
                at_w, _, _ = local.task.gradient(w, b, batch)
                seen.compare(y, q, at_w, lam + 1, batch.active)
            return q, loss, b_after

        trained, gamma = local.train(gradient=gradient), local.down.gamma
        delta = seen.delta / gamma if gamma else torch.zeros_like(seen.delta)  # round 0 has no earlier gradient
        return Message(y=trained.y, r=r, loss=local.full_loss(trained.y), beta=seen.beta, delta=delta), State(), trained

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        p, eta, rows = uploads.clients.p, round.lr, torch.tensor(uploads.clients.ids)
        grad = average(uploads.r, p)
        D = average((server.w - uploads.y) / uploads.travel, p)
        tau_bar = float(average(uploads.travel[:, 0] / eta, p))  # τ_i is FedNova's ‖a_i‖₁ with local momentum
        beta, delta = uploads.beta.double(), uploads.delta.double()
        A = eta * beta.square() * delta if record.norm(server.grad_prev) ** 2 else torch.full_like(delta, math.nan)
        floor = self.floor(A, server.tau_floor[rows], self.params.alpha)
        after = server.replace(
            w=server.w - eta * tau_bar * D,
            grad_prev=grad,
            tau=server.tau.index_copy(0, rows, floor.clamp(min=self.params.tau_min)),
            **record.renewed(server, uploads, eta, record.Seen(grad, D, tau_bar, beta, delta, A, floor)),
        )
        return record.noting(after, uploads)

    def floor(self, A: Tensor, before: Tensor, alpha: float) -> Tensor:
        """⌊A_i/(A_i − α min A)⌋ up to τ_max [S]; as before where no A_i can be used."""
        used = usable(A)
        if used is None:
            return before
        # The calmest client's quotient is 1/(1 − α), often a whole number that rounding would push below itself.
        return (step_quotient(used, alpha) * (1 + 1e-9)).floor().long().clamp(max=self.params.tau_max)


def usable(A: Tensor) -> Tensor | None:
    """A [S] with zeros and what is not finite replaced by the largest proper value; None if there is no such value."""
    proper = A.isfinite() & (A > 0)
    return torch.where(proper, A, A[proper].max()) if bool(proper.any()) else None


def step_quotient(A: Tensor, alpha: float) -> Tensor:
    """A_i/(A_i − α min A), equation 16 before rounding [S]."""
    return A / (A - alpha * A.min())
