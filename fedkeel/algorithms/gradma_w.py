"""GradMA-W: the worker's half of GradMA (Luo et al., CVPR 2023).

    worker   x^(i) ← Worker_Update(x^(i), x)      (Algorithm 2: ``gradma.Worker``);   d_i = x − x^(i)
    server   x ← x − η_g Σ_S a_i d_i

A step is projected so that it agrees with the gradients at the previous point and at the global model, and does not
lead further away from the latter.
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law, Round, Uploads
from fedkeel.algorithms.gradma import Worker
from fedkeel.algorithms.server_steps import average_gap
from fedkeel.algorithms.state import State


class GradMAW(Worker):
    name = "gradma_w"
    title = "GradMA-W"
    idea = "Local steps are projected so that they do not work against three remembered directions."
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

    variant = "fedkeel.algorithms.variants.gradma:GradMAWVariant"
    any_mean = True

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        d = average_gap(server.w, uploads.y, uploads.clients.weights(self.params.weights))
        return server.replace(w=server.w - self.params.eta_g * d)
