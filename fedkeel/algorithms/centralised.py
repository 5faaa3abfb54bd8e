"""Centralised SGD: all data in one place, the reference that federated methods are measured against.

    K times:  w ← w − η g(w; ξ),   ξ a minibatch of the pooled data

It runs as a federation of one client that holds everything: ``partition("iid", clients=1)``. A round is K =
``training.steps`` steps, and rounds only say how often the model is evaluated (momentum, if any, restarts in each). To
compare fairly give it as many gradient evaluations as the federated runs, not as many epochs. The traffic that a run
reports is one model each way; what really travels is the data, once.
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Algorithm, Paper, Problem, Round, Uploads
from fedkeel.algorithms.state import State
from fedkeel.errors import InputError


class Centralised(Algorithm):
    name = "centralised"
    title = "Centralised SGD"
    idea = "Plain SGD on the pooled data, with no federation at all."
    paper = Paper("A Stochastic Approximation Method", "Robbins and Monro", "Annals of Mathematical Statistics", 1951)
    needs = frozenset({"one_client"})
    any_optimiser = True

    def server_init(self, problem: Problem) -> State:
        if problem.N != 1:
            raise InputError(
                f"centralised needs all data at one client, got {problem.N} clients; "
                "set partition.clients = 1 (with the rule iid)."
            )
        return State(w=problem.w0)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server.replace(w=uploads.y[0])
