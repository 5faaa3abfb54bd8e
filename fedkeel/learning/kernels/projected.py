"""Projected steps (``projected``) of dense networks: the same steps with less work than three gradients are.

All gradients of a step are of the same minibatch X [B, in]. In the first layer, mostly by far the largest, each is
∇_p = E_pᵀ X, with the derivatives E_p [B, out] by what the layer gives, and nothing larger than these is needed:

    ⟨∇_p, M⟩ = ⟨E_p, X Mᵀ⟩  for any M:      ⟨∇_p, ∇_q⟩ = ⟨E_p, (X Xᵀ) E_q⟩,      ⟨∇_p, x_τ − x⟩ = ⟨E_p, X (x_τ − x)ᵀ⟩
    g + Σ_j c_j ∇_j = (E_0 + Σ_j c_j E_j)ᵀ X = Eᵀ X

So points are kept as Δ = x_τ − x, and what the layer gives at x_τ is X xᵀ + X Δᵀ. With c for the third row a step is
one product, Δ ← (1 − η c) Δ − η Eᵀ X; for the next minibatch X' the two points are one product apart as well, and a
small one: X' Δᵀ ← (1 − η c) X' Δᵀ − η (X' Xᵀ) E. And x is the same in all steps: what it makes of each sample is
computed once a round. The other layers, small beside the first, have their gradients written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedkeel.learning import projection
from fedkeel.learning.kernels.dense import DenseNet, Parameters, minus_one_hot
from fedkeel.learning.projected import Projection
from fedkeel.learning.task import Batch, again

TABLE_BYTES = 1 << 26
"""What x makes of all samples is kept if it is not larger than this."""

AT_ONCE = 1000
"""Samples of which it is computed at a time, so that the intermediate results stay in cache."""


class Answers(NamedTuple):
    """What a network makes of a minibatch at one point."""

    first: Tensor
    """What the first layer gives, before its activation [K, B, out]."""
    inputs: Sequence[Tensor]
    """What each further layer is given [K, B, in]."""
    errors: Sequence[Tensor]
    """The derivatives of the loss by what each layer gives [K, B, out]."""


class Start(Protocol):
    """The point x of a round."""

    def of(self, X: Tensor, hot: Tensor, share: Tensor, tau: int) -> Answers:
        """Its answers in step τ: inputs [K, B, in], targets as of ``minus_one_hot``, the samples' shares [K, B]."""


class AnyStart:
    """Computes them at every step."""

    def __init__(self, net: DenseNet, x: Tensor) -> None:
        self._net = net
        self._parameters = [layer.of(x) for layer in net.layers]

    def of(self, X: Tensor, hot: Tensor, share: Tensor, tau: int) -> Answers:
        W = self._parameters[0]
        first = torch.bmm(X, W.transposed) if W.bias_row is None else torch.baddbmm(W.bias_row, X, W.transposed)
        inputs, errors, _, _ = self._net.backpropagated(self._parameters, X, hot, share, first.clone())
        return Answers(first, inputs[1:], [error.transpose(1, 2) for error in errors])


class KnownStart:
    """Computes them once for all samples of one client, whom x [1, d] is of."""

    def __init__(self, net: DenseNet, x: Tensor, samples: Sequence[Batch], positions: Sequence[Tensor]) -> None:
        start = AnyStart(net, x)
        given = [net.layers[0].outputs, *(layer.inputs for layer in net.layers[1:])]
        self._widths = [*given, *(layer.outputs for layer in net.layers)]
        self._errors = slice(sum(given), sum(self._widths))
        self._positions = positions
        X = torch.cat([part.x.flatten(2) for part in samples], dim=1) if len(samples) > 1 else samples[0].x.flatten(2)
        hot = minus_one_hot(torch.cat([part.y for part in samples], dim=1), net.classes, x.dtype)
        n = X.shape[1]
        self._table = x.new_empty(n, sum(self._widths))
        whole = x.new_ones(1, n)
        for rows in (slice(first, first + AT_ONCE) for first in range(0, n, AT_ONCE)):
            own = start.of(X[:, rows], hot[:, :, rows], whole[:, rows], 0)
            torch.cat([own.first, *own.inputs, *own.errors], dim=2, out=self._table[rows].unsqueeze(0))
        self._space = torch.empty(0)

    def of(self, X: Tensor, hot: Tensor, share: Tensor, tau: int) -> Answers:
        rows = self._positions[tau].to(X.device)
        if self._space.shape[0] != rows.shape[0]:  # new memory at every step would cost more than what is written to it
            self._space = self._table.new_empty(len(rows), self._table.shape[1])
        asked = torch.index_select(self._table, 0, rows, out=self._space).unsqueeze(0)
        asked[:, :, self._errors].mul_(share.unsqueeze(2))
        first, *others = asked.split_with_sizes(self._widths, dim=2)
        layers = len(others) // 2
        return Answers(first, others[:layers], others[layers:])


def start_of(
    net: DenseNet, x: Tensor, all_samples: Callable[[], Sequence[Batch]] | None, positions: Sequence[Tensor] | None
) -> Start:
    """x [K, d], of which all is computed beforehand if that is less work."""
    if positions is None or all_samples is None:
        return AnyStart(net, x)
    samples = all_samples()
    n, asked = sum(part.y.shape[1] for part in samples), sum(map(len, positions))
    width = sum(layer.inputs + layer.outputs for layer in net.layers)
    if asked < 2 * n or n * width * x.itemsize > TABLE_BYTES:
        return AnyStart(net, x)
    return KnownStart(net, x, samples, positions)


@dataclass(frozen=True)
class Block:
    """Coordinates of one projection: whether the first weights are among them, and stretches of others."""

    holds_first: bool
    others: list[slice]

    @classmethod
    def between(cls, start: int, stop: int, first: slice) -> Block:
        parts = [slice(start, min(stop, first.start)), slice(max(start, first.stop), stop)]
        return cls(start <= first.start < stop, [part for part in parts if part.start < part.stop])


class Last(NamedTuple):
    """A step as far as it changed the first weights: Δ ← keep·Δ − η Eᵀ X."""

    X: Tensor
    E: Tensor
    """[K, B, out]."""
    keep: list[float]
    """[K]."""


class DenseWorker:
    """The steps of K clients from x [K, d]."""

    norms: Sequence[Tensor] = ()

    def __init__(
        self,
        net: DenseNet,
        rule: Projection,
        x: Tensor,
        lr: float,
        positions: Sequence[Tensor] | None,
        all_samples: Callable[[], Sequence[Batch]] | None,
    ) -> None:
        rows, x_before = rule.rows, rule.before
        self._net, self._x, self._rho, self._lr = net, x, rule.rho, lr
        self.acting = [0] * len(x)
        self._start = start_of(net, x, all_samples, positions)
        self._first = net.layers[0]
        self._blocks = [Block.between(*edges, self._first.weight) for edges in pairwise(rule.bounds.tolist())]
        self._others = [part for block in self._blocks for part in block.others]
        self._with_x, self._anchored = "global" in rows, "anchor" in rows
        # x_τ and, if it is remembered, x_{τ−1}, which change places: Δ, and the other layers' parameters.
        points = [x, x_before] if "prev" in rows else [x]
        self._moved = torch.stack([point - x for point in points])
        self._first_moved = [self._first.of(moved) for moved in self._moved]
        self._first_bias = self._first.of(self._moved.flatten(0, 1)).bias_row
        self._points = torch.empty_like(self._moved)
        for part in self._others:
            self._points[:, :, part] = torch.stack([point[:, part] for point in points])
        self._parameters = net.of(self._points.flatten(0, 1))
        # In the same order, and then at x, gradients in all coordinates but the first weights; and Δ there.
        M, K, d = self._points.shape
        gG = self._gG = x.new_empty(M + self._with_x + self._anchored, K, d)
        for part in self._others if self._anchored else []:
            gG[-1][:, part] = 0
        self._gradients = net.of(gG[:M].flatten(0, 1))
        self._gradients_at_x = net.of(gG[M]) if self._with_x else []
        self._now, self._tau = 0, 0
        self._equal = x.new_empty(K, 0)
        self._last: Last | None = None
        # Views that every step uses, by place and client; making them anew would cost as much as the arithmetic.
        self._deltas = [[self._views(self._moved[place, k]) for k in range(K)] for place in range(M)]
        self._remembered = [[[gG[:, k, part] for part in block.others] for block in self._blocks] for k in range(K)]
        self._others_at = [
            [tuple(vectors[:, part] for vectors in (self._moved[place], self._points[place])) for part in self._others]
            for place in range(M)
        ]
        self._others_of_x = [x[:, part] for part in self._others]
        self._others_anchor = [gG[-1][:, part] for part in self._others]

    def _views(self, delta: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """The first weights [out, in] inside a vector [d], and each block's other stretches."""
        first = delta[self._first.weight].view(self._first.outputs, self._first.inputs)
        return first, [[delta[part] for part in block.others] for block in self._blocks]

    @property
    def y(self) -> Tensor:
        """x_τ [K, d]."""
        return self._x + self._moved[self._now]

    def step(self, x: Tensor, hot: Tensor, weight: Tensor | None, active: Tensor | None) -> Tensor:
        """x_{τ+1} ← x_τ − η QP(g, G) on inputs [K, B, ...]; log p at x_τ [K, classes, B]."""
        K, _, B = hot.shape
        X = x.reshape(K, B, -1)
        if weight is None and self._equal.shape[1] != B:
            self._equal = X.new_full((K, B), 1 / B)
        share = self._equal if weight is None else weight
        at_x = self._start.of(X, hot, share, self._tau)
        shifts = self._shifts(X)
        E, log_p = self._backpropagated(X, shifts, at_x, hot, share)
        # X Mᵀ for every M of g, G: of the gradients, and of Δ.
        (P, *sizes), n = E.shape, self._gG.shape[0]
        images = X.new_empty(n, *sizes)
        torch.bmm(again(torch.bmm(X, X.transpose(1, 2)), P), E.flatten(0, 1), out=images[:P].flatten(0, 1))
        if self._anchored:
            images[-1] = shifts[self._now]
        moving = [True] * K if active is None else active.tolist()
        then = len(self._deltas) - 1 - self._now
        combined, keep = X.new_zeros(sizes), [1.0] * K
        for k in range(K):
            if moving[k]:
                keep[k] = self._move(k, then, X[k], E[:, k].flatten(1), images[:, k].flatten(1), combined[k])
            else:
                self._moved[then, k] = self._moved[self._now, k]
        # Into the same memory again, as long as minibatches have the same size.
        kept = X.clone() if self._last is None or self._last.X.shape != X.shape else self._last.X.copy_(X)
        self._last = Last(kept, combined, keep)
        self._now, self._tau = then, self._tau + 1
        for (moved, point), of_x, anchor in zip(
            self._others_at[then], self._others_of_x, self._others_anchor, strict=True
        ):
            torch.add(of_x, moved, out=point)
            if self._anchored:
                anchor.copy_(moved)
        return log_p

    def _shifts(self, X: Tensor) -> Tensor:
        """X Δᵀ at the points [M, K, B, out]."""
        if len(self._deltas) == 1:
            return torch.bmm(X, self._first_moved[0].transposed).unsqueeze(0)
        shifts = X.new_empty(2, *X.shape[:2], self._first.outputs)
        now, before = shifts[self._now], shifts[1 - self._now]
        torch.bmm(X, self._first_moved[1 - self._now].transposed, out=before)
        if self._last is None:
            now.zero_()
        else:
            X_last, E, keep = self._last
            by_sample = torch.bmm(X, X_last.transpose(1, 2))
            for k, factor in enumerate(keep):
                torch.addmm(before[k], by_sample[k], E[k], beta=factor, alpha=-self._lr, out=now[k])
        return shifts

    def _backpropagated(
        self, X: Tensor, shifts: Tensor, at_x: Answers, hot: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        """E [P, K, B, out], and log p at x_τ; gradients of all but the first weights are written."""
        M, K = shifts.shape[:2]
        outputs = (shifts + at_x.first).flatten(0, 1)
        if self._first_bias is not None:
            outputs += self._first_bias
        inputs, errors, _, log_p = self._net.backpropagated(
            self._parameters, X, again(hot, M), again(share, M), outputs
        )
        _write(self._gradients, inputs[1:], errors)
        E = errors[0].transpose(1, 2).reshape(shifts.shape)
        if self._with_x:
            _write(self._gradients_at_x, at_x.inputs, [error.transpose(1, 2) for error in at_x.errors])
            E = torch.cat([E, at_x.errors[0].unsqueeze(0)])
        return E, log_p[self._now * K : (self._now + 1) * K]

    def _move(self, k: int, then: int, X: Tensor, E: Tensor, images: Tensor, combined: Tensor) -> float:
        """Client k's Δ after the step, into place ``then``, from E [P, B·out] and X Mᵀ of g and all rows [n, B·out].

        Writes E of the combination into ``combined`` [B, out] and gives the factor of Δ.
        """
        n, P = images.shape[0], E.shape[0]
        order = [self._now, *(j for j in range(n) if j != self._now)]
        keep, lr = 1.0, self._lr
        (first, before), (new_first, after) = self._deltas[self._now][k], self._deltas[then][k]
        for block, gG, old, new in zip(self._blocks, self._remembered[k], before, after, strict=True):
            grams = [projection.products(part, part) for part in gG]
            if block.holds_first:
                grams.append(self._first_gram(E, images, first))
            gram = reduce(projection.plus, grams)
            (c,) = projection.multipliers([[[gram[i][j] for j in order] for i in order]], self._rho, X.dtype)
            self.acting[k] += sum(map(bool, c))
            factors = [value for _, value in sorted(zip(order, [1.0, *c], strict=True))]
            coefficients = torch.tensor(factors, dtype=X.dtype, device=X.device)
            for part, from_, to in zip(gG, old, new, strict=True):
                torch.addmv(from_, part.T, coefficients, alpha=-lr, out=to)
            if block.holds_first:
                keep = 1 - lr * factors[-1] if self._anchored else 1.0
                torch.mv(E.T, coefficients[:P], out=combined.view(-1))
                torch.addmm(first, combined.T, X, beta=keep, alpha=-lr, out=new_first)
        return keep

    def _first_gram(self, E: Tensor, images: Tensor, moved: Tensor) -> projection.Matrix:
        """Inner products of g and all rows over the first weights [n, n]."""
        gram = projection.products(E, images)
        return [*gram, [*(row[-1] for row in gram), projection.square(moved.view(-1))]] if self._anchored else gram


def _write(gradients: Parameters, inputs: Sequence[Tensor], errors: Sequence[Tensor]) -> None:
    """The gradients of all but the first weights, from inputs of further layers and the errors of all [K, out, B]."""
    for layer, given, error in zip(gradients, [None, *inputs], errors, strict=True):
        if given is not None:
            torch.bmm(error, given, out=layer.weights)
        if layer.biases is not None:
            torch.sum(error, dim=2, out=layer.biases)
