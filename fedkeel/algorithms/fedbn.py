"""FedBN: federated learning with local batch normalisation (Li et al., ICLR 2021).

FedAvg on everything but the normalisation layers, which stay with the client: their scales and shifts β_i, and the
statistics b_i that they have gathered. Layers are known by their type, not by a name that contains "bn".

    client   y ← (w, β_i), buffers ← b_i;  K_i times:  y ← y − η ∇F_i(y);   β_i, b_i ← those of y
    server   w ← Σ_S p_i y_i, without the normalisation layers

So only d − d_BN numbers travel, and there is no one global model: what a client uses is (w, β_i) with b_i. Offered as
``global`` is what a new client would start from, w with the initial normalisation.
"""

from __future__ import annotations

from torch import Tensor

from fedkeel.algorithms.contract import Answer, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.server_steps import average, towards
from fedkeel.algorithms.state import State


class FedBN(FedAvg):
    name = "fedbn"
    title = "FedBN"
    idea = "Every client keeps its normalisation layers to itself; the rest is averaged."
    paper = Paper(
        "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", "Li et al.", "ICLR", 2021
    )
    laws = (Law("FedBN of a model without normalisation is FedAvg", {}, "fedavg", needs=frozenset({"no_norm"})),)
    buffers = "local"
    any_staleness = False  # clients send part of a model
    params: Params

    class Params(FedAvg.Params):
        # The authors' program for digits gives every client the same weight.
        modes = {"code": {"weights": "uniform"}}

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, norm=problem.layout.mask("norm"))

    def client_init(self, problem: Problem) -> State:
        return State(beta=problem.w0[problem.layout.mask("norm")])

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(shared=server.w[~server.norm])

    def local_round(self, local: Local) -> Answer:
        norm = local.problem.layout.mask("norm")
        trained = local.train(start=joined(local.down.shared, local.client.beta, norm))
        return Message(shared=trained.y[:, ~norm]), State(beta=trained.y[:, norm]), trained

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        mean = average(uploads.shared, uploads.clients.weights(self.params.weights))
        w = server.w.clone()
        w[~server.norm] = towards(server.w[~server.norm], mean, self.server_rate)
        return server.replace(w=w)

    def personal(self, server: State, clients: State) -> Tensor | None:
        if not server.norm.any():
            return None
        return joined(server.w[~server.norm], clients.beta, server.norm)


def joined(shared: Tensor, beta: Tensor, norm: Tensor) -> Tensor:
    """Models [K, d] of what all share [d − d_BN] or [K, d − d_BN] and what each client keeps [K, d_BN]."""
    y = beta.new_empty(len(beta), len(norm))
    y[:, ~norm], y[:, norm] = shared, beta
    return y
