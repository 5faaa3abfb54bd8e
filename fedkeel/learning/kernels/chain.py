"""The gradient of chains of convolutions, pooling, activations and dense layers, without automatic differentiation.

For small networks the bookkeeping of autograd takes a noticeable share of a step, and it leaves no choice of how a
derivative is computed. ``recognise`` says whether a module is such a chain; tests hold the result against autograd.
All of these layers compute every sample for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.learning.recognise import layers_of
from fedkeel.learning.staged import Staged

_LAYERS = (nn.Conv2d, nn.Linear)
_FRESH = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.AvgPool2d)
"""What gives new memory, which an activation may overwrite."""
_ACTIVATIONS = (nn.ReLU, nn.Tanh)


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
    """Layers of a network, first to last; ``cuts`` are the numbers of layers before each border between two stages.

    There are none where the network is not staged, or where an activation would overwrite what a stage gives.
    """

    def __init__(self, links: Sequence[Link], cuts: Sequence[int] = ()) -> None:
        self._links = links
        self.cuts = cuts
        self.convolves = any(isinstance(link.layer, nn.Conv2d) for link in links)
        self._first = next(number for number, link in enumerate(links) if isinstance(link.layer, _LAYERS))

    def gives_vectors(self, cut: int) -> bool:
        """Whether what a stage gives is one vector a sample."""
        return isinstance(self._links[cut].layer, nn.Linear)

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> tuple[Tensor, list[Passed]]:
        """The outputs [B, ...] of the layers from number ``start`` to ``stop``, and what the way back needs."""
        way: list[Passed] = []
        for layer, _, _, settings in self._links[start:stop]:
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

    def backward(
        self,
        way: Sequence[Passed],
        error: Tensor,
        gradients: Sequence[Tensor],
        joining: Mapping[int, Tensor] | None = None,
    ) -> dict[int, Tensor]:
        """The gradients of all parameters, from the derivative by the outputs [B, ...].

        Those of dense layers are written to ``gradients``, those of convolutions given by their parameters' numbers.
        ``joining`` are derivatives by what goes into layers, by their numbers, that come from elsewhere.
        """
        found: dict[int, Tensor] = {}
        for number in range(len(self._links) - 1, self._first - 1, -1):
            (layer, weight, bias, settings), (given, _, _) = self._links[number], way[number]
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
            else:
                error = _through(layer, settings, way[number], error)
            if joining and number in joining:
                error = error + joining[number]
        return found

    def descend(self, way: Sequence[Passed], error: Tensor, lr: float, joining: Mapping[int, Tensor]) -> None:
        """Take a step along the gradient that ``backward`` would give, in place; of dense layers only."""
        for number in range(len(self._links) - 1, self._first - 1, -1):
            (layer, _, bias, settings), (given, _, _) = self._links[number], way[number]
            if isinstance(layer, nn.Linear):
                below = error if number == self._first else error @ layer.weight
                layer.weight.data.addmm_(error.t(), given, alpha=-lr)
                if bias >= 0:
                    layer.bias.data.sub_(error.sum(dim=0), alpha=lr)
                error = below
            else:
                error = _through(layer, settings, way[number], error)
            if number in joining:
                error = error + joining[number]

    def by_inputs(self, way: Sequence[Passed], error: Tensor, start: int = 0) -> Tensor:
        """The derivative by what went into layer number ``start``, from that by the outputs [B, ...]."""
        for number in range(len(self._links) - 1, start - 1, -1):
            (layer, _, _, settings), passed = self._links[number], way[number - start]
            if isinstance(layer, nn.Linear):
                error = error @ layer.weight
            elif isinstance(layer, nn.Conv2d):
                (error, _, _) = torch.ops.aten.convolution_backward(
                    error, passed.given, layer.weight, [layer.out_channels], *settings, [True, False, False]
                )
            else:
                error = _through(layer, settings, passed, error)
        return error


def _through(layer: nn.Module, settings: tuple[Any, ...], passed: Passed, error: Tensor) -> Tensor:
    """The derivative by what went into a layer without parameters, from that by what came out of it."""
    given, out, places = passed
    back = torch.ops.aten
    if isinstance(layer, nn.MaxPool2d):
        error = back.max_pool2d_with_indices_backward(error, given, *settings, places)
    elif isinstance(layer, nn.AvgPool2d):
        error = back.avg_pool2d_backward(error, given, *settings)
    elif isinstance(layer, nn.ReLU):
        error = back.threshold_backward(error, out, 0)
    elif isinstance(layer, nn.Tanh):
        error = back.tanh_backward(error, out)
    else:
        error = error.reshape(given.shape)
    return error


def _settings(layer: nn.Module) -> tuple[Any, ...]:
    if isinstance(layer, nn.MaxPool2d):
        sides = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return (*([side, side] if isinstance(side, int) else list(side) for side in sides), layer.ceil_mode)
    if isinstance(layer, nn.AvgPool2d):
        windows = (layer.kernel_size, layer.stride, layer.padding)
        pairs = ([side, side] if isinstance(side, int) else list(side) for side in windows)
        return (*pairs, layer.ceil_mode, layer.count_include_pad, layer.divisor_override)
    if isinstance(layer, nn.Conv2d):
        return layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
    return ()


def recognise(module: nn.Module, parameters: Sequence[nn.Parameter]) -> Chain | None:
    """The module as a chain whose parameters are these, or None if it is anything else."""
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
        flat = flat or isinstance(layer, nn.Flatten | nn.Linear)
        before = layer
        weight, bias = (numbers.get(id(getattr(layer, name, None)), -1) for name in ("weight", "bias"))
        links.append(Link(layer, weight, bias, _settings(layer)))
    used = [number for link in links for number in (link.weight, link.bias) if number >= 0]
    complete = sorted(used) == list(range(len(parameters)))  # none missing, and none used twice
    return Chain(links, _cuts(module, links)) if complete and used else None


def _cuts(module: nn.Module, links: Sequence[Link]) -> list[int]:
    """Where the stages of a staged module end, all but the last."""
    if type(module) is not Staged:
        return []
    inside = [layers_of(stage) or [] for stage in module._modules.values() if stage is not None]
    sizes = [sum(not isinstance(layer, nn.Identity) for layer in layers) for layers in inside]
    cuts = list(accumulate(sizes))[:-1]
    first = next(number for number, link in enumerate(links) if isinstance(link.layer, _LAYERS))
    sound = all(first < cut < len(links) and not isinstance(links[cut].layer, _ACTIVATIONS) for cut in cuts)
    return cuts if sound else []


def _is_known(layer: nn.Module, before: nn.Module | None, flat: bool) -> bool:
    if type(layer) is nn.Conv2d:
        return not flat and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Linear:
        return flat or before is None  # of networks for samples that are vectors
    if type(layer) is nn.MaxPool2d:
        return not flat and not layer.return_indices
    if type(layer) is nn.AvgPool2d:
        return not flat
    if type(layer) is nn.Flatten:
        return not flat and layer.start_dim == 1 and layer.end_dim == -1
    return type(layer) in _ACTIVATIONS and isinstance(before, _FRESH)
