"""FedGVRGM: two-phase gradient adjustment (Wang et al., ICPADS 2022), with its ablations FedGVR and FedGM.

As in SCAFFOLD a client replaces its own mean gradient c_k by everybody's, c, but only a share ε of it; ε falls as the
accuracy of the global model stops rising, because the errors in c − c_k weigh more near the end.

    CWC      sub(t) ← max(sub(t − 1), accuracy of w in percent)
             ε ← 1 for t < h,  else (sub(t) − sub(t − h))/h, within [0, 1]
    client   y ← w;  K_k times:  y ← y − η (∇F_k(y) + μ (y − w) + ε (c − c_k))
             c_k⁺ ← (w − y)/(K_k η) − ε (c − c_k);   sends y_k and δ_k = c_k⁺ − c_k
    GM       v ← β v + η_g Σ_S p_k (y_k − w);   w ← w + v
    server   c ← c + 1/N Σ_S ω_k δ_k

FedGVR is the local phase alone: w ← w + η_g Σ_S p_k (y_k − w) in place of GM. FedGM is the global phase alone
(``fedgm``): without c and ε clients take FedProx's steps.

Only for ε = 1 can the server form δ_k from y_k; then uploads carry the model only. ω_k = N n_k/n is left out with equal
weights. CWC's accuracy comes from evaluation: a run that should be judged on the test set needs a validation set.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.advanced import Controls
from fedkeel.algorithms.contract import Clients, Law, Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.fedgm import FedGM, TwoPhases
from fedkeel.algorithms.server_steps import average, control_gain
from fedkeel.algorithms.state import State
from fedkeel.algorithms.variants.readings import ControlReadings, FedGVRGMReadings
from fedkeel.learning.correction import Correction


class FedGVR(TwoPhases):
    name = "fedgvr"
    title = "FedGVR"
    idea = "FedProx with SCAFFOLD's control variates, turned down as the accuracy stops rising."
    observes = True
    laws = (Law("FedGVR(μ = 0, ε = 1) is SCAFFOLD", {"mu": 0.0, "h": 1_000_000, "weights": "uniform"}, "scaffold"),)
    variant = "fedkeel.algorithms.variants.fedgvrgm:FedGVRVariant"
    params: Params

    class Params(ControlReadings, TwoPhases.Params):
        h: int = Field(5, ge=1, description="h, rounds over which the gain in accuracy is taken; 5 in the paper")

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, c=problem.zeros(), sub=torch.empty(0, dtype=torch.float64))

    def client_init(self, problem: Problem) -> State:
        return State(c=problem.zeros())

    def observe(self, server: State, metrics: dict[str, float]) -> State:
        best = torch.cat([server.sub[-1:], server.sub.new_tensor([metrics["accuracy"]])]).max()
        return server.replace(sub=torch.cat([server.sub[-self.params.h :], best.unsqueeze(0)]))

    def epsilon(self, server: State) -> float:
        """CWC: the weight ε of the correction in the coming round."""
        sub, h = server.sub, self.params.h
        return 1.0 if len(sub) <= h else min(float(sub[-1] - sub[0]) * 100 / float(h), 1.0)

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w, c=server.c, eps=self.epsilon(server))

    def correction(self, local: Local) -> Correction:
        return super().correction(local) + shift(local.down.eps * (local.down.c - local.client.c))

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        c_k, eps = local.client.c, local.down.eps
        c_new = (local.w - y) / local.travel - eps * (local.down.c - c_k)
        return Message(y=y) if eps == 1 else Message(y=y, delta_c=c_new - c_k), State(c=c_new)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        w, c = server.w + self.mean_step(server, uploads), server.c + self.control_step(server, uploads)
        return server.replace(w=w, c=c).noting(eps=self.epsilon(server))

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c)

    def control_step(self, server: State, uploads: Uploads) -> Tensor:
        clients = uploads.clients  # 1/N Σ_S ω_k δ_k [d]
        shares = clients.uniform * clients.omega.squeeze(1) if self.params.weights == "n" else clients.uniform
        if self.epsilon(server) != 1:
            return average(uploads.delta_c, shares) * (clients.S / clients.N)
        rates = shares / uploads.travel.squeeze(1)
        return control_gain(server.w, uploads.y, rates, shares.sum() * server.c) * (clients.S / clients.N)


class FedGVRGM(FedGVR):
    name = "fedgvrgm"
    title = "FedGVRGM"
    idea = "Control variates that fade as accuracy saturates, and momentum at the server."
    laws = (Law("FedGVRGM(β = 0) is FedGVR", {"beta": 0.0, "scale": "unit"}, "fedgvr"),)
    variant = "fedkeel.algorithms.variants.fedgvrgm:FedGVRGMVariant"
    params: Params

    class Params(FedGVRGMReadings, FedGM.Params, FedGVR.Params):
        pass

    def server_init(self, problem: Problem) -> State:
        return super().server_init(problem).replace(v=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        v = self.params.beta * server.v + self.mean_step(server, uploads)
        c = server.c + self.control_step(server, uploads)
        return server.replace(w=server.w + v, v=v, c=c).noting(eps=self.epsilon(server))
