"""GradMA-S: the server's half of GradMA (Luo et al., CVPR 2023).

    worker   y ← x;  K_i times:  y ← y − η ∇f_i(y);   d_i = x − y
    server   (c, D, buf) ← mem_red(m, S_t, c, D, buf)      (Algorithm 4: ``gradma_memory``)
             m = β1 m̃ + Σ_S a_i d_i;   m̃ ← QP(m, D);   x ← x − η_g m̃      (Algorithm 3: ``gradma.server_update``)

The momentum is projected so that it does not work against the accumulated update of any remembered client.
"""

from __future__ import annotations

import torch

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.contract import Algorithm, Claim, Clients, Law, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.gradma import CODE, PAPER, ServerParams, check_memory, decayed, server_update
from fedkeel.algorithms.state import State


class GradMAS(Algorithm):
    name = "gradma_s"
    unknown = memory.UNKNOWN
    title = "GradMA-S"
    idea = "The server's momentum is projected so that it does not undo what absent clients contributed."
    paper = PAPER
    laws = (
        Law(
            "GradMA-S without conflicts is FedAvgM",
            {"beta1": 0.6, "rho_g": -1.0},
            "fedavgm",
            {"beta": 0.6, "weights": "uniform"},
        ),
        Law(
            "GradMA-S(β1 = 0) without conflicts is FedAvg",
            {"beta1": 0.0, "beta2": 0.0, "rho_g": -1.0},
            "fedavg",
            {"weights": "uniform"},
        ),
    )
    claims = (
        Claim("Table 1", "MNIST, MLP, Dirichlet 0.01, 10 clients a round: best accuracy", 74.52, "%"),
        Claim("Table 1", "CIFAR-10, LeNet-5, Dirichlet 0.1, 10 clients a round: best accuracy", 64.60, "%"),
        Claim("Table 1", "CIFAR-10, LeNet-5, Dirichlet 0.01, 10 clients a round: best accuracy", 28.41, "%"),
    )

    class Params(ServerParams):
        modes = {"literal": {"blocks": "tensor"}, "code": CODE}

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros(), **memory.initial(problem, self.params.blocks))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        check_memory(self.name, self.params, clients)
        return Message(w=server.w)

    def local_round(self, local: Local) -> tuple[Message, State]:
        if self.params.decay == "all":
            return super().local_round(local)
        nabla, sgd = decayed(self.params, local)
        g = torch.empty_like(local.w)
        y = local.train(gradient=lambda y, b, batch, k: nabla(y, b, batch, g), sgd=sgd)
        return Message(y=y), local.client

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server_update(self.params, server, uploads)
