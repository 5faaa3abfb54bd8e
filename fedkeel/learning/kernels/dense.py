"""Loss and gradient of dense networks without automatic differentiation, for K clients at once.

A chain of dense layers and ReLU or tanh, ended by a dense layer under cross-entropy, is what many federated experiments
train, and there Python and autograd cost as much as the arithmetic. Here a step is one matrix product per layer and
direction, written straight into its place in the flat gradient [K, d]. ``recognise`` says whether a task is of that
form; tests hold the result against autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.learning.averaging import Averaging
from fedkeel.learning.calibration import Calibration
from fedkeel.learning.layout import Layout
from fedkeel.learning.losses import Loss, cross_entropy
from fedkeel.learning.pace import Pace
from fedkeel.learning.recognise import layers_of

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
REMEMBERED = 2
"""Vectors whose views are kept: the parameters and the gradient of the step before."""


@dataclass(frozen=True)
class Layer:
    """One dense layer: where its weight [out, in] and bias [out] lie in the flat vector, and what follows it."""

    weight: slice
    bias: slice | None
    outputs: int
    inputs: int
    activation: type[nn.Module] | None

    def of(self, vectors: Tensor) -> Views:
        """Weights and biases inside flat vectors [K, d]."""
        return self._views(vectors[:, self.weight], None if self.bias is None else vectors[:, self.bias])

    def averages(self, averaging: Averaging) -> Views | None:
        """The averaged gradients of this layer; None where its steps follow the gradients themselves."""
        weights = averaging.on(self.weight)
        return None if weights is None else self._views(weights, None if self.bias is None else averaging.on(self.bias))

    def is_split(self, averaging: Averaging) -> bool:
        """Whether only some of the layer's gradients are averaged."""
        parts = [self.weight] if self.bias is None else [self.weight, self.bias]
        return any(map(averaging.splits, parts)) or len({averaging.on(part) is None for part in parts}) > 1

    @property
    def stretches(self) -> list[slice]:
        """Where the layer's parameters lie: weight and bias in one if they are neighbours."""
        if self.bias is None:
            return [self.weight]
        if self.weight.stop == self.bias.start:
            return [slice(self.weight.start, self.bias.stop)]
        return [self.weight, self.bias]

    def _views(self, weights: Tensor, biases: Tensor | None) -> Views:
        weights = weights.view(-1, self.outputs, self.inputs)
        if biases is None:
            return Views(weights, weights.transpose(1, 2), None, None, None)
        return Views(weights, weights.transpose(1, 2), biases, biases.unsqueeze(1), biases.unsqueeze(2))


class Views(NamedTuple):
    """A layer's parameters inside flat vectors, in all the shapes that a step needs: made once, used at every step."""

    weights: Tensor
    """[K, out, in]."""
    transposed: Tensor
    """[K, in, out]."""
    biases: Tensor | None
    """[K, out]."""
    bias_row: Tensor | None
    """[K, 1, out]."""
    bias_column: Tensor | None
    """[K, out, 1]."""


Parameters = list[Views]
"""All layers, first to last."""


class DenseNet:
    """The layers of a dense network, first to last."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.classes = layers[-1].outputs
        self._views: dict[tuple[int, torch.Size, torch.dtype], tuple[Tensor, Parameters]] = {}

    def of(self, vectors: Tensor) -> Parameters:
        """Weights and biases of all layers inside flat vectors [K, d], as views; those used last are remembered."""
        # What is remembered holds on to its memory, so that nothing else can lie at the same address.
        known = self._views.pop((vectors.data_ptr(), vectors.shape, vectors.dtype), None)
        if known is None or known[0].stride() != vectors.stride():
            known = vectors, [layer.of(vectors) for layer in self.layers]
        self._views[vectors.data_ptr(), vectors.shape, vectors.dtype] = known
        if len(self._views) > REMEMBERED:
            del self._views[next(iter(self._views))]
        return known[1]

    def gradient(
        self,
        y: Tensor,
        x: Tensor,
        targets: Tensor,
        weight: Tensor | None,
        out: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradient [K, d] and mean cross-entropy [K] at parameters y [K, d], on inputs [K, B, ...], targets [K, B].

        ``weight`` [K, B] are the samples' shares where batches are padded; None: all equal. ``out`` [K, d] takes the
        gradient, so that a loop need not touch new memory at every step.
        """
        hot = minus_one_hot(targets, self.classes, y.dtype)
        inputs, errors, share, log_p = self.backpropagated(self.of(y), x, hot, weight, calibration=calibration)
        gradient = torch.empty_like(y) if out is None else out
        for layer, given, error in zip(self.of(gradient), inputs, errors, strict=True):
            error.mul_(share)
            torch.bmm(error, given, out=layer.weights)
            if layer.biases is not None:
                torch.sum(error, dim=2, out=layer.biases)
        return gradient, mean_loss(log_p, hot, weight)

    def losses(self, y: Tensor, x: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The mean cross-entropy [K] that ``gradient`` gives for the same, to the bit, without the way back."""
        hot = minus_one_hot(targets, self.classes, y.dtype)
        K, _, B = hot.shape
        _, logits = self._forward(self.of(y), x if x.dim() == 3 else x.reshape(K, B, -1))
        return mean_loss(torch.log_softmax(logits, dim=1), hot, weight)

    def can_average(self, averaging: Averaging) -> bool:
        """Whether every layer is averaged as a whole or not at all."""
        return not any(layer.is_split(averaging) for layer in self.layers)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """The outputs [B, classes] of one model w [d] on inputs [B, ...]."""
        return self._forward(self.of(w.unsqueeze(0)), x.reshape(1, len(x), -1))[1][0].T.contiguous()

    def _forward(self, parameters: Parameters, x: Tensor, first: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """What each layer is given [K, B, in], and the logits [K, classes, B].

        The last layer is multiplied the other way round, W·xᵀ, which takes half as long for ten classes.
        """
        inputs = [x]
        if first is not None and len(self.layers) == 1:
            return inputs, first.transpose(1, 2)
        for layer, views in zip(self.layers[:-1], parameters[:-1], strict=True):
            if first is not None and len(inputs) == 1:
                out = first
            elif views.bias_row is None:
                out = torch.bmm(inputs[-1], views.transposed)
            else:
                out = torch.baddbmm(views.bias_row, inputs[-1], views.transposed)
            if layer.activation is nn.ReLU:
                out.relu_()
            elif layer.activation is nn.Tanh:
                out.tanh_()
            inputs.append(out)
        last, given = parameters[-1], inputs[-1].transpose(1, 2)
        if last.bias_column is None:
            return inputs, torch.bmm(last.weights, given)
        return inputs, torch.baddbmm(last.bias_column, last.weights, given)

    def backpropagated(
        self,
        parameters: Parameters,
        x: Tensor,
        hot: Tensor,
        weight: Tensor | None,
        first: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> tuple[list[Tensor], list[Tensor], float, Tensor]:
        """What each layer was given [K, B, in], the derivative by its output [K, out, B], a factor, log p.

        ``hot`` are the targets as of ``minus_one_hot``. The derivatives still have to be multiplied by the factor, a
        sample's equal share of the mean. log p [K, classes, B] are the log-probabilities. Who knows what the first
        layer gives before its activation hands it over as ``first`` [K, B, out]; it is overwritten. With a calibration
        log p is that of the calibrated scores.
        """
        K, _, B = hot.shape
        inputs, logits = self._forward(parameters, x if x.dim() == 3 else x.reshape(K, B, -1), first)
        if calibration is not None:
            logits = _calibrated(logits, calibration)
        log_p = torch.log_softmax(logits, dim=1)
        error = torch._log_softmax_backward_data(hot, log_p, 1, log_p.dtype)  # p − one-hot
        if calibration is not None and calibration.scale is not None:
            error.mul_(calibration.scale.unsqueeze(2))
        if weight is None:
            share = 1 / B
        else:
            error.mul_(weight.unsqueeze(1))
            share = 1.0
        errors = [error]
        for number in range(len(self.layers) - 1, 0, -1):
            below = torch.bmm(errors[-1].transpose(1, 2), parameters[number].weights)
            errors.append(_through(self.layers[number - 1], inputs[number], below).transpose(1, 2))
        return inputs, errors[::-1], share, log_p


def _calibrated(logits: Tensor, calibration: Calibration) -> Tensor:
    """Scores [K, classes, B] with every client's own scale and shift [K, classes]."""
    for part in (calibration.scale, calibration.shift):
        if part is not None and part.shape != logits.shape[:2]:
            raise ValueError(
                f"{list(part.shape)} calibrates no scores of {logits.shape[0]} clients and {logits.shape[1]} classes"
            )
    scaled = logits if calibration.scale is None else logits * calibration.scale.unsqueeze(2)
    return scaled if calibration.shift is None else scaled + calibration.shift.unsqueeze(2)


def minus_one_hot(targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """The derivative of the cross-entropy by log p, for targets [..., B]: −1 at each one's class [..., classes, B].

    Of targets that are probabilities [..., B, classes], each with the minus sign.
    """
    if targets.is_floating_point():
        return -targets.transpose(-1, -2)
    hot = torch.zeros(*targets.shape[:-1], classes, targets.shape[-1], dtype=dtype, device=targets.device)
    return hot.scatter_(-2, targets.unsqueeze(-2), -1)


def hot_steps(targets: Tensor, widths: Sequence[int], classes: int, dtype: torch.dtype) -> Sequence[Tensor]:
    """``minus_one_hot`` of the targets [K, n] of many steps, by step, if these have so many samples each."""
    if len(set(widths)) == 1:
        by_step = targets.view(len(targets), len(widths), widths[0]).transpose(0, 1)
        return minus_one_hot(by_step, classes, dtype).unbind()
    return [part.contiguous() for part in minus_one_hot(targets, classes, dtype).split_with_sizes(list(widths), dim=2)]


def mean_loss(log_p: Tensor, hot: Tensor, weight: Tensor | None) -> Tensor:
    """Mean cross-entropy [K] from log p and targets as of ``minus_one_hot`` [K, classes, B], and shares [K, B]."""
    losses = (log_p * hot).sum(dim=1)
    return losses.mean(dim=1) if weight is None else (losses * weight).sum(dim=1)


@dataclass(frozen=True)
class AffinePull:
    """y ← factor·y + offset, the part of a step that does not depend on the data (decay, a proximal pull, a shift).

    ``factor`` is a number or [K, 1], ``offset`` [K, d] or None.
    """

    factor: Tensor | float
    offset: Tensor | None

    def on(self, stretch: slice) -> AffinePull:
        """The same for some coordinates only."""
        return AffinePull(self.factor, None if self.offset is None else self.offset[:, stretch])

    def apply(self, y: Tensor, share: Tensor | None = None) -> None:
        """Move y [K, d] in place, in one pass over memory; only ``share`` [K, 1] of the way where that is given."""
        if share is not None:
            y.mul_(1 + share * (self.factor - 1))
            if self.offset is not None:
                y.addcmul_(self.offset, share)
        elif self.offset is None:
            y.mul_(self.factor)
        elif isinstance(self.factor, Tensor):
            torch.addcmul(self.offset, y, self.factor, out=y)
        else:
            torch.add(self.offset, y, alpha=self.factor, out=y)


class Descent:
    """Steps y ← pull(y) − lr·∇loss(y) of K clients, in place and layer by layer.

    The products add straight into the parameters: the gradient itself, as large as the model, is never written. What
    is pulled is still in the cache when the product is added.
    """

    norms: Sequence[Tensor] = ()
    acting: Sequence[int] | None = None

    def __init__(
        self,
        net: DenseNet,
        y: Tensor,
        lr: float,
        pull: AffinePull | None = None,
        averaging: Averaging | None = None,
        pace: Pace | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self._net, self.y, self._lr = net, y, lr
        self._parameters = net.of(y)
        self._pulls = [[] if pull is None else [(y[:, s], pull.on(s)) for s in layer.stretches] for layer in net.layers]
        self._averages = [None if averaging is None else layer.averages(averaging) for layer in net.layers]
        self._alpha = 0.0 if averaging is None else averaging.alpha
        self._pace, self._k = pace, 0
        self._calibration = calibration
        # What changes without a gradient.
        self._drifting = [y] if pull is not None or averaging is not None else []
        self._drifting += [] if averaging is None else [averaging.m]

    def step(self, x: Tensor, hot: Tensor, weight: Tensor | None, active: Tensor | None = None) -> Tensor:
        """Take a step on inputs [K, B, ...] and targets as of ``minus_one_hot``; give log p before it [K, classes, B].

        ``mean_loss`` of that is the loss, for whoever wants it at every step. Whoever is not ``active`` [K] has a batch
        of weight zero, hence no gradient; the rest of the step is taken back.
        """
        if active is None:
            return self._step(x, hot, weight)
        standing = [vectors.clone() for vectors in self._drifting]
        log_p = self._step(x, hot, weight)
        for vectors, before in zip(self._drifting, standing, strict=True):
            torch.where(active.unsqueeze(1), vectors, before, out=vectors)
        return log_p

    def _step(self, x: Tensor, hot: Tensor, weight: Tensor | None) -> Tensor:
        inputs, errors, share, log_p = self._net.backpropagated(
            self._parameters, x, hot, weight, calibration=self._calibration
        )
        pace = None if self._pace is None else self._pace.at(self._k)
        self._k += 1
        layers = zip(self._parameters, inputs, errors, self._pulls, self._averages, strict=True)
        for layer, given, error, pulls, m in layers:
            if pace is not None:
                error.mul_(pace.unsqueeze(2))
            for part, pull in pulls:
                pull.apply(part, pace)
            if m is None:
                layer.weights.baddbmm_(error, given, alpha=-self._lr * share)
                if layer.biases is not None:
                    layer.biases.sub_(error.sum(dim=2), alpha=self._lr * share)
                continue
            fresh = (1 - self._alpha) * share
            layer.weights.sub_(m.weights.baddbmm_(error, given, beta=self._alpha, alpha=fresh), alpha=self._lr)
            if layer.biases is not None and m.biases is not None:
                m.biases.mul_(self._alpha).add_(error.sum(dim=2), alpha=fresh)
                layer.biases.sub_(m.biases, alpha=self._lr)
        return log_p


def _through(layer: Layer, out: Tensor, error: Tensor) -> Tensor:
    """The derivative by what a layer gives before its activation, from that by what it gives after [K, B, out]."""
    if layer.activation is nn.ReLU:
        return torch.ops.aten.threshold_backward(error, out, 0)  # type: ignore[no-any-return]
    if layer.activation is nn.Tanh:
        error.mul_(1 - out.square())
    return error


def _passes_vectors(layer: nn.Module) -> bool:
    """Whether a layer does nothing to samples that are vectors already."""
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    return type(layer) is nn.Identity


def recognise(module: nn.Module, layout: Layout, loss: Loss) -> DenseNet | None:
    """The module as a dense network, or None if it is anything else."""
    if loss is not cross_entropy:
        return None
    named = {id(m): name for name, m in module.named_modules()}
    everything = layers_of(module)
    if everything is None:
        return None
    leaves = [layer for layer in everything if not _passes_vectors(layer)]
    tensors = [id(tensor) for layer in leaves for tensor in layer.parameters()]
    if len(set(tensors)) < len(tensors):
        return None  # a tensor in two places has the sum of two gradients
    places = {entry.name: slice(entry.start, entry.stop) for entry in layout}
    layers: list[Layer] = []
    for this, following in pairwise([*leaves, None]):
        if type(this) in _ACTIVATIONS:
            continue
        if type(this) is not nn.Linear or not all(p.requires_grad for p in this.parameters()):
            return None
        prefix = f"{named[id(this)]}." if named[id(this)] else ""
        activation = type(following) if following is not None and type(following) in _ACTIVATIONS else None
        bias = places[f"{prefix}bias"] if this.bias is not None else None
        layers.append(Layer(places[f"{prefix}weight"], bias, this.out_features, this.in_features, activation))
    activations = sum(type(leaf) in _ACTIVATIONS for leaf in leaves)
    chained = all(left.outputs == right.inputs for left, right in pairwise(layers))
    if not layers or not chained or activations != sum(layer.activation is not None for layer in layers):
        return None  # two activations in a row, or one before the first layer
    return DenseNet(layers) if layers[-1].activation is None else None
