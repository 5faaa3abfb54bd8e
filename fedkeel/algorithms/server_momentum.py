"""Server momentum around any base: the step that the base would take is what the momentum accumulates.

    d̄ ← w − w_base           the base's own step, uphill
    v ← β v + d̄              (dampened: β v + (1 − β) d̄)
    w ← w − η_g v

So FedProxM, MOONM, FedMLBM and MIFAM cost a few lines each.
"""

from __future__ import annotations

from pydantic import Field

from fedkeel.algorithms.contract import Algorithm, AlgorithmParams, Problem, Round, Uploads
from fedkeel.algorithms.state import State


class MomentumParams(AlgorithmParams):
    beta: float = Field(0.9, ge=0, lt=1, description="β, momentum of the server; the undampened gain is 1/(1 − β)")
    eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate")
    dampened: bool = Field(False, description="v ← β v + (1 − β) d̄, as MOON's program does")


class ServerMomentum(Algorithm):
    """To stand before a base among a class's parents: ``class FedAvgM(ServerMomentum, FedAvg)``."""

    params: MomentumParams
    server_rate = 1.0

    def server_init(self, problem: Problem) -> State:
        return super().server_init(problem).replace(v=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        base = super().aggregate(server, uploads, round)
        d = server.w - base.w
        v = self.params.beta * server.v + (d * (1 - self.params.beta) if self.params.dampened else d)
        return base.replace(w=server.w - self.params.eta_g * v, v=v)
