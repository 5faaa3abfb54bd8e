"""FedGM: FedProx with momentum at the server (Wang et al., ICPADS 2022), the global phase of FedGVRGM.

Ablation of FedGVRGM without control variates: the momentum alone.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + μ (y − w))
    server   v ← β v + η_g Σ_S p_i (y_i − w);   w ← w + v

As printed the step is also multiplied by S/N (``scale = "participation"``).
"""

from __future__ import annotations

from fedkeel.algorithms.contract import Algorithm, Claim, Law, Local, Problem, Round, Uploads
from fedkeel.algorithms.fedgvrgm_parts import (
    PAPER,
    MomentumParams,
    ProximalParams,
    global_momentum,
    mean_step,
    model_scale,
    proximal,
)
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class FedGM(Algorithm):
    name = "fedgm"
    title = "FedGM"
    idea = "FedProx whose server keeps moving in the direction of its past steps."
    paper = PAPER
    laws = (
        Law("FedGM(β = 0) is FedProx", {"beta": 0.0, "mu": 0.1, "scale": "unit"}, "fedprox", {"mu": 0.1}),
        Law(
            "FedGM(β = 0) scaled by S/N is FedProx when all take part",
            {"beta": 0.0, "mu": 0.1, "scale": "participation"},
            "fedprox",
            {"mu": 0.1},
            needs=frozenset({"full"}),
        ),
        Law("FedGM(μ = 0) is FedAvgM", {"mu": 0.0, "beta": 0.9, "scale": "unit"}, "fedavgm", {"beta": 0.9}),
    )
    claims = (
        Claim("Table III", "CIFAR-10, Dirichlet 0.5, 10 %: rounds to training loss 0.45", 424, "rounds"),
        Claim("Table III", "MNIST, Dirichlet 0.5, 10 %: rounds to training loss 0.2", 104, "rounds"),
    )

    class Params(MomentumParams, ProximalParams):
        modes = {"literal": {"weights": "uniform", "restart": True, "gm": "printed", "scale": "participation"}}

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, v=problem.zeros())

    def correction(self, local: Local) -> Correction:
        return proximal(self.params, local)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        scale = self.params.eta_g * model_scale(self.params, uploads)
        w, v = global_momentum(self.params, server.w, server.v, scale * mean_step(self.params, server.w, uploads))
        return server.replace(w=w, v=v)
