"""Steps that take back what raises the loss on remembered samples (``unforgetting``), of one client's dense network.

The first layer, mostly by far the largest, has its gradients as factors: g = Eᵀ X, with the derivatives E [B, out] by
what it gives for the inputs X [B, in]. With D = y − w kept apart, what it gives at w + β D is X wᵀ + β X Dᵀ, and

    ⟨D, g⟩ = ⟨E, X Dᵀ⟩,      ⟨g, g'⟩ = ⟨E, (X X'ᵀ) E'⟩

so that no gradient of that layer is ever written. Both remembered batches of a step go through the network together;
X wᵀ and X X'ᵀ are the same whenever they come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.learning.kernels.dense import DenseNet, minus_one_hot
from fedkeel.learning.task import Batch
from fedkeel.learning.unforgetting import TINY, Unforgetting


class Pair(NamedTuple):
    """The two remembered batches of a step, one behind the other."""

    X: Tensor
    """[2B, in]."""
    hot: Tensor
    """As of ``minus_one_hot`` [1, classes, 2B]."""
    at_w: Tensor
    """What the first layer gives at w, without its bias [2B, out]."""
    products: Tensor
    """X Xᵀ [2B, 2B]."""


class UnforgettingSteps:
    """All steps of one client from w [1, d]."""

    acting: Sequence[int] | None = None

    def __init__(
        self,
        net: DenseNet,
        rule: Unforgetting,
        lr: float,
        clip: float | None,
        positions: Sequence[Tensor] | None,
        all_samples: Callable[[], Sequence[Batch]] | None,
    ) -> None:
        self._net, self._rule, self._lr, self._clip = net, rule, lr, clip
        self.norms: list[Tensor] = []
        first = net.layers[0]
        self._W = first.of(rule.w).weights[0]
        self._D = torch.zeros_like(rule.w)
        self._D_first = first.of(self._D).weights[0]
        ends = (slice(0, first.weight.start), slice(first.weight.stop, rule.w.shape[1]))
        self._rest = [part for part in ends if part.stop > part.start]
        self._point = torch.empty_like(rule.w)
        self._parameters = net.of(self._point)
        self._gradients = [torch.empty_like(rule.w) for _ in range(2)]
        self._views = [[layer.of(g) for layer in net.layers] for g in self._gradients]
        self._pairs: dict[int, Pair] = {}
        self._positions = positions
        self._known = None if positions is None or all_samples is None else self._of_all(all_samples())
        self._k = 0

    @property
    def y(self) -> Tensor:
        """The parameters after the steps so far [1, d]."""
        return self._rule.w + self._D

    def step(self, x: Tensor, hot: Tensor, weight: Tensor | None, active: Tensor | None) -> Tensor:
        """Take a step on inputs [1, B, ...]; give log p before it [1, classes, B]."""
        X = x[0].flatten(1)
        E, (g,), log_p = self._backpropagated(X, self._at_w(X), self._rule.gamma, hot, 1)
        factor = self._lr
        if self._clip is not None:
            norm = torch.sqrt((E * ((X @ X.t()) @ E)).sum() + self._dot(g, g)).reshape(1)
            self.norms.append(norm)
            factor *= min(1.0, self._clip / (float(norm) + 1e-6))
        self._D_first.addmm_(E.t(), X, alpha=-factor)
        self._add(g, -factor)
        self._take_back(self._pair())
        self._k += 1
        return log_p

    def _take_back(self, pair: Pair) -> None:
        moved = pair.X @ self._D_first.t()
        E, (g2, g3), _ = self._backpropagated(pair.X, pair.at_w, self._rule.beta, pair.hot, 2, moved)
        n = len(E) // 2
        E2, E3 = E[:n], E[n:]
        XX = pair.products
        a = (_dot(E2, moved[:n]) + self._dot(self._D, g2)) / (_dot(E2, XX[:n, :n] @ E2) + self._dot(g2, g2) + TINY)
        a = a.clamp(min=0)
        along = _dot(E3, moved[n:]) + self._dot(self._D, g3)
        along -= a * (_dot(E3, XX[n:, :n] @ E2) + self._dot(g2, g3))
        b = (along / (_dot(E3, XX[n:, n:] @ E3) + self._dot(g3, g3) + TINY)).clamp(min=0)
        for part, g, factor in ((slice(0, n), g2, float(a)), (slice(n, 2 * n), g3, float(b))):
            if factor != 0:  # also where it is not a number
                self._D_first.addmm_(E[part].t(), pair.X[part], alpha=-factor)
                self._add(g, -factor)

    def _backpropagated(
        self, X: Tensor, at_w: Tensor, share: float, hot: Tensor, parts: int, moved: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """At w + share·D: E [B, out], the gradients of everything but the first weights by ``parts`` of X, log p."""
        for part in self._rest:
            torch.add(self._rule.w[:, part], self._D[:, part], alpha=share, out=self._point[:, part])
        moved = X @ self._D_first.t() if moved is None else moved
        first = torch.add(at_w, moved, alpha=share)
        bias = self._parameters[0].bias_row
        first = first.unsqueeze(0) if bias is None else first.unsqueeze(0).add_(bias)
        inputs, errors, _, log_p = self._net.backpropagated(self._parameters, X.unsqueeze(0), hot, None, first)
        n = len(X) // parts
        for number in range(parts):
            rows = slice(number * n, (number + 1) * n)
            for depth, (layer, given, error) in enumerate(zip(self._views[number], inputs, errors, strict=True)):
                own = error[:, :, rows] / n
                if depth:
                    torch.bmm(own, given[:, rows], out=layer.weights)
                if layer.biases is not None:
                    torch.sum(own, dim=2, out=layer.biases)
        return errors[0][0].t() / n, self._gradients[:parts], log_p

    def _dot(self, u: Tensor, v: Tensor) -> Tensor:
        """⟨u, v⟩ in all coordinates but the first weights."""
        return sum((torch.dot(u[0, part], v[0, part]) for part in self._rest), start=u.new_zeros(()))

    def _add(self, g: Tensor, factor: float) -> None:
        for part in self._rest:
            self._D[:, part].add_(g[:, part], alpha=factor)

    def _pair(self) -> Pair:
        number = self._k % int(self._rule.counts[0])
        if number not in self._pairs:
            batches = [batches[number] for batches in self._rule.remembered]
            X = torch.cat([batch.x[0].flatten(1) for batch in batches])
            hots = [minus_one_hot(batch.y, self._net.classes, X.dtype) for batch in batches]
            self._pairs[number] = Pair(X, torch.cat(hots, dim=2), X @ self._W.t(), X @ X.t())
        return self._pairs[number]

    def _of_all(self, samples: Sequence[Batch]) -> Tensor:
        """What the first layer gives at w for all samples, without its bias [n, out]."""
        return torch.cat([part.x[0].flatten(1) @ self._W.t() for part in samples])

    def _at_w(self, X: Tensor) -> Tensor:
        if self._known is None or self._positions is None:
            return X @ self._W.t()
        return torch.index_select(self._known, 0, self._positions[self._k].to(X.device))


def _dot(u: Tensor, v: Tensor) -> Tensor:
    """⟨u, v⟩ of matrices."""
    return (u * v).sum()
