"""FedExP as somebody outside fedkeel would write it (inside, it is ``fedexp``; Jhunjhunwala et al., ICLR 2023).

    client   y ← w;  K_i times:  y ← y − η ∇F_i(y)
    server   Δ_i ← y_i − w;   Δ̄ ← mean_S Δ_i;   η_g ← max(1, ½ mean_S ‖Δ_i‖²/(‖Δ̄‖² + ε));   w ← w + η_g Δ̄

The more the updates differ in direction, the more their mean shrinks, and the longer the server's step.
"""

from pydantic import Field

from fedkeel import Algorithm, AlgorithmParams, Law, Paper, Round, State, Uploads
from fedkeel.algorithms.server_steps import average


class FedExP(Algorithm):
    name = "fedexp"
    title = "FedExP"
    idea = "The server's step is the longer the more the clients' updates differ."
    paper = Paper("FedExP: Speeding Up Federated Averaging via Extrapolation", "Jhunjhunwala et al.", "ICLR", 2023)
    laws = (Law("FedExP(ε → ∞) is FedAvg with equal weights", {"epsilon": 1e30}, "fedavg", {"weights": "uniform"}),)

    class Params(AlgorithmParams):
        epsilon: float = Field(1e-3, gt=0, description="ε, against a vanishing mean; 1e-3 in the paper's experiments")

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        deltas = uploads.y - server.w  # [S, d]
        mean = average(deltas, uploads.clients.uniform)
        lengths = float(deltas.square().sum(1).mean())
        eta_g = max(1.0, 0.5 * lengths / (float(mean.square().sum()) + self.params.epsilon))
        return server.replace(w=server.w + eta_g * mean)
