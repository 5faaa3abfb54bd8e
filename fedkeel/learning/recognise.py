"""Whether a module is exactly the layer that its type says, so that its derivative may be computed another way.

A fast path knows what ``nn.Linear`` computes, not what a subclass, a hook, a parametrisation, an attribute set on one
object or a patched method makes of it. Whatever is not exactly known is left to autograd.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from fedkeel.learning.staged import Staged

CONTAINERS = (nn.Sequential, Staged)
_BARE = (nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Identity, nn.Flatten)
"""Layers that fast paths know and that own no tensors."""
_TENSORS = (nn.Parameter, torch.Tensor, getattr(nn, "Buffer", torch.Tensor))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BEHAVIOUR = (FunctionType, property, classmethod, staticmethod)


def _methods(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, _BEHAVIOUR)}


def _functions() -> tuple[Any, ...]:
    """What the known layers call."""
    return F.linear, F.conv2d, F.relu, F.max_pool2d, F.avg_pool2d, F.cross_entropy, torch.tanh


_KINDS = {kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)} | {Staged}
_ORIGINAL_METHODS = {kind: _methods(kind) for kind in {base for kind in _KINDS for base in kind.__mro__[:-1]}}
_ORIGINAL_FUNCTIONS = _functions()
_OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What every module object has; what else stands in one and is a name of its class overrides the class."""


def is_exactly(module: nn.Module | None, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of one of these kinds of torch's, with nothing added that could change what it computes."""
    return type(module) in kinds and module is not None and is_unchanged(module)


def is_unchanged(module: nn.Module) -> bool:
    """Whether a module is one of torch's own (or ``Staged``) and computes what its class does, and that as shipped."""
    kind = type(module)
    return (
        kind in _KINDS
        and not any(getattr(torch_module, f"_global{name}", None) for name in _HOOKS)
        and not any(getattr(module, name, None) for name in _HOOKS)
        and all(_methods(base) == _ORIGINAL_METHODS[base] for base in kind.__mro__[:-1])
        and not any(hasattr(kind, name) for name in vars(module).keys() - _OWN_ATTRIBUTES)
        and _functions() == _ORIGINAL_FUNCTIONS
        and _has_its_own_tensors(module)
    )


def _has_its_own_tensors(module: nn.Module) -> bool:
    """Parameters, buffers and children as the class makes them, in the shapes that its settings say."""
    tensors = [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]
    if any(type(tensor) not in _TENSORS for tensor in tensors):
        return False  # a subclass may redefine every operation
    if type(module) in CONTAINERS:
        return not tensors
    shapes: dict[str, tuple[int, ...]] = {}
    if type(module) is nn.Linear:
        shapes = {"weight": (module.out_features, module.in_features), "bias": (module.out_features,)}
    elif type(module) is nn.Conv2d:
        inputs = module.in_channels // module.groups
        shapes = {"weight": (module.out_channels, inputs, *module.kernel_size), "bias": (module.out_channels,)}
    elif type(module) not in _BARE:
        return True  # no fast path computes it itself
    return (
        module._parameters.keys() == shapes.keys()
        and not module._buffers
        and not module._modules
        and all(p.shape == shapes[name] for name, p in module._parameters.items() if p is not None)
        and (not shapes or module._parameters["weight"] is not None)
    )


def layers_of(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module in the order in which they compute, or None if its forward pass may do anything else.

    All of them are torch's own and unchanged. A layer that stands in several places is named in each.
    """
    if not is_unchanged(module):
        return None
    if type(module) not in CONTAINERS:
        return None if module._modules else [module]
    layers: list[nn.Module] = []
    for part in module._modules.values():
        inside = None if part is None else layers_of(part)
        if inside is None:
            return None
        layers += inside
    return layers


def chains_of(module: nn.Module) -> list[nn.Sequential]:
    """Every ``nn.Sequential`` that runs as a whole: no forward pass but that of containers leads to it."""
    if not is_exactly(module, *CONTAINERS):
        return []
    own = [module] if isinstance(module, nn.Sequential) else []
    return own + [chain for part in module._modules.values() if part is not None for chain in chains_of(part)]
