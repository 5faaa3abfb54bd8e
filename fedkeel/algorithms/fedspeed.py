"""FedSpeed: a corrected proximal term and gradients uphill (Sun et al., ICLR 2023).

FedDyn's penalty keeps clients together over many local steps, and gradients of points uphill keep them from fitting
their own data too closely.

    client   y ← w;  K_i times:  g ← ∇F_i(y);   q ← (1 − s) g + s ∇F_i(y + ρ g/‖g‖)
                                 y ← y − η (q + α_i (y − w + h_i)),   α_i = α/ω_i
             h_i ← h_i + (y − w)
    server   θ̄ ← mean_S y_i;   h̄ ← h̄ + 1/N Σ_S (y_i − w);   w ← θ̄ + h̄

α is 1/λ of the paper and s its α, so that all methods with this penalty call its weight the same.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedkeel.algorithms.advanced import Ascent, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Paper
from fedkeel.algorithms.feddyn import FedDyn


class FedSpeed(FedDyn):
    name = "fedspeed"
    title = "FedSpeed"
    idea = "FedDyn's penalty, and gradients of points uphill."
    paper = Paper(
        "FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy",
        "Sun et al.",
        "ICLR",
        2023,
    )
    laws: ClassVar[tuple[Law, ...]] = (
        Law("FedSpeed(ρ = 0) is FedDyn", {"rho": 0.0, "alpha": 0.1}, "feddyn", {"alpha": 0.1}),
        Law("FedSpeed(s = 0) is FedDyn", {"share": 0.0, "alpha": 0.1}, "feddyn", {"alpha": 0.1}),
    )
    gradients_a_step = 2.0
    params: Params

    class Params(FedDyn.Params):
        alpha: float = Field(0.1, gt=0, description="α, weight of the penalty, 1/λ of the paper; 0.1 in the program")
        rho: float = Field(0.1, ge=0, description="ρ, how far uphill the gradient is taken")
        share: float = Field(1.0, ge=0, le=1, description="s, weight of the gradient uphill, α of the paper")

    def local_round(self, local: Local) -> Answer:
        ascent = Ascent(self.params.rho, self.params.share)
        trained = local.train_by(Rule(ascent=ascent, correction=self.correction(local)))
        return *self.finish(local, trained.y), trained
