"""A module whose parameters lie inside a flat vector, for the gradient of any model by autograd.

``torch.func.functional_call`` swaps tensors in and out at every call and autograd then glues the pieces of a flat
gradient together; both cost as much as a small model's arithmetic. Here the parameters are views of the vector,
set once per client. Convolutions are the exception: they keep memory of their own in ``channels_last`` order, which
oneDNN runs up to twice as fast, and are copied in and out (their weights are few beside their arithmetic).

The copy of the module also computes the same function in a cheaper way where that is possible: ``pooled_before_relu``
and ``widened``. Chains of simple layers go without autograd (``chain``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedkeel.learning.copies import copied
from fedkeel.learning.kernels.chain import Chain, Passed, recognise
from fedkeel.learning.layout import Layout
from fedkeel.learning.recognise import chains_of, is_exactly, layers_of

Value = Callable[[Tensor], Tensor]
"""From the outputs [B, ...] of a model to the number that is differentiated."""


class BoundModule:
    """A copy of a module that computes at flat parameters [d] and buffers [m].

    ``plainly``, the copy is as the module was given and goes through autograd, without any of the cheaper ways.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, buffer_layout: Layout, dtype: torch.dtype, plainly: bool = False
    ) -> None:
        self._module = copied(module) if plainly else widened(pooled_before_relu(copied(module)))
        self._layout, self._buffer_layout, self._dtype = layout, buffer_layout, dtype
        named = dict(self._module.named_parameters())
        self._parameters = [named[entry.name] for entry in layout]
        apart = set() if plainly else _in_channels_last(self._module)
        self.links = None if plainly else recognise(self._module, self._parameters)
        """The layers as a chain, if they are one."""
        # Dense networks are computed in ``dense``.
        self._chain = self.links if self.links is not None and self.links.convolves else None
        self._buffers = [_Buffer(self._module, entry.name) for entry in buffer_layout]
        # Where in a module's own memory a tensor of the layout lies: all of it, unless the layer was widened.
        self._places = [tuple(slice(size) for size in entry.shape) for entry in layout]
        self._copied = [
            number
            for number, entry in enumerate(layout)
            if id(self._parameters[number]) in apart or entry.shape != self._parameters[number].shape
        ]
        self._inside = [self._parameters[number].detach()[self._places[number]] for number in self._copied]
        self._bound = self._out = torch.empty(0)
        self._views: list[Tensor] = []
        self._out_views: list[Tensor] = []

    @property
    def module(self) -> nn.Module:
        """The copy that computes."""
        return self._module

    def outputs(self, vector: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        """The outputs [B, ...] in evaluation mode."""
        self._set(vector, buffers, train=False)
        outputs: Tensor = self._module(x)
        return outputs

    def gradient(
        self, vector: Tensor, buffers: Tensor, x: Tensor, value: Value, train: bool, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The derivative of ``value(outputs)`` by the parameters, written to ``out`` [d]; the value and new buffers."""
        self._set(vector, buffers, train)
        self._write_to(out)
        result, gradients = self._by_autograd(x, value) if self._chain is None else self._along(self._chain, x, value)
        self._place(gradients)
        after = buffers
        if self._buffers and train:
            after = torch.cat([buffer.now().reshape(-1).to(self._dtype) for buffer in self._buffers])
        return result.detach(), after

    def chain_at(self, vector: Tensor, buffers: Tensor) -> Chain:
        """The layers as a chain that computes at these parameters and buffers, until others are set."""
        assert self.links is not None
        self._set(vector, buffers, train=False)
        return self.links

    def back(
        self, chain: Chain, way: Sequence[Passed], error: Tensor, out: Tensor, joining: dict[int, Tensor] | None = None
    ) -> None:
        """Write the derivative by the parameters to ``out`` [d], from that by the outputs, as ``Chain.backward``."""
        self._write_to(out)
        self._place(chain.backward(way, error, self._out_views, joining))

    @property
    def moves_in_place(self) -> bool:
        """Whether the layers are dense, and their parameters the bound vector itself: then they can take a step."""
        return self.links is not None and not self.links.convolves and not self._copied

    def _write_to(self, out: Tensor) -> None:
        if out.data_ptr() != self._out.data_ptr():
            self._out, self._out_views = out, list(self._layout.unflatten(out).values())

    def _place(self, gradients: dict[int, Tensor]) -> None:
        """Write the gradients of some parameters, by their numbers."""
        if gradients:
            torch._foreach_copy_(
                [self._out_views[number] for number in gradients],
                [gradient[self._places[number]] for number, gradient in gradients.items()],
            )

    def _by_autograd(self, x: Tensor, value: Value) -> tuple[Tensor, dict[int, Tensor]]:
        """The value, and the gradients by their numbers."""
        with torch.enable_grad():
            result = value(self._module(x))
            gradients = torch.autograd.grad(result, self._parameters, materialize_grads=True)
        return result, dict(enumerate(gradients))

    def _along(self, chain: Chain, x: Tensor, value: Value) -> tuple[Tensor, dict[int, Tensor]]:
        """The same, but for gradients that were written to their places already."""
        with torch.no_grad():
            outputs, way = chain.forward(x)
        with torch.enable_grad():
            result = value(outputs.requires_grad_())
            (error,) = torch.autograd.grad(result, outputs)
        with torch.no_grad():
            return result, chain.backward(way, error, self._out_views)

    def _set(self, vector: Tensor, buffers: Tensor, train: bool) -> None:
        """Compute at these parameters. A vector that is bound already only renews what is copied."""
        # The views keep a bound vector's memory alive, so that no other vector can have the same address.
        if vector.data_ptr() != self._bound.data_ptr():
            self._bound, self._views = vector, list(self._layout.unflatten(vector.detach()).values())
            for number, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
                if number not in self._copied:
                    parameter.data = view
        with torch.no_grad():
            if self._copied:
                torch._foreach_copy_(self._inside, [self._views[number] for number in self._copied])
            parts = self._buffer_layout.unflatten(buffers)
            for buffer, entry in zip(self._buffers, self._buffer_layout, strict=True):
                buffer.start_from(parts[entry.name])
        if self._module.training != train:
            self._module.train(train)


class _Buffer:
    """A buffer of a module, which a forward pass may change in place or replace by another tensor."""

    def __init__(self, module: nn.Module, name: str) -> None:
        owner, _, self._name = name.rpartition(".")
        self._held = module.get_submodule(owner)._buffers
        found = self._held[self._name]
        assert found is not None
        self._tensor: Tensor = found

    def start_from(self, value: Tensor) -> None:
        """Give it a value, in the memory that it has always had."""
        self._tensor.copy_(value)
        if self._held[self._name] is not self._tensor:
            self._held[self._name] = self._tensor

    def now(self) -> Tensor:
        """What it holds."""
        held = self._held[self._name]
        assert held is not None
        return held.detach()


def _in_channels_last(module: nn.Module) -> set[int]:
    """Lay out the weights of all plain convolutions as oneDNN likes them; give their ids.

    Other parameters with four axes may be used in ways that need their order in memory, and stay as they are.
    """
    users: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(part)
    chosen = set()
    for parameter in module.parameters():
        if all(is_exactly(user, nn.Conv2d) for user in users[id(parameter)]) and parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
            chosen.add(id(parameter))
    return chosen


def pooled_before_relu(module: nn.Module) -> nn.Module:
    """The same function with every ReLU that feeds a max-pooling behind it, where it has a quarter of the work.

    max(relu(a), relu(b)) = relu(max(a, b)), and the gradient takes the same way: to the largest entry if that is
    positive, nowhere otherwise. Only direct neighbours in an ``nn.Sequential`` that runs as a whole are exchanged; the
    module is changed.
    """
    for chain in chains_of(module):
        for number in range(len(chain) - 1):
            relu, pool = chain[number], chain[number + 1]
            if not is_exactly(relu, nn.ReLU) or not is_exactly(pool, nn.MaxPool2d) or pool.return_indices:
                continue
            # In place, it also changes what it was given, which must then be nobody else's.
            if not relu.inplace or (number > 0 and is_exactly(chain[number - 1], *_GIVES_NEW_MEMORY)):
                chain[number], chain[number + 1] = pool, relu
    return module


_GIVES_NEW_MEMORY = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
LANES = 8
"""Channels that one vector instruction handles; with fewer left over, convolutions and pooling run at half speed."""
_PASSES_ZEROS = (nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Identity)


def widened(module: nn.Module) -> nn.Module:
    """The same function with channels between two convolutions filled up to a multiple of ``LANES`` (LeNet has six).

    The new channels have zero weights on both sides and nothing in between that would change zeros, so that they add
    nothing to any output or gradient. Only neighbours in a chain of ``nn.Sequential`` and ``Staged`` are widened; the
    module is changed.
    """
    layers = layers_of(module) or []
    uses = Counter(id(tensor) for layer in layers for tensor in layer.parameters())
    before: nn.Conv2d | None = None
    for layer in layers:
        if type(layer) is nn.Conv2d and any(uses[id(tensor)] > 1 for tensor in layer.parameters()):
            before = None  # the layer or a tensor of it would have to fit in two places
        elif type(layer) is nn.Conv2d and layer.groups == 1:
            if before is not None and before.out_channels % LANES and before.out_channels == layer.in_channels:
                _widen(before, layer, -(-layer.in_channels // LANES) * LANES)
            before = layer
        elif type(layer) not in _PASSES_ZEROS:
            before = None
    return module


def _widen(before: nn.Conv2d, after: nn.Conv2d, channels: int) -> None:
    extra = channels - after.in_channels
    before.weight = nn.Parameter(nn.functional.pad(before.weight.detach(), (0, 0, 0, 0, 0, 0, 0, extra)))
    if before.bias is not None:
        before.bias = nn.Parameter(nn.functional.pad(before.bias.detach(), (0, extra)))
    after.weight = nn.Parameter(nn.functional.pad(after.weight.detach(), (0, 0, 0, 0, 0, extra)))
    before.out_channels = after.in_channels = channels
