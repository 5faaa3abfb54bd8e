"""MOONM: MOON with server momentum, a baseline of GradMA (Luo et al., CVPR 2023).

    client   as MOON
    server   v ← β v + Σ_S p_i (w − y_i);   w ← w − η_g v

GradMA's own version is not published; MOON's program has the dampened form v ← β v + (1 − β) Σ_S p_i (w − y_i).
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Law, Paper
from fedkeel.algorithms.moon import Moon
from fedkeel.algorithms.server_momentum import MomentumParams, ServerMomentum


class MoonM(ServerMomentum, Moon):
    name = "moonm"
    title = "MOONM"
    idea = "MOON whose server keeps moving in the direction of its past steps."
    paper = Paper(
        "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting",
        "Luo et al.",
        "CVPR",
        2023,
    )
    laws = (
        Law("MOONM(β = 0) is MOON", {"beta": 0.0}, "moon", needs=frozenset({"stages"})),
        Law("MOONM(μ = 0) is FedAvgM", {"mu": 0.0}, "fedavgm", needs=frozenset({"stages"})),
    )
    params: Params

    class Params(MomentumParams, Moon.Params):
        modes = {"code": Moon.Params.modes["code"] | {"dampened": True}}
