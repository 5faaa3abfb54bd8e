"""FedVeca: federated vectorized averaging with adaptive local steps (Luo et al., IEEE TPDS 2024).

FedNova's normalised average, in which the server chooses every client's number of local steps τ_i anew each round. A
client gets fewer the more its gradients bend (β_i) and outgrow the global gradient (δ_i), next to the calmest client.

    client   r_i ← ∇F_i(w) over all its data;   y ← w
             λ = 0 … τ_i − 1:  q_λ ← ∇F_i(y; ξ_λ);   y ← y − η q_λ,  and from λ = 1 on, before that step,
                 β_i ← max(β_i, ‖∇F_i(w; ξ_λ) − q_λ‖/‖w − y‖);   δ_i ← max(δ_i, ‖Σ_{s≤λ} q_s‖²/((λ + 1) γ))
             sends y_i, r_i, F_i(y_i), β_i, δ_i
    server   ∇F(w) ← Σ p_i r_i;   G_i ← (w − y_i)/(η τ_i);   D ← Σ p_i G_i;   τ̄ ← Σ p_i τ_i
             w⁺ ← w − η τ̄ D,  kept if the acceptance test (off by default) lets it pass
             L ← max(L, ‖∇F(w_{k−1}) − ∇F(w_{k−2})‖/‖w_{k−1} − w_{k−2}‖)
             A_i ← η β_i² δ_i;   τ_i ← ⌊A_i/(A_i − α min_j A_j)⌋, held between τ_min and τ_max
             γ ← ‖∇F(w)‖² for the next round

The calmest client takes 1/(1 − α) steps. Sums run over the cohort; absent clients keep their τ_i. L feeds only the
diagnostics that the server keeps of Theorem 1 (premise η τ̄ L ≥ 1, bound (14), Assumption 2 ‖D‖ ≤ ‖∇F(w)‖) and the
optional cap on α. The configured epochs or steps are not used, because the steps are the algorithm's own.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Claim,
    Clients,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import PerClient, State
from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.task import Batch

TINY = 1e-12
"""Distances up to this count as zero, so that no quotient is taken over them."""


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
    claims = (
        Claim("Table I", "MNIST even/odd, SVM, 5 clients, Case 3, 100 rounds: accuracy", 86.63, "%"),
        Claim("Table I", "MNIST even/odd, SVM, 5 clients, Case 3, 100 rounds: loss", 0.2222, "loss"),
        Claim("Table I", "MNIST, CNN, 5 clients, Case 3, 100 rounds: accuracy", 93.04, "%"),
        Claim("Table I", "CIFAR-10, CNN, 5 clients, Case 3, 100 rounds: accuracy", 42.41, "%"),
    )
    unknown = frozenset({"beta", "delta", "A"})

    class Params(AlgorithmParams):
        modes = {"literal": {"accept": "local", "beta": "full", "L0": True, "tau_bar": "printed"}}
        alpha: float = Field(0.95, gt=0, lt=1, description="α, sets the most steps, 1/(1 − α); 0.5, 0.95 or 0.995")
        tau_0: int = Field(10, ge=1, description="τ_0, steps of every client in the first two rounds; not published")
        tau_min: int = Field(2, ge=1, description="fewest steps; δ needs two")
        tau_max: int = Field(50, ge=1, description="most steps; 50 in the paper")
        accept: Literal["off", "local", "global"] = Field(
            "off",
            description="keep a round only if its loss is the lowest yet; local: Σ p_i F_i(y_i), as printed, which "
            "rejects nearly everything; global: Σ p_i F_i(w⁺), one more exchange",
        )
        beta: Literal["same_batch", "full"] = Field(
            "same_batch", description="gradient at w in β: on the step's minibatch; full: r_i, as printed, adds noise"
        )
        delta: Literal["printed", "normalised"] = Field(
            "printed", description="δ grows like τ as printed; normalised divides by (λ + 1)² in place of λ + 1"
        )
        grad_norm: Literal["previous", "current"] = Field(
            "previous", description="γ from the round before, as printed, or from this round's gradients"
        )
        alpha_cap: bool = Field(False, description="keep α below 2L/min A, as Theorem 2 asks")
        tau_bar: Literal["used", "printed"] = Field(
            "used", description="τ̄ from the steps taken; printed: from τ before it is raised to τ_min"
        )
        L0: bool = Field(False, description="let L start from ‖∇F(w_0)‖/‖w_0‖, as printed")
        traffic: Literal["min", "paper"] = Field("min", description="paper: ∇F(w_{k−1}) travels, not only its norm")

        @model_validator(mode="after")
        def _ordered(self) -> FedVeca.Params:
            if self.tau_min > self.tau_max:
                raise ValueError(f"given a tau_min of at most tau_max = {self.tau_max}")
            return self

    def server_init(self, problem: Problem) -> State:
        params, unknown = self.params, torch.full((problem.N,), math.nan, dtype=torch.float64)
        tau = torch.full((problem.N,), min(max(params.tau_0, params.tau_min), params.tau_max))
        return State(
            w=problem.w0,
            # The first quotient of L compares w_0 with this: with itself it is skipped, with 0 it is ‖∇F(w_0)‖/‖w_0‖.
            w_prev=problem.zeros() if params.L0 else problem.w0,
            grad_prev=problem.zeros(),
            tau=tau,
            tau_floor=tau,
            L=math.nan,
            L_next=math.nan,
            F=math.nan,
            F_best=math.inf,
            accepted=True,
            beta=unknown,
            delta=unknown,
            A=unknown,
            tau_bar=math.nan,
            premise=math.nan,
            bound=math.nan,
            assumption_2=True,
        )

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        message = Message(w=server.w, tau=PerClient(server.tau[list(clients.ids)].to(torch.int32)))
        if self.params.grad_norm == "current":
            return message  # the server divides by γ when it knows it
        if self.params.traffic == "paper":
            return message.replace(grad=server.grad_prev)
        return message.replace(gamma=_norm(server.grad_prev) ** 2)

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor:
        tau: Tensor = down.tau.rows
        return tau.long()

    def local_round(self, local: Local) -> tuple[Message, State]:
        w, r = local.w, local.full_gradient(local.w)
        s = torch.zeros_like(w)
        beta, delta = w.new_zeros(len(w)), w.new_zeros(len(w))

        def gradient_at_w(b: Tensor, batch: Batch, draws: list[Tensor]) -> Tensor:
            if not local.task.draws_nothing:
                draw_again(local.task.device, draws)  # the same dropout as in the gradient that it is compared with
            return local.task.gradient(w, b, batch)[0]

        def gradient(y: Tensor, b: Tensor, batch: Batch, lam: int) -> tuple[Tensor, Tensor, Tensor]:
            nonlocal s, beta, delta
            draws = drawn_so_far(local.task.device)
            q, loss, b_after = local.task.gradient(y, b, batch)
            s = s + q
            if lam >= 1:
                steps_on = torch.ones_like(beta, dtype=torch.bool) if batch.active is None else batch.active
                at_w = r if self.params.beta == "full" else gradient_at_w(b, batch, draws)
                distance = torch.linalg.vector_norm(y - w, dim=1)
                bend = torch.linalg.vector_norm(at_w - q, dim=1) / distance
                beta = torch.where(steps_on & (distance > TINY), torch.maximum(beta, bend), beta)
                terms = (lam + 1) ** 2 if self.params.delta == "normalised" else lam + 1
                delta = torch.where(steps_on, torch.maximum(delta, s.square().sum(dim=1) / terms), delta)
            return q, loss, b_after

        y = local.train(gradient=gradient)
        return Message(y=y, r=r, loss=local.full_loss(y), beta=beta, delta=self._over_gamma(delta, local)), State()

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients, p, eta = uploads.clients, uploads.clients.p, round.lr
        rows = torch.tensor(clients.ids)
        grad = average(uploads.r, p)
        D = average((server.w - uploads.y) / uploads.travel, p)
        # travel/η is τ_i, and FedNova's ‖a_i‖₁ with local momentum.
        steps = uploads.travel[:, 0] / eta if self.params.tau_bar == "used" else server.tau_floor[rows].to(p.dtype)
        tau_bar = float(average(steps, p))
        candidate = server.w - eta * tau_bar * D

        loss = self._judged(uploads, candidate)
        accepted = self.params.accept == "off" or loss <= server.F_best

        L = max((x for x in (server.L, server.L_next) if not math.isnan(x)), default=math.nan)
        moved = _norm(server.w - server.w_prev)
        L_next = _norm(grad - server.grad_prev) / moved if moved > TINY else math.nan

        current = self.params.grad_norm == "current"
        gamma = _norm(grad if current else server.grad_prev) ** 2
        beta, delta = uploads.beta.double(), uploads.delta.double() / (gamma if current and gamma else 1.0)
        A = eta * beta.square() * delta if gamma else torch.full_like(delta, math.nan)
        floor = self._floor(A, L, server.tau_floor[rows])
        tau, weights = uploads.steps.double(), p.double()
        excess = float((weights * (tau * (2 * L + A) - A)).sum())
        return server.replace(
            w=candidate if accepted else server.w,
            w_prev=server.w,
            grad_prev=grad,
            tau=server.tau.index_copy(0, rows, floor.clamp(min=self.params.tau_min)),
            tau_floor=server.tau_floor.index_copy(0, rows, floor),
            L=L,
            L_next=L_next,
            F=loss,
            F_best=loss if accepted and self.params.accept != "off" else server.F_best,
            accepted=accepted,
            beta=_spread(beta, rows, clients.N),
            delta=_spread(delta, rows, clients.N),
            A=_spread(A, rows, clients.N),
            tau_bar=tau_bar,
            premise=eta * tau_bar * L,
            bound=eta * tau_bar * (eta / 4 * excess - 1),
            assumption_2=_norm(D) <= _norm(grad),
        )

    def alpha(self, A: Tensor, L: float) -> float:
        """α_k, held below 2L/min A if wanted and as soon as there is an L."""
        if self.params.alpha_cap and not math.isnan(L):
            return min(float(self.params.alpha), 0.999 * 2 * L / float(A.min()))
        return float(self.params.alpha)

    def _over_gamma(self, delta: Tensor, local: Local) -> Tensor:
        """δ_i [K] of the largest ‖Σ q‖²/(λ + 1); 0 in the first round, which has no earlier gradient."""
        if self.params.grad_norm == "current":
            return delta
        gamma = _norm(local.down.grad) ** 2 if self.params.traffic == "paper" else local.down.gamma
        return delta / gamma if gamma else torch.zeros_like(delta)

    def _judged(self, uploads: Uploads, candidate: Tensor) -> float:
        """The loss that the acceptance test looks at; NaN where there is no test."""
        if self.params.accept == "off":
            return math.nan
        losses = uploads.loss if self.params.accept == "local" else uploads.losses_at(candidate)
        return float(average(losses, uploads.clients.p))

    def _floor(self, A: Tensor, L: float, before: Tensor) -> Tensor:
        """⌊A_i/(A_i − α min A)⌋ up to τ_max [S]; as before where no A_i can be used."""
        used = usable(A)
        if used is None:
            return before
        # The calmest client's quotient is 1/(1 − α), often a whole number that rounding would push below itself.
        return (step_quotient(used, self.alpha(used, L)) * (1 + 1e-9)).floor().long().clamp(max=self.params.tau_max)


def usable(A: Tensor) -> Tensor | None:
    """A [S] with zeros and what is not finite replaced by the largest proper value; None if there is no such value."""
    proper = A.isfinite() & (A > 0)
    return torch.where(proper, A, A[proper].max()) if bool(proper.any()) else None


def step_quotient(A: Tensor, alpha: float) -> Tensor:
    """A_i/(A_i − α min A), equation 16 before rounding [S]."""
    return A / (A - alpha * A.min())


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _spread(values: Tensor, rows: Tensor, N: int) -> Tensor:
    """Values of a cohort [S] among all clients [N], NaN for the absent."""
    return torch.full((N,), math.nan, dtype=values.dtype).index_copy(0, rows, values)
