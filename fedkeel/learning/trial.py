"""The first use of a model: what is computed for it here, against plain torch on a few samples.

Recognising layers (``recognise``) is what makes the fast paths right; this is what notices if it was not enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.errors import ModelError
from fedkeel.learning.drawing import Keyed, held_by, keyed
from fedkeel.learning.layout import Layout

ROUND_OFF = {torch.float32: 1e-3, torch.float64: 1e-8}
"""How far results may lie apart, as a share of their size: layers multiply the last digit's error."""
ON_ACCELERATORS = 2e-2
"""Some of which shorten the factors of a product."""

SHAKEN = 10
"""How many times as far as round-off moves plain torch itself a result may lie off."""
MOST = 0.1
"""But never further than this share of its size."""


class Answer(NamedTuple):
    """What a model gives for one minibatch."""

    loss: Tensor
    gradient: Tensor
    """[d]."""
    buffers: Tensor
    """After it [m]."""
    outputs: Tensor
    """In evaluation mode [B, ...]."""


class Reference(NamedTuple):
    """What plain torch gives, and what it did on the way."""

    answer: Answer
    draws: bool
    """Whether random numbers were drawn in training mode."""
    always_draws: bool
    """Whether also in evaluation mode."""
    writes_inputs: bool
    train: bool
    """Whether loss, gradient and buffers are those of training mode."""


def nudged(w: Tensor, layout: Layout, seed: int) -> Tensor:
    """Parameters near w [d], none of them zero: where a layer starts at zero, much that is wrong would not show."""
    noise = torch.randn(len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(seed))
    for part, start in zip(torch.split(noise, layout.sizes), torch.split(w, layout.sizes), strict=True):
        size = float(start.square().mean().sqrt()) if start.numel() else 0.0
        part.mul_(0.1 * size or 0.05)
    return noise.add_(w)


def in_last_digits(w: Tensor) -> Tensor:
    """Parameters that differ from w [d] by round-off."""
    noise = torch.randn(len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(2))
    return w + w * noise.mul_(torch.finfo(w.dtype).eps)


def same_draws(quiet: bool, device: torch.device, own: Sequence[Any] = ()) -> AbstractContextManager[Keyed | None]:
    """Let what is drawn inside be always the same, unless the model is known to draw nothing; ``own`` as in keyed."""
    return nullcontext() if quiet else keyed(0, device, own)


def reference(
    module: nn.Module,
    given: nn.Module | None,
    layout: Layout,
    buffer_layout: Layout,
    x: Tensor,
    value_of: Callable[[Tensor], Tensor],
    train: bool,
    quiet: bool,
) -> Reference:
    """A module's own forward pass and autograd, with nothing in between; the module is used up.

    ``given`` is the module that this is a copy of: whether the copy computes with anything of it shows here.
    """
    device = x.device
    named = dict(module.named_parameters())
    parameters = [named[entry.name] for entry in layout]
    frozen = [parameter for parameter in named.values() if not parameter.requires_grad]
    foreign = [] if given is None else [parameter for parameter in given.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in (*parameters, *frozen)]
    own = held_by(module.modules())
    with same_draws(quiet, device, own) as key:
        module.eval()
        inputs = x.clone()
        version = inputs._version
        start = {name: buffer.clone() for name, buffer in module.named_buffers()}
        outputs = module(inputs).detach().clone()
        writes = inputs._version != version or not alike(inputs, x, 0.0)
        always_draws = key is not None and key.was_used()
    for name, buffer in module.named_buffers():
        buffer.detach().copy_(start[name])
    with same_draws(quiet, device, own) as key, torch.enable_grad():
        module.train(train)
        inputs = x.clone()
        version = inputs._version
        value = value_of(module(inputs))
        if not value.requires_grad:
            raise ModelError(
                "the model's outputs do not depend on its trainable parameters as far as autograd can tell; "
                "look for detach(), torch.no_grad() or .data in its forward pass."
            )
        gradients = torch.autograd.grad(value, [*parameters, *foreign], allow_unused=True)
        writes = writes or inputs._version != version or not alike(inputs.detach(), x, 0.0)
        draws = key is not None and key.was_used()
    if any(gradient is not None for gradient in gradients[len(parameters) :]):
        raise ModelError(
            "the model computes with parameters of the module it was copied from; a function set on it (a hook, or "
            "forward of one layer) holds on to a layer: let it use the module that it is called with."
        )
    names = [*(entry.name for entry in layout), *(name for name, p in named.items() if not p.requires_grad)]
    for name, parameter, then in zip(names, (*parameters, *frozen), before, strict=True):
        if not alike(parameter.detach(), then, 0.0):
            raise ModelError(
                f"the model changes its own parameter {name!r} while it computes, which its clients' training would "
                "lose; write it as a parametrisation (torch.nn.utils.parametrize)."
            )
    found = {
        entry.name: torch.zeros_like(named[entry.name]) if part is None else part
        for entry, part in zip(layout, gradients, strict=False)
    }
    gradient = layout.flatten(found, before[0].dtype)
    buffers = buffer_layout.flatten(dict(module.named_buffers()), before[0].dtype)
    return Reference(Answer(value.detach(), gradient, buffers, outputs), draws, always_draws, writes, train)


def difference(
    answer: Answer,
    expected: Answer,
    layout: Layout,
    buffer_layout: Layout,
    tolerance: float,
    shaken: Answer | None = None,
) -> str:
    """In what two answers differ by more than round-off; nothing if they do not.

    ``shaken`` is the expected answer at parameters that differ in their last digits; how far that one lies off is what
    round-off does to this model.
    """
    if answer.outputs.shape != expected.outputs.shape:
        return "outputs in evaluation"
    parts, wanted = _parts(answer, layout, buffer_layout), _parts(expected, layout, buffer_layout)
    if shaken is not None:
        turned = _parts(shaken, layout, buffer_layout)
        sizes = [(norm_of(turned[name] - part), norm_of(part)) for name, part in wanted.items()]
        tolerance = max(tolerance, min(SHAKEN * max(moved / size for moved, size in sizes if size), MOST))
    # Round-off of the whole gradient shows in the parts that ought to be zero, such as a bias before BatchNorm.
    whole = 0.1 * norm_of(expected.gradient)
    for name, part in parts.items():
        if not alike(part, wanted[name], tolerance, tolerance * (whole if name.startswith("gradient") else 1e-3)):
            return name
    return ""


def _parts(answer: Answer, layout: Layout, buffer_layout: Layout) -> dict[str, Tensor]:
    return {
        "outputs in evaluation": answer.outputs,
        "loss": answer.loss.reshape(1),
        **{f"gradient of {name}": part for name, part in layout.unflatten(answer.gradient).items()},
        **{f"buffer {name}": part for name, part in buffer_layout.unflatten(answer.buffers).items()},
    }


def norm_of(values: Tensor) -> float:
    """Of all values, or where some are not finite, of the others."""
    size = float(torch.linalg.vector_norm(values.detach()))
    return size if math.isfinite(size) else float(torch.linalg.vector_norm(values[values.isfinite()].detach()))


def alike(values: Tensor, expected: Tensor, tolerance: float, least: float = 0.0) -> bool:
    """Whether values equal what was expected up to a share of its size; NaN and ∞ must stand in the same places."""
    values, expected = values.detach().to(expected), expected.detach()
    if not expected.is_floating_point():  # tokens
        return torch.equal(values, expected)
    apart = float(torch.linalg.vector_norm(values - expected))
    if math.isfinite(apart):
        return apart <= tolerance * float(torch.linalg.vector_norm(expected)) + least
    finite = expected.isfinite()
    if not torch.equal(values.isfinite(), finite) or not torch.allclose(
        values[~finite], expected[~finite], equal_nan=True
    ):
        return False
    values, expected = values[finite].double(), expected[finite].double()
    return float(torch.linalg.vector_norm(values - expected)) <= tolerance * norm_of(expected) + least
