"""TrimmedMean: the server leaves out the extremes of every coordinate (Yin et al., ICML 2018).

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   of the S values y_i[j] of each coordinate j drop the ⌊β S⌋ smallest and largest;  w[j] ← mean of the rest

A few broken or hostile clients then cannot move the model far.
"""

from pydantic import Field

from fedkeel import Algorithm, AlgorithmParams, State
from fedkeel.algorithms.contract import Law, Paper, Round, Uploads


class TrimmedMean(Algorithm):
    name = "trimmed_mean"
    title = "TrimmedMean"
    idea = "Coordinate by coordinate, the server averages without the smallest and largest values."
    paper = Paper(
        "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", "Yin et al.", "ICML", 2018
    )
    laws = (Law("TrimmedMean(β = 0) is FedAvg with equal weights", {"beta": 0.0}, "fedavg", {"weights": "uniform"}),)

    class Params(AlgorithmParams):
        beta: float = Field(0.1, ge=0, lt=0.5, description="β, share of the cohort dropped at either end; 0 to 0.5")

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        S = uploads.clients.S
        dropped = int(self.params.beta * S)
        ordered = uploads.y.sort(dim=0).values  # [S, d], every coordinate by itself
        return server.replace(w=ordered[dropped : S - dropped].mean(dim=0))
