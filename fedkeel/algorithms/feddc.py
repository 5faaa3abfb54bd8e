"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022).

Each client keeps a drift h_i that is added to its model before averaging, so that the average does not have to wait for
the clients to agree. A linear term, as in SCAFFOLD, removes what is left of the gradient drift.

    client   y ← w;  K_i times:  y ← y − η (∇F_i(y) + α_i (y + h_i − w) − c_i + c/ω_i),   α_i = α/ω_i
             c_i ← c_i − c/ω_i + (w − y)/(K_i η);   h_i ← h_i + (y − w)
    server   h̄ ← h̄ + 1/N Σ_S (y_i − w);   c ← c + 1/N Σ_S ω_i Δc_i;   w ← mean_S y_i + h̄

Without the linear term this is FedDyn. The server derives Δc_i from y_i, so uploads carry the model only.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms import last_models
from fedkeel.algorithms.advanced import Controls
from fedkeel.algorithms.contract import Algorithm, Clients, Law, Local, Message, Paper, Problem, Round, Uploads
from fedkeel.algorithms.corrections import pull, shift
from fedkeel.algorithms.feddyn import relative_size
from fedkeel.algorithms.server_steps import average, control_gain
from fedkeel.algorithms.state import State
from fedkeel.algorithms.variants.readings import FedDCReadings
from fedkeel.learning.correction import Correction


class FedDC(Algorithm):
    name = "feddc"
    title = "FedDC"
    idea = "Clients carry their drift along and add it before averaging; a linear term corrects the gradients."
    paper = Paper(
        "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
        "Gao et al.",
        "CVPR",
        2022,
    )
    laws = (
        Law("FedDC without its linear term is FedDyn", {"linear": False, "alpha": 0.05}, "feddyn", {"alpha": 0.05}),
        Law(
            "FedDC(α = 0) with no drift in the average is SCAFFOLD",
            {"alpha": 0.0, "use_h": False},
            "scaffold",
            needs=frozenset({"equal_sizes"}),
        ),
    )

    variant = "fedkeel.algorithms.variants.feddc:FedDCVariant"
    params: Params

    class Params(FedDCReadings, last_models.CandidateParams):
        alpha: float = Field(
            0.1, ge=0, description="α, weight of the penalty ‖y + h − w‖²; 0.01 on CIFAR, 0.1 on MNIST"
        )
        omega_min: float = Field(
            0.0, ge=0, description="floor on ω_i, against α/ω_i exploding for tiny clients; 0: off"
        )

    def server_init(self, problem: Problem) -> State:
        drift = {"c": problem.zeros(), "h": problem.zeros()}
        return State(w=problem.w0, **drift, **last_models.initial(self.params, problem))

    def client_init(self, problem: Problem) -> State:
        return State(h=problem.zeros(), c=problem.zeros())

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c)

    def correction(self, local: Local) -> Correction:
        """Pull y towards w − h_i, and replace the client's mean gradient by everybody's."""
        omega = relative_size(local.clients, self.params.omega_min)
        penalty = pull(self.params.alpha / omega, towards=local.w - local.client.h)
        return penalty + shift(local.down.c / omega - local.client.c)

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        omega = relative_size(local.clients, self.params.omega_min)
        c = local.client.c - local.down.c / omega + (local.w - y) / local.travel
        return Message(y=y), local.client.replace(h=local.client.h + (y - local.w), c=c)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        clients, y = uploads.clients, uploads.y
        theta = average(y, clients.uniform)
        h = server.h + (theta - server.w) * (clients.S / clients.N)
        # ω_i Δc_i = ω_i (w − y_i)/(K_i η) − c
        omega = relative_size(clients, self.params.omega_min)
        gain = control_gain(server.w, y, clients.uniform * (omega / uploads.travel).squeeze(1), server.c)
        c = server.c + gain * (clients.S / clients.N)
        return server.replace(w=theta + h, c=c, h=h, **last_models.renewed(server, uploads, theta))

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c)

    def candidates(self, server: State) -> dict[str, Tensor]:
        return last_models.candidates(self.params, server)
