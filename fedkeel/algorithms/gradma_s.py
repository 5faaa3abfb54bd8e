"""GradMA-S: the server's half of GradMA (Luo et al., CVPR 2023).

    worker   y ← x;  K_i times:  y ← y − η ∇f_i(y);   d_i = x − y
    server   (c, D, buf) ← mem_red(m, S_t, c, D, buf)      (Algorithm 4: ``gradma_memory``)
             m = β1 m̃ + Σ_S a_i d_i;   m̃ ← QP(m, D);   x ← x − η_g m̃      (Algorithm 3: ``gradma.Server``)

The momentum is projected so that it does not work against the accumulated update of any remembered client.
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law
from fedkeel.algorithms.gradma import Server


class GradMAS(Server):
    name = "gradma_s"
    title = "GradMA-S"
    idea = "The server's momentum is projected so that it does not undo what absent clients contributed."
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
    variant = "fedkeel.algorithms.variants.gradma:GradMASVariant"
