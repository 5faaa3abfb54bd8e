"""Steps that take back what raises the loss on remembered samples (``unforgetting``), of one client's dense network.

The first layer, mostly by far the largest, has its gradients as factors: g = Eᵀ X, with the derivatives E [B, out] by
what it gives for the inputs X [B, in]. With D = y − w kept apart, what it gives at w + β D is X wᵀ + β X Dᵀ, and

    ⟨D, g⟩ = ⟨E, X Dᵀ⟩,      ⟨g, g'⟩ = ⟨E, (X X'ᵀ) E'⟩

so that no gradient of that layer is ever written. Both remembered batches of a step go through the network together;
X wᵀ and X X'ᵀ are the same whenever they come back.

A step moves D three times, along its own gradient and against both remembered ones, but passes over the first layer's D
only twice: once for X Dᵀ of all three batches, and once to add Eᵀ X of all three. In between, what the step's own
gradient has done to the remembered batches follows from the products of inputs: X' Dᵀ − η (X' Xᵀ) E. Derivatives
are those of a batch's sum; the size of the batch goes into the factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.learning.kernels.dense import DenseNet, minus_one_hot
from fedkeel.learning.task import Batch
from fedkeel.learning.unforgetting import TINY, Unforgetting


class Pair(NamedTuple):
    """The two remembered batches of a step, one behind the other."""

    room: Tensor
    """Their inputs, behind room for those of the step [most + 2B, in]."""
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
        positions: Sequence[Tensor],
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
        self._gradients = torch.empty_like(rule.w).repeat(2, 1)
        self._views = {parts: [layer.of(self._gradients[:parts]) for layer in net.layers] for parts in (1, 2)}
        self._pairs: dict[int, Pair] = {}
        self._positions = positions
        self._most = max((len(own) for own in positions), default=0)
        self._known = None if all_samples is None else self._of_all(all_samples())
        self._k = 0

    @property
    def y(self) -> Tensor:
        """The parameters after the steps so far [1, d]."""
        return self._rule.w + self._D

    def step(self, x: Tensor, hot: Tensor, weight: Tensor | None, active: Tensor | None) -> Tensor:
        """Take a step on inputs [1, B, ...]; give log p before it [1, classes, B]."""
        pair, n = self._pair(), x.shape[1]
        rows = pair.room[self._most - n :]
        X, remembered = rows[:n].copy_(x[0].flatten(1)), rows[n:]
        moved = rows @ self._D_first.t()
        E, log_p = self._backpropagated(X, self._at_w(X), moved[:n], self._rule.gamma, hot, 1)
        factor = self._lr / n * self._clipped(X, E)
        self._add(0, -factor)
        moved = torch.addmm(moved[n:], remembered @ X.t(), E, alpha=-factor)
        E_both, _ = self._backpropagated(remembered, pair.at_w, moved, self._rule.beta, pair.hot, 2)
        shares = self._shares(E_both, moved, pair.products)
        for number, share in enumerate(shares):
            self._add(number, -share)
        used = n + len(remembered) // 2 * max(
            (number + 1 for number, share in enumerate(shares) if share != 0), default=0
        )
        errors = [E.mul_(factor), *(part.mul_(share) for part, share in zip(E_both.chunk(2), shares, strict=True))]
        self._D_first.addmm_(torch.cat(errors)[:used].t(), rows[:used], alpha=-1)
        self._k += 1
        return log_p

    def _clipped(self, X: Tensor, E: Tensor) -> float:
        """What clipping leaves of the gradient that was computed last, as a factor."""
        if self._clip is None:
            return 1.0
        squared = (E * ((X @ X.t()) @ E)).sum() + self._products(1)[0, 0]
        # Of gradients that cancel, rounding can leave slightly less than nothing.
        norm = squared.clamp_min(0).sqrt().reshape(1) / len(X)
        self.norms.append(norm)
        return min(1.0, self._clip / (float(norm) + 1e-6))

    def _shares(self, E: Tensor, moved: Tensor, products: Tensor) -> tuple[float, float]:
        """a and b, by how much the gradients of the sums over both remembered batches are taken back."""
        n = len(E) // 2
        gram = ((E @ E.t()).mul_(products).view(2, n, 2, n).sum(dim=(1, 3)) + self._products(2)).tolist()
        along = (E * moved).view(2, -1).sum(dim=1)
        for part in self._rest:
            along += self._gradients[:, part] @ self._D[0, part]
        of_g2, of_g3 = along.tolist()
        tiny = n * n * TINY
        a = _positive(of_g2, gram[0][0] + tiny)
        return a, _positive(of_g3 - a * gram[1][0], gram[1][1] + tiny)

    def _backpropagated(
        self, X: Tensor, at_w: Tensor, moved: Tensor, share: float, hot: Tensor, parts: int
    ) -> tuple[Tensor, Tensor]:
        """At w + share·D: E [B, out] and log p; the gradients of all but the first weights by ``parts`` of X are kept.

        ``moved`` is X Dᵀ [B, out].
        """
        for part in self._rest:
            torch.add(self._rule.w[:, part], self._D[:, part], alpha=share, out=self._point[:, part])
        first = torch.add(at_w, moved, alpha=share).unsqueeze(0)
        bias = self._parameters[0].bias_row
        first = first if bias is None else first.add_(bias)
        inputs, errors, _, log_p = self._net.backpropagated(self._parameters, X.unsqueeze(0), hot, None, first)
        n = len(X) // parts
        for depth, (layer, given, error) in enumerate(zip(self._views[parts], inputs, errors, strict=True)):
            own = error.transpose(1, 2).reshape(parts, n, -1)
            if depth:
                torch.bmm(own.transpose(1, 2), given.view(parts, n, -1), out=layer.weights)
            if layer.biases is not None:
                torch.sum(own, dim=1, out=layer.biases)
        return errors[0][0].t().contiguous(), log_p

    def _products(self, parts: int) -> Tensor:
        """⟨g, g'⟩ of the gradients kept last [parts, parts], in all coordinates but the first weights."""
        total = self._D.new_zeros(parts, parts)
        for part in self._rest:
            g = self._gradients[:parts, part]
            total += g @ g.t()
        return total

    def _add(self, number: int, factor: float) -> None:
        """Move along one of the gradients kept last, in all coordinates but the first weights."""
        if factor != 0:  # also where it is not a number
            for part in self._rest:
                self._D[:, part].add_(self._gradients[number, part], alpha=factor)

    def _pair(self) -> Pair:
        number = self._k % int(self._rule.counts[0])
        if number not in self._pairs:
            batches = [batches[number] for batches in self._rule.remembered]
            X = torch.cat([batch.x[0].flatten(1) for batch in batches])
            hots = [minus_one_hot(batch.y, self._net.classes, X.dtype) for batch in batches]
            room = torch.cat([X.new_zeros(self._most, X.shape[1]), X])
            self._pairs[number] = Pair(room, torch.cat(hots, dim=2), X @ self._W.t(), X @ X.t())
        return self._pairs[number]

    def _of_all(self, samples: Sequence[Batch]) -> Tensor:
        """What the first layer gives at w for all samples, without its bias [n, out]."""
        return torch.cat([part.x[0].flatten(1) @ self._W.t() for part in samples])

    def _at_w(self, X: Tensor) -> Tensor:
        if self._known is None:
            return X @ self._W.t()
        return torch.index_select(self._known, 0, self._positions[self._k].to(X.device))


def _positive(share: float, of: float) -> float:
    """share/of if that is not negative, else 0; what is not a number stays none."""
    quotient = share / of if of else math.nan
    return 0.0 if quotient < 0 else quotient
