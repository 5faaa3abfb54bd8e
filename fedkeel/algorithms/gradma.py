"""GradMA: gradient-memory-based accelerated federated learning (Luo et al., CVPR 2023).

Forgetting is treated as in continual learning: before a step is taken, its direction is projected (``projection``) so
that it does not work against remembered directions. A worker remembers three vectors, the server one a client.

    Algorithm 1   x^(i) = x_0;  m̃ = 0.  In round t:  (c, D, buf) ← mem_red(m, S_t, c, D, buf)       (gradma_memory)
                  i ∈ S_t:  x^(i) ← Worker_Update(x^(i), x_t);  d_i = x_t − x^(i)
                  (D, x_{t+1}, m̃_{t+1}) ← Server_Update({d_i}, m̃_t, D)
    Algorithm 2   Worker_Update(x^(i), x):  x_{−1} ← x^(i);  x_0 ← x;  for τ = 0 … I − 1, on one minibatch:
                  g ← ∇f_i(x_τ);   G ← [∇f_i(x_{τ−1});  ∇f_i(x);  x_τ − x];   x_{τ+1} ← x_τ − η QP(g, G)
    Algorithm 3   Server_Update:  d = Σ_S a_i d_i;   m = β1 m̃_t + d;   D[i] ← β2 D[i] + d_i or β2 D[i]
                  m̃_{t+1} = QP(m, D);   x_{t+1} = x_t − η_g m̃_{t+1}

The third row, x_τ − x, forbids to move further away from the global model. Ordinary descent violates it, so it acts in
most steps after the first: with large batches or small steps a worker hardly moves on; ``rows`` can leave it out.
GradMA-W is the worker's half alone, GradMA-S the server's. On dense networks a worker takes the same steps with less
work (``gradma_dense``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms import gradma_memory as memory
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
from fedkeel.algorithms.gradma_dense import DenseWorker, start_of
from fedkeel.algorithms.projection import Blocks, bounds_of, project, project_few
from fedkeel.algorithms.server_steps import average_gap, gaps
from fedkeel.algorithms.state import State
from fedkeel.errors import invalid
from fedkeel.learning.dense import DenseNet
from fedkeel.learning.drawing import draw_again, drawn_so_far
from fedkeel.learning.loop import Sgd
from fedkeel.learning.task import Batch, positions

Row = Literal["prev", "global", "anchor"]
PAPER = Paper(
    "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
    "Luo et al.",
    "CVPR",
    2023,
)
# The authors' program weights d by samples, solves one problem per tensor, decays weights (in all three gradients)
# before the projection, draws dropout anew for each gradient, and lets a new worker start from the received model.
CODE = {"weights": "n", "blocks": "tensor", "decay": "weights"}
CODE_WORKER = CODE | {"dropout": "own", "unseen": "global"}


class CommonParams(AlgorithmParams):
    weights: Literal["uniform", "n"] = Field("uniform", description="a_i of the mean update: 1/S, or by samples")
    eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")
    blocks: Blocks = Field("flat", description="one projection of the whole vector, or one for every tensor")
    decay: Literal["all", "weights"] = Field(
        "all", description="training.weight_decay: on all after the projection, or before it where no 'bias' is named"
    )


class WorkerParams(CommonParams):
    prev_init: Literal["stored", "global"] = Field(
        "stored", description="x_{−1}, the previous point of a first step: the worker's last model, or the global one"
    )
    unseen: Literal["initial", "global"] = Field(
        "initial", description="the last model of a worker without one: the initial model, or the received one"
    )
    rows: tuple[Row, ...] = Field(
        ("prev", "global", "anchor"), description="memory of a worker: gradients at x_{τ−1} and at x, and x_τ − x"
    )
    rho_l: float = Field(
        0.0, ge=-1, lt=1, description="ρ, margin ⟨G_j, u⟩ ≥ ρ‖g‖‖G_j‖ of the worker; 0 as published, −1 switches off"
    )
    dropout: Literal["shared", "own"] = Field(
        "shared", description="whether the three gradients of a step drop the same units"
    )


class ServerParams(CommonParams):
    beta1: float = Field(0.5, ge=0, lt=1, description="β1, momentum of the projected update; 0.5 on CIFAR-10")
    beta2: float = Field(0.5, ge=0, lt=1, description="β2, decay of remembered updates; 0.5 on CIFAR-10")
    m: int | None = Field(None, ge=1, description="m, clients remembered, at least a cohort; absent: all")
    rho_g: float = Field(
        0.0, ge=-1, lt=1, description="ρ, margin ⟨D_i, u⟩ ≥ ρ‖m‖‖D_i‖ of the server; 0 as published, −1 switches off"
    )


class GradMA(Algorithm):
    name = "gradma"
    unknown = memory.UNKNOWN
    title = "GradMA"
    idea = "Local steps and the server's step are projected so that they do not undo what is remembered."
    paper = PAPER
    laws = (
        Law(
            "GradMA without rows is GradMA-S",
            {"rows": (), "beta1": 0.3, "beta2": 0.6},
            "gradma_s",
            {"beta1": 0.3, "beta2": 0.6},
        ),
        Law("GradMA(β1 = 0) without server conflicts is GradMA-W", {"beta1": 0.0, "rho_g": -1.0}, "gradma_w"),
    )
    claims = (
        Claim("Table 1", "MNIST, MLP, Dirichlet 1, 10 clients a round: best accuracy", 98.39, "%"),
        Claim("Table 1", "MNIST, MLP, Dirichlet 0.1, 10 clients a round: best accuracy", 97.34, "%"),
        Claim("Table 1", "CIFAR-10, LeNet-5, Dirichlet 1, 10 clients a round: best accuracy", 79.92, "%"),
        Claim("Table 1", "CIFAR-10, LeNet-5, Dirichlet 0.1, 10 clients a round: best accuracy", 65.91, "%"),
    )

    class Params(WorkerParams, ServerParams):
        modes = {
            # The slides lost the details; literal fills them from the program, which keeps no local model here.
            "literal": {"prev_init": "global", "blocks": "tensor"},
            "code": CODE_WORKER | {"prev_init": "global"},
        }

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, m=problem.zeros(), **memory.initial(problem, self.params.blocks))

    def client_init(self, problem: Problem) -> State:
        return no_model(self.params, problem)

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        check_memory(self.name, self.params, clients)
        return Message(w=server.w)

    def local_round(self, local: Local) -> tuple[Message, State]:
        y = worker_update(self.params, local)
        return Message(y=y), last_model(local.client, y)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server_update(self.params, server, uploads)


def worker_update(params: WorkerParams, local: Local) -> Tensor:
    """Algorithm 2: x_I of K workers [K, d]."""
    x, x_before = local.w, previous_model(params, local)
    bounds = bounds_of(local.problem.layout, params.blocks)
    nabla, sgd = decayed(params, local)
    elsewhere = [row for row in params.rows if row != "anchor"]
    points = gG = x.new_empty(0)

    def projected(x_tau: Tensor, b: Tensor, batch: Batch, tau: int) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal points, gG
        if tau == 0:  # the same memory for all steps: where gradients are taken; g and the rows of G
            points = torch.stack([x, *(x_before if row == "prev" else x for row in elsewhere)])
            gG = x.new_empty(1 + len(params.rows), *x.shape)
        elif "prev" in elsewhere:
            points[1 + elsewhere.index("prev")] = points[0]
        points[0] = x_tau
        if local.task.draws_nothing:
            loss, b_after = at_once(nabla, points, b, batch, gG)
        else:
            loss, b_after = one_by_one(nabla, points, b, batch, gG, params.dropout == "shared")
        for j in range(len(points), len(gG)):
            torch.sub(x_tau, x, out=gG[j])
        return project_few(gG.transpose(0, 1), params.rho_l, bounds), loss, b_after

    def dense(net: DenseNet, sgd: Sgd) -> DenseWorker:
        start = start_of(net, x, local.full_batches, positions(local.batches))
        return DenseWorker(net, x, x_before, start, params.rows, params.rho_l, bounds, sgd.lr)

    folds = params.rows and not sgd.weight_decay and params.decay == "all"
    return local.train(gradient=projected, sgd=sgd, dense_steps=dense if folds else None)


def at_once(nabla: Nabla, points: Tensor, b: Tensor, batch: Batch, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients at all points [P, K, d] as one computation; loss [K] and buffers [K, m] of the first."""
    P, K = points.shape[:2]
    everywhere = b.expand(P, *b.shape).flatten(0, 1)
    _, loss, b_after = nabla(points.flatten(0, 1), everywhere, batch.repeated(P), out[:P].flatten(0, 1))
    return loss[:K], b_after[:K]


def one_by_one(
    nabla: Nabla, points: Tensor, b: Tensor, batch: Batch, out: Tensor, shared: bool
) -> tuple[Tensor, Tensor]:
    """The same with dropout, which all points share or each draws anew."""
    drawn = drawn_so_far(b.device)
    found = []
    for point, gradient in zip(points, out, strict=False):
        if shared:
            draw_again(b.device, drawn)
        found.append(nabla(point, b, batch, gradient))
    return found[0][1:]


def server_update(params: ServerParams, server: State, uploads: Uploads) -> State:
    """Algorithms 4 and 3: the memory takes the cohort in, then the momentum is projected and followed."""
    clients = uploads.clients
    m = params.beta1 * server.m + average_gap(server.w, uploads.y, clients.weights(params.weights))
    server = memory.mem_red(server, clients.ids, params.m or clients.N)
    server = memory.remember(server, clients.ids, gaps(server.w, uploads.y), params.beta2)
    D, gram = memory.directions(server, params.beta2)
    m_tilde = project(m, D, params.rho_g, server.bounds, gram)
    return server.replace(w=server.w - params.eta_g * m_tilde, m=m_tilde, gram=gram)


def check_memory(name: str, params: ServerParams, clients: Clients) -> None:
    """Algorithm 4 needs room for a whole cohort."""
    if params.m is not None and params.m < clients.S:
        hint = "Leave it out to remember every client, or let fewer take part (training.participation)."
        raise invalid(f"{name}.m", f"at least the {clients.S} clients of a round", params.m, hint)


Nabla = Callable[[Tensor, Tensor, Batch, Tensor], tuple[Tensor, Tensor, Tensor]]
"""``nabla(y, b, batch, out)``: the minibatch gradient at y [K, d], written to ``out``; the loss; the buffers."""


def decayed(params: CommonParams, local: Local) -> tuple[Nabla, Sgd]:
    """The minibatch gradient as it enters the projection, and the optimiser that takes the step."""
    if params.decay == "all":
        return lambda y, b, batch, out: local.task.gradient(y, b, batch, out=out), local.sgd
    strength = torch.zeros_like(local.problem.w0)
    for entry in local.problem.layout:
        strength[entry.start : entry.stop] = 0.0 if "bias" in entry.name else local.sgd.weight_decay

    def gradient(y: Tensor, b: Tensor, batch: Batch, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nabla, loss, b_after = local.task.gradient(y, b, batch, out=out)
        return nabla.addcmul_(strength, y), loss, b_after

    return gradient, replace(local.sgd, weight_decay=0.0)


def no_model(params: WorkerParams, problem: Problem) -> State:
    """What a worker remembers before its first round: x^(i) = x_0, and where that matters that it is no model yet."""
    if params.prev_init == "global":
        return State()
    return State(x=problem.w0) if params.unseen == "initial" else State(x=problem.w0, seen=problem.w0.new_zeros(1))


def previous_model(params: WorkerParams, local: Local) -> Tensor:
    """x_{−1} [K, d]."""
    if params.prev_init == "global":
        return local.w
    kept: Tensor = local.client.x
    return kept if params.unseen == "initial" else torch.where(local.client.seen > 0, kept, local.w)


def last_model(client: State, y: Tensor) -> State:
    """What workers remember after a round [K, ...]."""
    now = {"x": y, "seen": y.new_ones(len(y), 1)}
    return client.replace(**{name: now[name] for name in client})
