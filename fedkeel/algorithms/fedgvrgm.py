"""FedGVRGM: two-phase gradient adjustment (Wang et al., ICPADS 2022).

FedGVR's weighted control variates while clients train, and FedGM's momentum at the server.

    CWC      ε ← 1 for t < h,  else the gain in best accuracy over h rounds, in percent and divided by h, within [0, 1]
    client   y ← w;  K_k times:  y ← y − η (∇F_k(y) + μ (y − w) + ε (c − c_k))
             c_k⁺ ← (w − y)/(K_k η) − ε (c − c_k);   sends y_k and δ_k = c_k⁺ − c_k
    GM       v ← β v + η_g Σ_S p_k (y_k − w);   w ← w + v
             c ← c + 1/N Σ_S ω_k δ_k

The paper puts the same momentum on c. That multiplies every lasting change of c by 1/(1 − β), so that c − c_k is no
longer centred and training diverges; the default therefore has none there. It also multiplies the step of w by S/N
(``scale = "participation"``), which at 10 % made the method slower than FedAvg where we measured it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedkeel.algorithms.contract import Claim, Law, Problem, Round, Uploads
from fedkeel.algorithms.fedgvr import FedGVR
from fedkeel.algorithms.fedgvrgm_parts import MomentumParams, global_momentum, mean_step, model_scale
from fedkeel.algorithms.state import State


class FedGVRGM(FedGVR):
    name = "fedgvrgm"
    title = "FedGVRGM"
    idea = "Control variates that fade as accuracy saturates, and momentum at the server."
    laws = (Law("FedGVRGM(β = 0) is FedGVR", {"beta": 0.0, "scale": "unit"}, "fedgvr"),)
    claims = (
        Claim("Table III", "CIFAR-100, Dirichlet 0.5, 10 %: rounds to training loss 0.8", 384, "rounds"),
        Claim("Table III", "CIFAR-10, Dirichlet 0.5, 10 %: rounds to training loss 0.45", 228, "rounds"),
        Claim("Table III", "MNIST, Dirichlet 0.5, 10 %: rounds to training loss 0.2", 83, "rounds"),
    )

    class Params(MomentumParams, FedGVR.Params):
        modes = {
            "literal": FedGVR.Params.modes["literal"]
            | {
                "gm": "printed",
                "c_momentum": "heavy_ball",
                "scale": "participation",
            }
        }
        c_momentum: Literal["none", "damp", "heavy_ball"] = Field(
            "none", description="momentum on c: none, with the step times 1 − β, or as on w (as printed)"
        )

    def server_init(self, problem: Problem) -> State:
        server = super().server_init(problem).replace(v=problem.zeros())
        return server if self.params.c_momentum == "none" else server.replace(v_c=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        scale = self.params.eta_g * model_scale(self.params, uploads)
        w, v = global_momentum(self.params, server.w, server.v, scale * mean_step(self.params, server.w, uploads))
        step = self.control_step(server, uploads)
        if self.params.c_momentum == "none":
            return server.replace(w=w, v=v, c=server.c + step)
        if self.params.c_momentum == "damp":
            step = (1 - self.params.beta) * step
        c, v_c = global_momentum(self.params, server.c, server.v_c, step)
        return server.replace(w=w, v=v, c=c, v_c=v_c)
