"""FedMLBM: FedMLB with server momentum, a baseline of GradMA (Luo et al., CVPR 2023).

    client   as FedMLB
    server   v ← β v + Σ_S p_i (w − y_i);   w ← w − η_g v

GradMA's own version is not published.
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law, Paper
from fedkeel.algorithms.fedmlb import FedMLB
from fedkeel.algorithms.server_momentum import MomentumParams, ServerMomentum


class FedMLBM(ServerMomentum, FedMLB):
    name = "fedmlbm"
    title = "FedMLBM"
    idea = "FedMLB whose server keeps moving in the direction of its past steps."
    paper = Paper(
        "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
        "Luo et al.",
        "CVPR",
        2023,
    )
    laws = (
        Law("FedMLBM(β = 0) is FedMLB", {"beta": 0.0}, "fedmlb", needs=frozenset({"stages"})),
        Law(
            "FedMLBM(λ2 = λ3 = 0) is FedAvgM",
            {"lambda2": 0.0, "lambda3": 0.0},
            "fedavgm",
            needs=frozenset({"stages"}),
        ),
    )
    params: Params

    class Params(MomentumParams, FedMLB.Params):
        pass
