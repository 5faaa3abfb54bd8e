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
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                # Autograd's own results cannot be copied; this one is computed anew before every use.
                weight = vars(part)[hook.name]
                computed[id(weight)] = weight.detach().clone()
    try:
        return copy.deepcopy(module, dict(computed))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"the model {type(module).__name__} cannot be copied ({reason}); it must be a module that "
            "copy.deepcopy copies, without open files, locks or results of earlier computations in it."
        ) from None
