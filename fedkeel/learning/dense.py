"""Loss and gradient of dense networks without automatic differentiation, for K clients at once.

A chain of dense layers and ReLU or tanh, ended by a dense layer under cross-entropy, is what many federated experiments
train, and there Python and autograd cost as much as the arithmetic. Here a step is one matrix product per layer and
direction, written straight into its place in the flat gradient [K, d]. ``recognise`` says whether a task is of that
form; tests hold the result against autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedkeel.learning.layout import Layout
from fedkeel.learning.losses import Loss, cross_entropy

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
_IGNORED = (nn.Flatten, nn.Identity)


@dataclass(frozen=True)
class Layer:
    """One dense layer: where its weight [out, in] and bias [out] lie in the flat vector, and what follows it."""

    weight: slice
    bias: slice | None
    outputs: int
    inputs: int
    activation: type[nn.Module] | None

    def weight_of(self, vectors: Tensor) -> Tensor:
        """The weights [K, out, in] inside flat vectors [K, d]."""
        return vectors[:, self.weight].view(-1, self.outputs, self.inputs)


class DenseNet:
    """The layers of a dense network, first to last."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def gradient(
        self, y: Tensor, x: Tensor, targets: Tensor, weight: Tensor | None, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradient [K, d] and mean cross-entropy [K] at parameters y [K, d], on inputs [K, B, ...], targets [K, B].

        ``weight`` [K, B] are the samples' shares where batches are padded; None: all equal. ``out`` [K, d] takes the
        gradient, so that a loop need not touch new memory at every step.
        """
        inputs = [x.reshape(*targets.shape, -1)]
        for layer in self.layers:
            inputs.append(self._forward(layer, y, inputs[-1]))
        logits = inputs.pop()
        log_p = torch.log_softmax(logits, dim=-1)
        losses = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        error = log_p.exp_()
        error.scatter_add_(-1, targets.unsqueeze(-1), error.new_full((1, 1, 1), -1.0).expand(*targets.shape, 1))
        if weight is None:
            error.div_(targets.shape[1])
            loss = losses.mean(dim=1)
        else:
            error.mul_(weight.unsqueeze(-1))
            loss = (losses * weight).sum(dim=1)
        gradient = torch.empty_like(y) if out is None else out
        for number in reversed(range(len(self.layers))):
            layer, given = self.layers[number], inputs[number]
            torch.bmm(error.transpose(1, 2), given, out=layer.weight_of(gradient))
            if layer.bias is not None:
                torch.sum(error, dim=1, out=gradient[:, layer.bias])
            if number:
                activation = self.layers[number - 1].activation
                error = torch.bmm(error, layer.weight_of(y))
                if activation is nn.ReLU:
                    error = torch.ops.aten.threshold_backward(error, given, 0)
                elif activation is nn.Tanh:
                    error.mul_(1 - given.square())
        return gradient, loss

    @staticmethod
    def _forward(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
        transposed = layer.weight_of(y).transpose(1, 2)
        if layer.bias is None:
            out = torch.bmm(x, transposed)
        else:
            out = torch.baddbmm(y[:, layer.bias].unsqueeze(1), x, transposed)
        if layer.activation is nn.ReLU:
            out.relu_()
        elif layer.activation is nn.Tanh:
            out.tanh_()
        return out


def recognise(module: nn.Module, layout: Layout, loss: Loss) -> DenseNet | None:
    """The module as a dense network, or None if it is anything else."""
    if loss is not cross_entropy:
        return None
    named = {id(m): name for name, m in module.named_modules()}
    leaves = [m for m in module.modules() if not list(m.children()) and not isinstance(m, _IGNORED)]
    containers = {type(m) for m in module.modules() if list(m.children())}
    if any(container.__name__ not in ("Sequential", "Staged") for container in containers):
        return None  # a forward pass of its own may do anything
    places = {entry.name: slice(entry.start, entry.stop) for entry in layout}
    layers: list[Layer] = []
    for this, following in pairwise([*leaves, None]):
        if isinstance(this, _ACTIVATIONS):
            continue
        if not isinstance(this, nn.Linear) or not all(p.requires_grad for p in this.parameters()):
            return None
        prefix = f"{named[id(this)]}." if named[id(this)] else ""
        activation = type(following) if isinstance(following, _ACTIVATIONS) else None
        bias = places[f"{prefix}bias"] if this.bias is not None else None
        layers.append(Layer(places[f"{prefix}weight"], bias, this.out_features, this.in_features, activation))
    activations = sum(isinstance(leaf, _ACTIVATIONS) for leaf in leaves)
    chained = all(left.outputs == right.inputs for left, right in pairwise(layers))
    if not layers or not chained or activations != sum(layer.activation is not None for layer in layers):
        return None  # two activations in a row, or one before the first layer
    return DenseNet(layers) if layers[-1].activation is None else None
