"""VRL-SGD: variance reduced local SGD (Liang et al., 2019).

Each client subtracts Δ_i, how its own mean gradient differs from everybody's; the differences cancel in the mean.

    client   Δ_i ← Δ_i + (w − y_i)/(K η)  with the new w and its last y_i, K and η
             y ← w;  K times:  y ← y − η (∇F_i(y) − Δ_i)
    server   w ← mean y_i

This is SCAFFOLD at full participation, with Δ_i = c_i − c and half of its traffic down. It has no answer to absent
clients, and with unequal numbers of steps it converges to a wrong point, so both are refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import (
    Algorithm,
    AlgorithmParams,
    Clients,
    Law,
    Local,
    Message,
    Paper,
    Problem,
    Round,
    Uploads,
)
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.errors import InputError
from fedkeel.learning.correction import Correction


class VrlSgd(Algorithm):
    name = "vrlsgd"
    title = "VRL-SGD"
    idea = "Clients subtract the difference between their own mean gradient and everybody's."
    paper = Paper(
        "Variance Reduced Local SGD with Lower Communication Complexity", "Liang et al.", "arXiv:1912.12844", 2019
    )
    needs = frozenset({"full", "equal_steps"})
    laws = (Law("VRL-SGD is SCAFFOLD", {}, "scaffold", needs=frozenset({"full", "equal_steps"})),)
    params: Params

    class Params(AlgorithmParams):
        weights: Literal["uniform", "n"] = Field("uniform", description="weights of the average: equal, or samples")

    def client_init(self, problem: Problem) -> State:
        # Δ_i waits for the next w, so a client keeps Δ_i − y_i/(K η) and 1/(K η); both 0 make the first Δ_i 0.
        return State(z=problem.zeros(), rate=problem.w0.new_zeros(1))

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        if clients.S < clients.N:
            raise InputError(
                f"vrlsgd needs every client in every round, got {clients.S} of {clients.N}; "
                "set training.participation = 1, or take scaffold."
            )
        return Message(w=server.w)

    def correction(self, local: Local) -> Correction:
        return shift(-delta(local.w, local.client))

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        rate = 1 / local.travel
        return Message(y=y), local.client.replace(z=delta(local.w, local.client) - rate * y, rate=rate)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        steps = uploads.steps
        if bool(steps.ne(steps[0]).any()):
            raise InputError(
                f"vrlsgd needs the same number of local steps at every client, got {int(steps.min())} to "
                f"{int(steps.max())}; set training.steps in place of training.epochs."
            )
        return server.replace(w=average(uploads.y, uploads.clients.weights(self.params.weights)))


def delta(w: Tensor, client: State) -> Tensor:
    """Δ_i of K clients [K, d] once w has arrived, from what they remember."""
    renewed: Tensor = client.z + client.rate * w
    return renewed
