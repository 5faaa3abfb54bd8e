"""GradMA-W: the worker's half of GradMA (Luo et al., CVPR 2023).

    worker   x^(i) ← Worker_Update(x^(i), x)      (Algorithm 2: ``gradma.worker_update``);   d_i = x − x^(i)
    server   x ← x − η_g Σ_S a_i d_i

A step is projected so that it agrees with the gradients at the previous point and at the global model, and does not
lead further away from the latter.
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Algorithm, Claim, Law, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.gradma import CODE_WORKER, PAPER, WorkerParams, last_model, no_model, worker_update
from fedkeel.algorithms.server_steps import average_gap
from fedkeel.algorithms.state import State


class GradMAW(Algorithm):
    name = "gradma_w"
    title = "GradMA-W"
    idea = "Local steps are projected so that they do not work against three remembered directions."
    paper = PAPER
    laws = (
        Law("GradMA-W without rows is FedAvg", {"rows": ()}, "fedavg", {"weights": "uniform"}),
        Law(
            "GradMA-W that starts from the global model takes a plain first step",
            {"prev_init": "global"},
            "fedavg",
            {"weights": "uniform"},
            frozenset({"single_step"}),
        ),
        Law(
            "GradMA-W is the same with a margin that nothing violates and with no rows",
            {"rho_l": -1.0},
            "gradma_w",
            {"rows": ()},
        ),
    )
    claims = (
        Claim("Table 1", "MNIST, MLP, Dirichlet 1, 10 clients a round: best accuracy", 98.15, "%"),
        Claim("Table 1", "MNIST, MLP, Dirichlet 0.01, 10 clients a round: best accuracy", 63.34, "%"),
        Claim("Table 1", "CIFAR-10, LeNet-5, Dirichlet 0.1, 10 clients a round: best accuracy", 50.25, "%"),
    )

    class Params(WorkerParams):
        # Here the authors' program does keep the local model.
        modes = {"literal": {"blocks": "tensor"}, "code": CODE_WORKER}

    def client_init(self, problem: Problem) -> State:
        return no_model(self.params, problem)

    def local_round(self, local: Local) -> tuple[Message, State]:
        y = worker_update(self.params, local)
        return Message(y=y), last_model(local.client, y)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        d = average_gap(server.w, uploads.y, uploads.clients.weights(self.params.weights))
        return server.replace(w=server.w - self.params.eta_g * d)
