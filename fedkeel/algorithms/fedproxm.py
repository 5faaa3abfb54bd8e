"""FedProxM: FedProx with server momentum, as compared with GradMA (Luo et al., CVPR 2023).

The spring of FedProx at the clients, the velocity of FedAvgM at the server.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + μ (y − w))
    server   v ← β v + Σ_S p_i (w − y_i);   w ← w − η_g v
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law, Paper
from fedkeel.algorithms.fedprox import FedProx
from fedkeel.algorithms.server_momentum import MomentumParams, ServerMomentum


class FedProxM(ServerMomentum, FedProx):
    name = "fedproxm"
    title = "FedProxM"
    idea = "FedProx whose server keeps moving in the direction of its past steps."
    paper = Paper(
        "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
        "Luo et al.",
        "CVPR",
        2023,
    )
    laws = (
        Law("FedProxM(β = 0) is FedProx", {"beta": 0.0, "mu": 0.1}, "fedprox", {"mu": 0.1}),
        Law("FedProxM(μ = 0) is FedAvgM", {"beta": 0.7, "mu": 0.0}, "fedavgm", {"beta": 0.7}),
    )
    params: Params

    class Params(MomentumParams, FedProx.Params):
        pass
