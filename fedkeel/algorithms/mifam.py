"""MIFAM: MIFA with server momentum, as compared with GradMA (Luo et al., CVPR 2023).

    client   y ← w;  K_i times:  y ← y − η_t ∇F_i(y)
    server   U_i ← (y_i − w)/η_t  for i in S;   v ← β v − η_t 1/N Σ_N U_i;   w ← w − η_g v

No program of it is public; v is in units of parameters, as in the other methods of that comparison.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.algorithms.contract import Law, Paper
from fedkeel.algorithms.mifa import Mifa
from fedkeel.algorithms.server_momentum import MomentumParams, ServerMomentum


class MifaM(ServerMomentum, Mifa):
    name = "mifam"
    title = "MIFAM"
    idea = "MIFA whose server keeps moving in the direction of its past steps."
    paper = Paper(
        "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
        "Luo et al.",
        "CVPR",
        2023,
    )
    laws = (
        Law("MIFAM(β = 0) is MIFA", {"beta": 0.0}, "mifa"),
        Law(
            "MIFAM with everybody present is FedAvgM with equal weights",
            {"beta": 0.7},
            "fedavgm",
            {"beta": 0.7, "weights": "uniform"},
            needs=frozenset({"full"}),
        ),
    )
    params: Params

    class Params(MomentumParams, Mifa.Params):
        # The updates of absent clients are several rounds old; times the gain 1/(1 − 0.9) they made it unstable.
        beta: float = Field(0.5, ge=0, lt=1, description="β, momentum of the server; 0.5 in GradMA's program")
