"""Where each tensor of a model lies inside one flat vector.

Algorithms see a model as a vector of d numbers. Whatever needs structure (the last two layers, the normalisation
layers, one block per tensor) asks the layout by name or kind and gets a mask or slices, never list positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedkeel.errors import invalid

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
_CONVS = nn.modules.conv._ConvNd


@dataclass(frozen=True)
class Entry:
    """One tensor: its place in the flat vector, its shape, the layer it belongs to and that layer's kind."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int
    """Counts the modules that own tensors, in the order of the model, from 0."""
    kind: str
    """``conv``, ``linear``, ``norm`` or ``other``."""
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def stop(self) -> int:
        return self.start + self.size


class Layout:
    """The order, names and shapes of the tensors in a flat vector of length ``d``."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.sizes = [entry.size for entry in entries]
        self.dtypes = {entry.name: entry.dtype for entry in entries}
        self.d = sum(self.sizes)

    @classmethod
    def of_parameters(cls, module: nn.Module) -> Layout:
        """The trainable parameters, in the module's own order."""
        return cls(_entries(module, [(n, p) for n, p in module.named_parameters() if p.requires_grad]))

    @classmethod
    def of_buffers(cls, module: nn.Module) -> Layout:
        """The non-trainable state that a forward pass may change (BatchNorm statistics and counters)."""
        return cls(_entries(module, list(module.named_buffers())))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def flatten(self, tensors: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The named tensors as one new vector [d]."""
        if not self.entries:
            return torch.empty(0, dtype=dtype)
        return torch.cat([tensors[entry.name].detach().reshape(-1).to(dtype) for entry in self.entries])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector [d] by name. One ``split`` keeps the backward pass a single concatenation."""
        if not self.entries:
            return {}
        parts = torch.split(vector, self.sizes)
        return {entry.name: part.view(entry.shape) for entry, part in zip(self.entries, parts, strict=True)}

    @cached_property
    def _weighted_layers(self) -> list[int]:
        return sorted({entry.layer for entry in self.entries if entry.kind in ("conv", "linear")})

    def mask(self, query: str) -> Tensor:
        """Which of the d coordinates a query names, as a boolean vector.

        ``all`` | ``none`` | ``conv`` | ``linear`` | ``norm`` | ``lastN`` (the last N convolution or dense layers with
        their biases and whatever follows the first of them) | ``layer:NAME`` (every tensor whose name starts so).
        """
        chosen = torch.zeros(self.d, dtype=torch.bool)
        for entry in self._select(query):
            chosen[entry.start : entry.stop] = True
        return chosen

    def slices(self, query: str) -> list[slice]:
        """The same coordinates as stretches of neighbours, which are views where a mask would copy."""
        stretches: list[slice] = []
        for entry in self._select(query):
            if stretches and stretches[-1].stop == entry.start:
                stretches[-1] = slice(stretches[-1].start, entry.stop)
            else:
                stretches.append(slice(entry.start, entry.stop))
        return stretches

    def _select(self, query: str) -> list[Entry]:
        if query == "all":
            return list(self.entries)
        if query == "none":
            return []
        if query in ("conv", "linear", "norm"):
            return [entry for entry in self.entries if entry.kind == query]
        if query.startswith("last") and query[4:].isdigit() and int(query[4:]) > 0:
            layers = self._weighted_layers
            if not layers:
                return []
            first = layers[-min(int(query[4:]), len(layers))]
            return [entry for entry in self.entries if entry.layer >= first]
        if query.startswith("layer:"):
            prefix = query.removeprefix("layer:")
            found = [e for e in self.entries if e.name == prefix or e.name.startswith(prefix + ".")]
            if found:
                return found
            layers_known = sorted({entry.name.rpartition(".")[0] or entry.name for entry in self.entries})
            raise invalid("mask", "the name of a layer of this model", prefix, f"It has {', '.join(layers_known)}.")
        raise invalid("mask", "all, none, conv, linear, norm, last1, last2, … or layer:NAME", query)


def _entries(module: nn.Module, tensors: list[tuple[str, Tensor]]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    layers: dict[str, int] = {}
    start = 0
    for name, tensor in tensors:
        owner = name.rpartition(".")[0]
        if ".parametrizations." in f".{owner}":  # it belongs to the layer whose tensor it makes
            owner = owner.partition("parametrizations.")[0].rstrip(".")
        layer = layers.setdefault(owner, len(layers))
        entry = Entry(name, start, tuple(tensor.shape), layer, _kind(module.get_submodule(owner)), tensor.dtype)
        entries.append(entry)
        start = entry.stop
    return tuple(entries)


def _kind(owner: nn.Module) -> str:
    if isinstance(owner, _CONVS):
        return "conv"
    if isinstance(owner, nn.Linear | nn.Bilinear):
        return "linear"
    return "norm" if isinstance(owner, _NORMS) else "other"
