"""FedSMOO: FedDyn, with gradients uphill on which clients agree (Sun et al., ICML 2023).

A dual variable μ_i draws the points at which a client takes its gradients towards those of all, as h_i does with
models.

    client   y ← w;  K_i times:  v ← ∇F_i(y) − μ_i − s;   ε ← ρ v/‖v‖;   μ_i ← μ_i + ε − s
                                 y ← y − η (∇F_i(y + ε) + α_i (y − w + h_i)),   α_i = α/ω_i
             h_i ← h_i + (y − w)
    server   s ← ρ mean_S μ_i/‖mean_S μ_i‖
             θ̄ ← mean_S y_i;   h̄ ← h̄ + 1/N Σ_S (y_i − w);   w ← θ̄ + h̄
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Ascent, Consensus, Rule, of_length
from fedkeel.algorithms.contract import Answer, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.feddyn import FedDyn
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State


class FedSMOO(FedDyn):
    name = "fedsmoo"
    title = "FedSMOO"
    idea = "FedDyn's penalty, and gradients of points uphill on which clients agree."
    paper = Paper(
        "Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global Consistency and "
        "Smooth Landscape",
        "Sun et al.",
        "ICML",
        2023,
    )
    laws: ClassVar[tuple[Law, ...]] = (
        Law("FedSMOO(ρ = 0) is FedDyn", {"rho": 0.0, "alpha": 0.1}, "feddyn", {"alpha": 0.1}),
    )
    gradients_a_step = 2.0
    params: Params

    class Params(FedDyn.Params):
        alpha: float = Field(0.1, gt=0, description="α, weight of the penalty, 1/β of the paper; 0.1 in the program")
        rho: float = Field(0.1, ge=0, description="ρ, how far uphill the gradient is taken")

    def server_init(self, problem: Problem) -> State:
        return super().server_init(problem).replace(s=problem.zeros())

    def client_init(self, problem: Problem) -> State:
        return super().client_init(problem).replace(mu=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, s=server.s)

    def local_round(self, local: Local) -> Answer:
        mu = local.client.mu.clone()  # which training renews
        ascent = Ascent(self.params.rho, consensus=Consensus(mu, local.down.s))
        trained = local.train_by(Rule(ascent=ascent, correction=self.correction(local)))
        message, client = self.finish(local, trained.y)
        return message.replace(mu=mu), client.replace(mu=mu), trained

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        s = of_length(average(uploads.mu, uploads.clients.uniform), self.params.rho)
        return super().aggregate(server, uploads, round).replace(s=s)
