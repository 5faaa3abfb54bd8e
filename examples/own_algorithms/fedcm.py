"""FedCM as somebody outside fedkeel would write it (inside, it is ``fedcm``): client-level momentum (Xu et al., 2021).

client   y ← w;  K_i times:  y ← y − η (a ∇F_i(y) + (1 − a) g)
server   Δ_i ← y_i − w;   g ← −mean_S Δ_i/(K_i η);   w ← w + mean_S Δ_i
"""

from pydantic import Field

from fedkeel import Algorithm, AlgorithmParams, Law, Message, Paper, State
from fedkeel.algorithms.corrections import scaled, shift
from fedkeel.algorithms.server_steps import average


class FedCM(Algorithm):
    name, title = "fedcm", "FedCM"
    idea = "Every local step follows the last round's mean gradient as well as its own."
    paper = Paper("FedCM: Federated Learning with Client-level Momentum", "Xu et al.", "arXiv:2106.10874", 2021)
    laws = (Law("FedCM(a = 1) is FedAvg with equal weights", {"a": 1.0}, "fedavg", {"weights": "uniform"}),)

    class Params(AlgorithmParams):
        a: float = Field(0.1, gt=0, le=1, description="a, share of a client's own gradient; 0.1 in the paper")

    def server_init(self, problem):
        return State(w=problem.w0, g=problem.zeros())

    def broadcast(self, server, round, clients):
        return Message(w=server.w, g=server.g)

    def correction(self, local):
        return scaled(self.params.a) + shift((1 - self.params.a) * local.down.g)

    def aggregate(self, server, uploads, round):
        g = average((server.w - uploads.y) / uploads.travel, uploads.clients.uniform)
        return server.replace(w=average(uploads.y, uploads.clients.uniform), g=g)
