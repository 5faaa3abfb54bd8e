"""FedPMVR: partial momentum for variance reduction (anonymous authors, 2024, under review).

In the last layers P, where clients drift most, every local step follows an average of the round's gradients.

    client   y ← w;  m ← 0;  K_i times:  m ← α m + (1 − α) ∇F_i(y)_P
                                         y_P ← y_P − η m,   elsewhere  y ← y − η ∇F_i(y)
    server   w ← Σ_S p_i y_i

That is ``step`` (eqs. 12–14), which did best of those that keep FedAvg's cost where we measured them. The paper and its
program describe five more, which train as FedAvg does and then correct y_P:

    shrink     y_P ← y_P − α (y − w)_P: a server learning rate of 1 − α on P; keeps FedAvg's fixed points
    ema        m ← α (y − w)_P + (1 − α) m, kept between rounds;  y_P ← y_P − m: pulls P towards its initial value
    alg1       after training g ← ∇F_i(y) over all data;  y_P ← y_P − α g_P,  elsewhere y ← y − η g
    repo       m ← m + α (y − w)_P, kept between rounds;  y_P ← y_P − m: feeds back on itself and diverges
    repo_dead  what the published program does: nothing, so that it is FedAvg
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.algorithms.advanced import Averaging, Rule
from fedkeel.algorithms.contract import Answer, Law, Local, Message, Paper, Problem
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import State
from fedkeel.algorithms.variants.readings import FedPMVRReadings


class FedPMVR(FedAvg):
    name = "fedpmvr"
    title = "FedPMVR"
    idea = "In the layers nearest the output, local steps follow an average of the round's gradients."
    paper = Paper(
        "FedPMVR: Addressing Data Heterogeneity in Federated Learning through Partial Momentum Variance Reduction",
        "Anonymous authors",
        "manuscript under review",
        2024,
    )
    laws = (
        Law("FedPMVR(α = 0) is FedAvg", {"alpha": 0.0}, "fedavg"),
        Law("FedPMVR(ema, α = 0) is FedAvg", {"alpha": 0.0, "variant": "ema"}, "fedavg"),
        Law("FedPMVR(shrink, α = 0) is FedAvg", {"alpha": 0.0, "variant": "shrink"}, "fedavg"),
        Law("FedPMVR(repo, α = 0) is FedAvg", {"alpha": 0.0, "variant": "repo"}, "fedavg"),
        Law("FedPMVR's program is FedAvg", {"mode": "code"}, "fedavg", {"weights": "uniform"}),
        Law(
            "FedPMVR(shrink) on all layers is FedAvg with server learning rate 1 − α",
            {"alpha": 0.3, "mask": "all", "variant": "shrink"},
            "fedavg",
            {"eta_g": 0.7},
        ),
    )

    variant = "fedkeel.algorithms.variants.fedpmvr:FedPMVRVariant"
    any_optimiser = False  # gradients of steps are averaged
    params: Params

    class Params(FedPMVRReadings, FedAvg.Params):
        alpha: float = Field(
            0.1, ge=0, le=1, description="α, weight of the past in m; the paper: near 0, its grid 0.001 to 0.8"
        )
        mask: str = Field(
            "last2", description="P, the corrected layers: all, none, conv, linear, norm, last1, last2, … or layer:NAME"
        )
        keep: bool = Field(False, description="step: keep m between rounds instead of starting from 0")

    def client_init(self, problem: Problem) -> State:
        """m on the coordinates of P only [v], if it is kept between rounds."""
        P = problem.layout.mask(self.params.mask)
        return State(m=problem.w0.new_zeros(int(P.sum()))) if self.params.keep else State()

    def local_round(self, local: Local) -> Answer:
        P = local.problem.layout.slices(self.params.mask)
        size = sum(part.stop - part.start for part in P)
        m = local.client.m.clone() if self.params.keep else local.w.new_zeros(len(local.w), size)
        trained = local.train_by(Rule(averaging=Averaging(P, self.params.alpha, m)))
        return Message(y=trained.y), State(m=m) if self.params.keep else State(), trained
