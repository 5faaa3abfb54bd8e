"""GradMA: gradient-memory-based accelerated federated learning (Luo et al., CVPR 2023).

Forgetting is treated as in continual learning: before a step is taken, its direction is projected (QP) so that
it does not work against remembered directions. A worker remembers three vectors, the server one a client.

    Algorithm 1   x^(i) = x_0;  m̃ = 0.  In round t:  (c, D, buf) ← mem_red(m, S_t, c, D, buf)       (gradma_memory)
                  i ∈ S_t:  x^(i) ← Worker_Update(x^(i), x_t);  d_i = x_t − x^(i)
                  (D, x_{t+1}, m̃_{t+1}) ← Server_Update({d_i}, m̃_t, D)
    Algorithm 2   Worker_Update(x^(i), x):  x_{−1} ← x^(i);  x_0 ← x;  for τ = 0 … I − 1, on one minibatch:
                  g ← ∇f_i(x_τ);   G ← [∇f_i(x_{τ−1});  ∇f_i(x);  x_τ − x];   x_{τ+1} ← x_τ − η QP(g, G)
    Algorithm 3   Server_Update:  d = Σ_S a_i d_i;   m = β1 m̃_t + d;   D[i] ← β2 D[i] + d_i or β2 D[i]
                  m̃_{t+1} = QP(m, D);   x_{t+1} = x_t − η_g m̃_{t+1}

The third row, x_τ − x, forbids to move further away from the global model. Ordinary descent violates it, so it acts in
most steps after the first: with large batches or small steps a worker hardly moves on; ``rows`` can leave it out.
GradMA-W is the worker's half alone, GradMA-S the server's.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.advanced import Projection, Rule
from fedkeel.algorithms.contract import Algorithm, Answer, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.server_steps import average_gap, gaps
from fedkeel.algorithms.state import State
from fedkeel.algorithms.variants.readings import GradMAReadings, GradMAServerReadings, GradMAWorkerReadings
from fedkeel.learning.loop import Trained
from fedkeel.learning.projected import Row
from fedkeel.learning.projection import Blocks, bounds_of, projected


class Both(Algorithm):
    """What worker and server share."""

    paper = Paper(
        "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
        "Luo et al.",
        "CVPR",
        2023,
    )
    params: Params

    class Params(GradMAServerReadings):
        weights: Literal["uniform", "n"] = Field("uniform", description="a_i of the mean update: 1/S, or by samples")
        eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")
        blocks: Blocks = Field("flat", description="one projection of the whole vector, or one for every tensor")


class Worker(Both):
    """Algorithm 2."""

    gradients_a_step = 3.0
    params: Params

    class Params(GradMAWorkerReadings, Both.Params):
        rows: tuple[Row, ...] = Field(
            ("prev", "global", "anchor"), description="memory of a worker: gradients at x_{τ−1} and at x, and x_τ − x"
        )
        rho_l: float = Field(
            0.0,
            ge=-1,
            lt=1,
            description="ρ, margin ⟨G_j, u⟩ ≥ ρ‖g‖‖G_j‖ of the worker; 0 as published, −1 switches off",
        )

    def client_init(self, problem: Problem) -> State:
        return State(x=problem.w0)

    def local_round(self, local: Local) -> Answer:
        bounds = bounds_of(local.problem.layout, self.params.blocks)
        QP = Projection(self.params.rows, local.client.x, self.params.rho_l, bounds)
        trained = local.train_by(Rule(projection=QP))
        return noting(local, trained), State(x=trained.y), trained


def noting(local: Local, trained: Trained) -> Message:
    """The upload with a note of how many conditions were active in a step, on average, at each worker."""
    acting = torch.tensor(trained.acting, dtype=torch.float64)
    return Message(y=trained.y).noting(active_local=acting / local.steps.cpu())


class Server(Both):
    """Algorithms 3 and 4."""

    unknown = memory.UNKNOWN
    params: Params

    class Params(Both.Params):
        beta1: float = Field(0.5, ge=0, lt=1, description="β1, momentum of the projected update; 0.5 on CIFAR-10")
        beta2: float = Field(0.5, ge=0, lt=1, description="β2, decay of remembered updates; 0.5 on CIFAR-10")
        m: int | None = Field(None, ge=1, description="m, clients remembered, at least a cohort; absent: all")
        rho_g: float = Field(
            0.0,
            ge=-1,
            lt=1,
            description="ρ, margin ⟨D_i, u⟩ ≥ ρ‖m‖‖D_i‖ of the server; 0 as published, −1 switches off",
        )

    @property
    def most_remembered(self) -> int | None:
        return self.params.m

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros(), **memory.initial(problem, self.params.blocks))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        memory.check_room(self.name, self.params.m, clients.S)
        return Message(w=server.w)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        params, clients, y = self.params, uploads.clients, uploads.y
        m = params.beta1 * server.m + average_gap(server.w, y, clients.weights(params.weights))
        server = memory.mem_red(server, clients.ids, params.m or clients.N)
        server = memory.remember(server, clients.ids, gaps(server.w, y), params.beta2)
        D, gram = memory.directions(server, params.beta2)
        m_tilde, active = projected(m, D, params.rho_g, server.bounds, gram)
        server = server.replace(w=server.w - params.eta_g * m_tilde, m=m_tilde, gram=gram)
        return server.noting(active=active, remembered=len(D))


class GradMA(Worker, Server):
    name = "gradma"
    title = "GradMA"
    idea = "Local steps and the server's step are projected so that they do not undo what is remembered."
    laws = (
        Law(
            "GradMA without rows is GradMA-S",
            {"rows": (), "beta1": 0.3, "beta2": 0.6},
            "gradma_s",
            {"beta1": 0.3, "beta2": 0.6},
        ),
        Law("GradMA(β1 = 0) without server conflicts is GradMA-W", {"beta1": 0.0, "rho_g": -1.0}, "gradma_w"),
    )
    variant = "fedkeel.algorithms.variants.gradma:GradMAVariant"
    params: Params

    class Params(GradMAReadings, Worker.Params, Server.Params):
        pass
