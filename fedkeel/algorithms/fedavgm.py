"""FedAvgM: FedAvg with server momentum (Hsu et al., 2019).

The server does not jump to the average but keeps a velocity, so that the noise of small cohorts averages out.

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   v ← β v + Σ_S p_i (w − y_i);   w ← w − η_g v
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law, Paper
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.server_momentum import MomentumParams, ServerMomentum


class FedAvgM(ServerMomentum, FedAvg):
    name = "fedavgm"
    title = "FedAvgM"
    idea = "FedAvg whose server keeps moving in the direction of its past steps."
    paper = Paper(
        "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        "Hsu et al.",
        "arXiv:1909.06335",
        2019,
    )
    laws = (Law("FedAvgM(β = 0) is FedAvg", {"beta": 0.0}, "fedavg"),)
    params: Params

    class Params(MomentumParams, FedAvg.Params):
        pass
