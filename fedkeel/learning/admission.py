"""Which modules can be trained as functions of one flat vector, said before any of them is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedkeel.errors import ModelError, invalid
from fedkeel.learning.copies import computed_names

_EXACT = {torch.float32: 2**24, torch.float64: 2**53}
"""Up to here, these types hold every integer."""
Named = Iterable[tuple[str, Tensor]]


def check_module(module: object, dtype: torch.dtype) -> None:
    """Refuse what a flat vector of ``dtype`` cannot stand for, or what would not survive a copy."""
    if not isinstance(module, nn.Module):
        hint = "Give the object, not its class: Net() instead of Net." if isinstance(module, type) else ""
        raise invalid("model", "a torch.nn.Module", module, hint)
    parameters, buffers = list(module.named_parameters()), list(module.named_buffers())
    for name, tensor in [*parameters, *buffers]:
        if is_lazy(tensor):
            raise ModelError(
                f"the model's {name!r} has no shape yet; run one forward pass through its lazy layers first."
            )
        if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
            what = "quantised" if tensor.is_quantized else "complex" if tensor.is_complex() else "sparse"
            raise ModelError(f"the model's {name!r} is {what}; only dense tensors of real numbers can be trained.")
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if not sum(parameter.numel() for _, parameter in trained):
        raise ModelError(f"the model {type(module).__name__} has no trainable parameter; check requires_grad.")
    _check_gradient_hooks(trained)
    frozen = [(name, parameter) for name, parameter in parameters if not parameter.requires_grad]
    _check_memory(trained, [*frozen, *buffers, *_loose(module, {id(t) for _, t in [*parameters, *buffers]})])
    for name, buffer in buffers:
        check_exact(name, buffer, dtype)


def check_exact(name: str, buffer: Tensor, dtype: torch.dtype) -> None:
    """Refuse an integer buffer with numbers that the flat vector of buffers would round."""
    if buffer.is_floating_point() or buffer.dtype == torch.bool or buffer.element_size() < dtype.itemsize:
        return
    if buffer.numel() and int(buffer.to(torch.int64).abs().max()) > _EXACT[dtype]:
        raise _inexact(name, dtype)


def check_counts(name: str, counts: Tensor) -> None:
    """Refuse to go on with a counter, kept as a float, that has grown to where adding one changes nothing."""
    if counts.numel() and float(counts.abs().max()) >= _EXACT[counts.dtype]:
        raise _inexact(name, counts.dtype)


def _inexact(name: str, dtype: torch.dtype) -> ModelError:
    instead = "train in float64 (training.dtype), or " if dtype == torch.float32 else ""
    return ModelError(
        f"the model's buffer {name!r} holds integers beyond {_EXACT[dtype]:,}, which {_text(dtype)} would round; "
        f"{instead}keep them in a plain attribute instead of a buffer."
    )


def _loose(module: nn.Module, known: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a module keeps as plain attributes, alone or in a list, and that are none of its own."""
    for prefix, part in module.named_modules():
        computed = computed_names(part)
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules") or name in computed:
                continue
            several = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            )
            for tensor in several:
                if isinstance(tensor, Tensor) and id(tensor) not in known and tensor.layout == torch.strided:
                    yield f"{prefix}.{name}".lstrip("."), tensor


def _check_gradient_hooks(trained: Named) -> None:
    for name, parameter in trained:
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"the model's parameter {name!r} has a gradient hook, which is lost when the model is copied for "
                "its clients; put what it does into the forward pass or a parametrisation."
            )


def _check_memory(trained: Named, others: Named) -> None:
    """Two tensors may be one object under two names; overlapping memory of two objects would come apart."""
    together: dict[int, list[tuple[int, int, str, bool]]] = {}
    for tensors, is_trained in ((trained, True), (others, False)):
        for name, tensor in tensors:
            memory = tensor.untyped_storage().data_ptr()
            together.setdefault(memory, []).append((*_extent(tensor), name, is_trained))
    for neighbours in together.values():
        for (start, stop, name, one), (other_start, other_stop, other, two) in combinations(neighbours, 2):
            if max(start, other_start) < min(stop, other_stop) and (one or two):
                raise ModelError(
                    f"the model's {name!r} and {other!r} overlap in memory without being one tensor; "
                    "tie them as one nn.Parameter under both names, or clone one of them."
                )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its memory, and the one after its last."""
    first = tensor.storage_offset()
    spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    last = first + sum(spans) + 1 if tensor.numel() else first
    return int(first * tensor.element_size()), int(last * tensor.element_size())


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
