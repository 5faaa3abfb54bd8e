"""FedGVRGM, FedGVR and FedGM as printed.

    restart    every local step starts from w again, so that only the last gradient counts
    ε          of accuracies as fractions, and not held within [0, 1]                  ``acc_unit``, ``eps_clipped``
    c_k⁺       c_k − c + (w − y)·η/E, where a gradient needs 1/(K_k η); equation 7 has the opposite sign
    GM         collects what it moves, x ← x + step, v ← v + x, x ← x − β v, which turns x around 0 for ever

The print puts GM on c as well (``c_momentum``). That multiplies every lasting change of c by 1/(1 − β), so that c − c_k
is no longer centred and training diverges. And it multiplies the step of w by S/N (``scale``), which at 10 % made the
method slower than FedAvg where we measured it.
"""

from __future__ import annotations

from torch import Tensor

from fedkeel.algorithms.contract import Local, Message, Problem, Round, Uploads
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.fedgm import FedGM, TwoPhases
from fedkeel.algorithms.fedgvrgm import FedGVR, FedGVRGM
from fedkeel.algorithms.server_steps import average, control_gain
from fedkeel.algorithms.state import State
from fedkeel.learning.correction import Correction


class Restarting(TwoPhases):
    def correction(self, local: Local) -> Correction:
        # y − η (q + (y − w)/η) = w − η q: starting from w again is a pull of strength 1/η.
        restart = 1 / local.round.lr if self.params.restart else 0.0
        return pull(self.params.mu + restart, towards=local.w)


class FedGVRVariant(FedGVR, Restarting):
    def epsilon(self, server: State) -> float:
        if len(server.sub) <= self.params.h:
            return 1.0
        gain = float(server.sub[-1] - server.sub[0]) * (100 if self.params.acc_unit == "percent" else 1)
        eps = gain / float(self.params.h)
        return min(eps, 1.0) if self.params.eps_clipped else eps

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        c, c_k, eps = local.down.c, local.client.c, local.down.eps
        c_new = self._seen(local, y) - (eps * (c - c_k) if self.params.c_update == "exact" else c - c_k)
        message = Message(y=y) if self._derivable(eps) else Message(y=y, delta_c=c_new - c_k)
        return message, local.client.replace(c=c_new)

    def control_step(self, server: State, uploads: Uploads) -> Tensor:
        clients = uploads.clients
        rule = self.params.weights_c if self.params.weights_c != "same" else self.params.weights
        shares = clients.uniform * clients.omega.squeeze(1) if rule in ("n", "omega") else clients.uniform
        if self._derivable(self.epsilon(server)):
            rates = shares / uploads.travel.squeeze(1) * (1 if self.params.c_sign == "alg" else -1)
            gain = control_gain(server.w, uploads.y, rates, shares.sum() * server.c)
        else:
            gain = average(uploads.delta_c, shares)
        return gain * (clients.S / clients.N)

    def _derivable(self, eps: float) -> bool:
        """Whether δ_k = ±(w − y)/(K_k η) − c, without c_k: SCAFFOLD's recursion, which for ε = 1 is the exact one."""
        recursion = self.params.c_update == "scaffold" or eps == 1
        return bool(recursion and self.params.c_factor == "steps" and self.params.traffic == "min")

    def _seen(self, local: Local, y: Tensor) -> Tensor:
        """(w − y)/(K_k η), the mean gradient that the steps took [K, d], or what was printed in its place."""
        moved = local.w - y if self.params.c_sign == "alg" else y - local.w
        if self.params.c_factor == "steps":
            return moved / local.travel
        epochs = (local.steps.to(y.dtype) / local.steps_per_epoch).unsqueeze(1)
        return moved * local.round.lr / epochs


class PrintedMomentum(TwoPhases):
    params: FedGM.Params

    def mean_step(self, server: State, uploads: Uploads) -> Tensor:
        """As before, or times S/N with this round's S."""
        clients = uploads.clients
        step: Tensor = average(uploads.y, clients.weights(self.params.weights)) - server.w
        scale = clients.S / clients.N if self.params.scale == "participation" else 1.0
        return step * (self.params.eta_g * scale)

    def moved(self, x: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """GM: x after the step, and the new v."""
        if self.params.gm == "printed":
            x = x + step
            v = v + x
            return x - self.params.beta * v, v
        v = self.params.beta * v + step
        return x + v, v


class FedGMVariant(PrintedMomentum, FedGM, Restarting):
    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        w, v = self.moved(server.w, server.v, self.mean_step(server, uploads))
        return server.replace(w=w, v=v)


class FedGVRGMVariant(PrintedMomentum, FedGVRGM, FedGVRVariant):
    params: FedGVRGM.Params

    def server_init(self, problem: Problem) -> State:
        server = super().server_init(problem)
        return server if self.params.c_momentum == "none" else server.replace(v_c=problem.zeros())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        w, v = self.moved(server.w, server.v, self.mean_step(server, uploads))
        step, server = self.control_step(server, uploads), server.noting(eps=self.epsilon(server))
        if self.params.c_momentum == "none":
            return server.replace(w=w, v=v, c=server.c + step)
        if self.params.c_momentum == "damp":
            step = (1 - self.params.beta) * step
        c, v_c = self.moved(server.c, server.v_c, step)
        return server.replace(w=w, v=v, c=c, v_c=v_c)
