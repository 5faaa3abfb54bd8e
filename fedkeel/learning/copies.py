"""Copies of modules, also of those that keep a weight computed from others (old-style weight and spectral norm)."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fedkeel.errors import ModelError


def copied(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with the module."""
    computed: dict[int, Tensor] = {}
    for part in module.modules():
        for name in computed_names(part):  # autograd's own results cannot be copied
            weight = vars(part)[name]
            computed[id(weight)] = weight.detach().clone()
    try:
        return copy.deepcopy(module, dict(computed))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"the model {type(module).__name__} cannot be copied ({reason}); it must be a module that "
            "copy.deepcopy copies, without open files, locks or results of earlier computations in it."
        ) from None


def computed_names(part: nn.Module) -> list[str]:
    """The attributes that old-style weight and spectral norm compute anew before every use."""
    hooks = part._forward_pre_hooks.values()
    return [hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)]
