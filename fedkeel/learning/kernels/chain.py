"""The gradient of chains of convolutions, pooling, activations and dense layers, without automatic differentiation.

For small networks the bookkeeping of autograd takes a noticeable share of a step, and it leaves no choice of how a
derivative is computed. ``recognise`` says whether a module is such a chain; tests hold the result against autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.learning.recognise import layers_of

_LAYERS = (nn.Conv2d, nn.Linear)
_FRESH = (nn.Conv2d, nn.Linear, nn.MaxPool2d)
"""What gives new memory, which an activation may overwrite."""


class Passed(NamedTuple):
    """One step of a forward pass: what was given and what came out, as far as the way back needs them."""

    given: Tensor
    out: Tensor
    places: Tensor | None = None
    """Where the largest entries were, of pooling."""


class Link(NamedTuple):
    """One layer, and the numbers of its weight and bias among all parameters (−1: none)."""

    layer: nn.Module
    weight: int
    bias: int
    settings: tuple[Any, ...]
    """Of pooling and convolutions, as PyTorch's operators take them."""


class Chain:
    """Layers of a network, first to last."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._first = next(number for number, link in enumerate(links) if isinstance(link.layer, _LAYERS))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Passed]]:
        """The outputs [B, ...] for inputs x [B, ...], and what ``backward`` needs."""
        way: list[Passed] = []
        for layer, _, _, settings in self._links:
            places = None
            if isinstance(layer, nn.MaxPool2d):
                out, places = torch.ops.aten.max_pool2d_with_indices(x, *settings)
            elif isinstance(layer, nn.ReLU):
                out = x.relu_()
            elif isinstance(layer, nn.Tanh):
                out = x.tanh_()
            else:
                out = layer(x)
            way.append(Passed(x, out, places))
            x = out
        return x, way

    def backward(self, way: Sequence[Passed], error: Tensor, gradients: Sequence[Tensor]) -> dict[int, Tensor]:
        """The gradients of all parameters, from the derivative by the outputs [B, ...].

        Those of dense layers are written to ``gradients``, those of convolutions given by their parameters' numbers.
        """
        found: dict[int, Tensor] = {}
        for number in range(len(self._links) - 1, self._first - 1, -1):
            (layer, weight, bias, settings), (given, out, places) = self._links[number], way[number]
            ends = number == self._first
            if isinstance(layer, nn.Linear):
                torch.mm(error.t(), given, out=gradients[weight])
                if bias >= 0:
                    torch.sum(error, dim=0, out=gradients[bias])
                error = error if ends else error @ layer.weight
            elif isinstance(layer, nn.Conv2d):
                error, found[weight], of_bias = torch.ops.aten.convolution_backward(
                    error, given, layer.weight, [layer.out_channels], *settings, [not ends, True, bias >= 0]
                )
                if bias >= 0:
                    found[bias] = of_bias
            elif isinstance(layer, nn.MaxPool2d):
                error = torch.ops.aten.max_pool2d_with_indices_backward(error, given, *settings, places)
            elif isinstance(layer, nn.ReLU):
                error = torch.ops.aten.threshold_backward(error, out, 0)
            elif isinstance(layer, nn.Tanh):
                error = torch.ops.aten.tanh_backward(error, out)
            else:
                error = error.reshape(given.shape)
        return found


def _settings(layer: nn.Module) -> tuple[Any, ...]:
    if isinstance(layer, nn.MaxPool2d):
        sides = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return (*([side, side] if isinstance(side, int) else list(side) for side in sides), layer.ceil_mode)
    if isinstance(layer, nn.Conv2d):
        return layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
    return ()


def recognise(module: nn.Module, parameters: Sequence[nn.Parameter]) -> Chain | None:
    """The module as a chain with convolutions whose parameters are these, or None if it is anything else."""
    everything = layers_of(module)
    if everything is None:
        return None
    leaves = [layer for layer in everything if not isinstance(layer, nn.Identity)]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    links: list[Link] = []
    before: nn.Module | None = None
    flat = False
    for layer in leaves:
        if not _is_known(layer, before, flat) or any(id(own) not in numbers for own in layer.parameters()):
            return None
        flat = flat or isinstance(layer, nn.Flatten)
        before = layer
        weight, bias = (numbers.get(id(getattr(layer, name, None)), -1) for name in ("weight", "bias"))
        links.append(Link(layer, weight, bias, _settings(layer)))
    used = [number for link in links for number in (link.weight, link.bias) if number >= 0]
    complete = sorted(used) == list(range(len(parameters)))  # none missing, and none used twice
    convolves = any(isinstance(link.layer, nn.Conv2d) for link in links)  # others are computed in ``dense``
    return Chain(links) if complete and convolves else None


def _is_known(layer: nn.Module, before: nn.Module | None, flat: bool) -> bool:
    if type(layer) is nn.Conv2d:
        return not flat and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Linear:
        return flat
    if type(layer) is nn.MaxPool2d:
        return not flat and not layer.return_indices
    if type(layer) is nn.Flatten:
        return not flat and layer.start_dim == 1 and layer.end_dim == -1
    return type(layer) in (nn.ReLU, nn.Tanh) and isinstance(before, _FRESH)
