"""Random modules of every kind that people write: plain chains, and what may be done to them.

A module is a *base* (a chain of odd sizes, or a class with a forward pass of its own) and up to three *twists* (a hook,
a subclass, a tied weight, …). Everything follows from one seed, so that the same module can be built again and again.
"""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, parametrize

from fedkeel.learning.staged import Staged

CLASSES = 3


@dataclass
class Case:
    """One module, and the samples it is for."""

    seed: int
    base: str
    twists: list[str]
    shape: tuple[int, ...]
    may_be_refused: bool
    is_random: bool
    """Whether its training mode draws."""
    module: nn.Module = field(repr=False)

    @property
    def title(self) -> str:
        return f"{self.seed}: {self.base} + {', '.join(self.twists) or 'nothing'}"

    def around(self) -> Any:
        """What has to hold around everything that is computed with it."""
        return _AROUND.get(self.twists[-1] if self.twists else "", nullcontext)()


# --- bases -----------------------------------------------------------------------------------------------------------


def dense(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    shape = rng.choice([(5,), (2, 3), (1, 2, 3)])
    width = int(torch.Size(shape).numel())
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 or rng.random() < 0.3 else []
    for _ in range(rng.randint(0, 3)):
        after = rng.choice([width, 4, 6, 7])
        layers.append(nn.Linear(width, after, bias=rng.random() < 0.8))
        layers += rng.choice([[nn.ReLU()], [nn.Tanh()], [nn.ReLU(inplace=True)], [nn.ReLU(), nn.Identity()], []])
        width = after
    layers.append(nn.Linear(width, CLASSES, bias=rng.random() < 0.8))
    return _wrapped(layers, rng), shape


def convolutional(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels, side = rng.choice([1, 2, 3]), rng.choice([6, 7, 8])
    shape = (channels, side, side)
    layers: list[nn.Module] = []
    for _ in range(rng.randint(1, 3)):
        after = rng.choice([2, 3, 6, 8])
        groups = channels if after % channels == 0 and rng.random() < 0.2 else 1
        mode = "circular" if rng.random() < 0.1 else "zeros"
        layers.append(
            nn.Conv2d(channels, after, 3, padding=1, groups=groups, bias=rng.random() < 0.8, padding_mode=mode)
        )
        layers += rng.choice([[nn.ReLU()], [nn.Tanh()], [nn.ReLU(inplace=True)], [nn.GELU()], []])
        channels = after
        if side >= 4 and rng.random() < 0.7:
            layers.append(rng.choice([nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)]))
            side = (side + 1) // 2 if layers[-1].padding == 1 else side // 2
    layers += [nn.Flatten(), nn.Linear(channels * side * side, CLASSES)]
    return _wrapped(layers, rng), shape


def _wrapped(layers: list[nn.Module], rng: random.Random) -> nn.Module:
    """The layers as a Sequential, nested ones, or stages."""
    way = rng.randint(0, 2)
    if way == 0 or len(layers) < 2:
        return nn.Sequential(*layers)
    cut = rng.randint(1, len(layers) - 1)
    body, head = nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:])
    return nn.Sequential(body, head) if way == 1 else Staged({"body": body, "head": head})


class _Normalised(nn.Module):
    def __init__(self, norm: nn.Module, wide: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = wide, norm, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        return self.last(h.mean(dim=(2, 3)) if h.dim() == 4 else h)


def normalised(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    if rng.random() < 0.5:
        norm = rng.choice([nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None), nn.LayerNorm(6), nn.GroupNorm(2, 6)])
        return _Normalised(norm, nn.Linear(5, 6)), (5,)
    norm = rng.choice([nn.BatchNorm2d(6), nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)])
    if rng.random() < 0.5:
        layers = [nn.Conv2d(2, 6, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, CLASSES)]
        return _wrapped(layers, rng), (2, 6, 6)
    return _Normalised(norm, nn.Conv2d(2, 6, 3)), (2, 6, 6)


class _Residual(nn.Module):
    """A Sequential that starts in place, beside what it is given."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.body = nn.Sequential(nn.ReLU(inplace=inplace), nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 4, 1))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head((self.body(h) + h).mean(dim=(2, 3)))


class _Slicing(nn.Module):
    """Enters a Sequential in the middle, as feature extractors do."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        early = self.parts[:2](x)
        late = self.parts[2:](early)
        return self.head(torch.cat([early.mean(dim=(2, 3)), late.mean(dim=(2, 3))], dim=1))


class _Viewing(nn.Module):
    """``view`` needs images in the usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).view(-1, 64))


class _FourAxes(nn.Module):
    """A parameter with four axes that is no convolution's, and is used by its order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.table = nn.Conv2d(2, 3, 3), nn.Parameter(torch.randn(3, 2, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.conv(x).flatten(1)[:, :32], self.table.view(3, 32))


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 0.5 * grad


class _OwnDerivative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = _Straight.apply(self.one(x))
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 3)
        return self.two(h)


class _State(nn.Module):
    """Buffers of several kinds, some replaced and some changed in place, which its outputs depend on."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.one, self.two, self.replaces = nn.Linear(5, 6), nn.Linear(6, CLASSES), replaces
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.register_buffer("mask", torch.tensor([True, True, False, True, False, True]))
        self.register_buffer("temporary", torch.full((6,), 0.5), persistent=False)
        self.mean_again = self.mean

    def forward(self, x: Tensor) -> Tensor:
        h = self.scale * self.one(x)
        if self.training:
            now = h.detach().mean(dim=0)
            if self.replaces:
                self.mean = 0.9 * self.mean + 0.1 * now
                self.steps = self.steps + 1
            else:
                self.mean.mul_(0.9).add_(0.1 * now)
                self.steps += 1
        h = (h - self.mean).masked_fill(~self.mask, 0.1)
        return self.two(torch.tanh(h) * self.temporary) / (1 + self.steps)


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.nothing = nn.Linear(5, CLASSES), nn.Linear(2, 2), nn.Parameter(torch.empty(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class _Listed(nn.Module):
    """Keeps a parameter in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.kept = [self.one.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x) + F.linear(x, self.kept[0])))


class _Writing(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        x.mul_(2)
        return self.one(x)


class _AcrossSamples(nn.Module):
    def __init__(self, way: int) -> None:
        super().__init__()
        self.one, self.two, self.way = nn.Linear(5, 6), nn.Linear(6, CLASSES), way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == 0:
            x = x - x.mean(dim=0)
        elif self.way == 1:
            x = torch.cat(x.chunk(2))
        elif self.way == 2:
            x = x.unsqueeze(1).expand(-1, 2, -1).sum(dim=1)
        return self.two(torch.tanh(self.one(x)))


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.read, self.head = nn.Embedding(7, 4), kind(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.abs() * 3).long().clamp(max=6)
        return self.head(self.read(self.words(tokens))[0][:, -1])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 4), nn.Linear(4, CLASSES)
        self.look = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(self.look(h, h, h, need_weights=False)[0].mean(dim=1))


class _Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.dropout(torch.relu(self.one(x)), 0.5, self.training))


class _Changing(nn.Module):
    """Changes its own weights while it computes, as masked layers of the careless kind do."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.one.weight.data *= 0.9
        return self.one(x)


class _Counting(nn.Module):
    """Its outputs depend on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.calls = nn.Linear(5, CLASSES), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.one(x) * self.calls


def _lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(CLASSES))


def _overlapping() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, CLASSES))
    net[1].weight = nn.Parameter(net[0].weight.data[:CLASSES])
    return net


def _own(make: Callable[[], nn.Module], shape: tuple[int, ...] = (5,)) -> Callable[[random.Random], Any]:
    return lambda rng: (make(), shape)


BASES: dict[str, Callable[[random.Random], tuple[nn.Module, tuple[int, ...]]]] = {
    "dense": dense,
    "convolutional": convolutional,
    "normalised": normalised,
    "residual": _own(lambda: _Residual(False), (2, 6, 6)),
    "residual in place": _own(lambda: _Residual(True), (2, 6, 6)),
    "slicing": _own(_Slicing, (2, 6, 6)),
    "viewing": _own(_Viewing, (3, 6, 6)),
    "four axes": _own(_FourAxes, (2, 6, 6)),
    "own derivative": _own(_OwnDerivative),
    "state replaced": _own(lambda: _State(True)),
    "state in place": _own(lambda: _State(False)),
    "unused": _own(_Unused),
    "listed": _own(_Listed),
    "writing": _own(_Writing),
    "across samples": lambda rng: (_AcrossSamples(rng.randint(0, 2)), (5,)),
    "recurrent": lambda rng: (_Recurrent(rng.choice([nn.GRU, nn.LSTM, nn.RNN])), (4,)),
    "attention": _own(_Attention, (3, 2)),
    "dropout": _own(_Dropped),
    "changing": _own(_Changing),
    "counting": _own(_Counting),
    "lazy": _own(_lazy),
    "overlapping": _own(_overlapping),
}
REFUSED_BASES = {"changing", "counting", "lazy", "overlapping"}
CHAINS = ("dense", "convolutional", "normalised")


# --- twists: each changes a module in place, or gives another; None if it does not apply ---------------------------


class MaskedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * (self.weight.detach() > 0), self.bias)


class CosineLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class ScaledConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


class ShiftedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x - 0.1)


class CallingTanh(nn.Tanh):
    def __call__(self, *given: Any) -> Any:
        return super().__call__(*given) * 1.5


class Doubling(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Reversing(nn.Flatten):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


class Softened(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


_SUBCLASSES: dict[type[nn.Module], list[type[nn.Module]]] = {
    nn.Linear: [MaskedLinear, CosineLinear, type("Linear", (MaskedLinear,), {})],
    nn.Conv2d: [ScaledConv],
    nn.ReLU: [ShiftedReLU],
    nn.Tanh: [CallingTanh],
    nn.Identity: [Doubling],
    nn.Flatten: [Reversing],
    nn.MaxPool2d: [Softened],
}


def _parts(module: nn.Module, *kinds: type[nn.Module]) -> list[nn.Module]:
    return [part for part in module.modules() if type(part) in (kinds or (*_SUBCLASSES, nn.Sequential, Staged))]


def _some(module: nn.Module, rng: random.Random, *kinds: type[nn.Module]) -> nn.Module | None:
    parts = _parts(module, *kinds)
    return rng.choice(parts) if parts else None


def subclass(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, *_SUBCLASSES)
    if part is not None:
        part.__class__ = rng.choice(_SUBCLASSES[type(part)])
    return part and module


class Sequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return -2 * super().forward(x)


_NAMED_STAGED = type("Staged", (Staged,), {"forward": lambda self, x: Staged.forward(self, x) * 3})


def container(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Sequential, Staged)
    if part is not None:
        part.__class__ = Sequential if type(part) is nn.Sequential else _NAMED_STAGED
    return part and module


def forward_hook(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng)
    if part is not None:
        part.register_forward_hook(lambda layer, given, out: 5 * out)
    return part and module


def pre_hook(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng)
    if part is not None:
        part.register_forward_pre_hook(lambda layer, given: (given[0] * 0.5,))
    return part and module


def backward_hook(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    if part is not None:
        part.register_full_backward_hook(lambda layer, into, out: tuple(g if g is None else 2 * g for g in into))
    return part and module


def backward_pre_hook(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    if part is not None:
        part.register_full_backward_pre_hook(lambda layer, out: tuple(3 * g for g in out))
    return part and module


def method(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, *_SUBCLASSES)
    if part is not None:
        part.forward = types.MethodType(lambda layer, x: 0.3 * type(layer).forward(layer, x), part)  # type: ignore
    return part and module


def closure(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear)
    if part is not None:
        part.forward = lambda x: F.linear(x, 2 * part.weight, part.bias)  # type: ignore
    return part and module


def old_weight_norm(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    return part and (nn.utils.weight_norm(part), module)[1]


def old_spectral_norm(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    return part and (nn.utils.spectral_norm(part), module)[1]


def new_weight_norm(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    return part and (parametrizations.weight_norm(part), module)[1]


def new_spectral_norm(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    return part and (parametrizations.spectral_norm(part), module)[1]


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + weight.flip(0)


def parametrised(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Linear, nn.Conv2d)
    return part and (parametrize.register_parametrization(part, "weight", _Symmetric()), module)[1]


def tied(module: nn.Module, rng: random.Random) -> nn.Module | None:
    """One tensor under two names, where two layers have tensors of one shape."""
    layers = _parts(module, nn.Linear, nn.Conv2d)
    pairs = [
        (one, two, name)
        for i, one in enumerate(layers)
        for two in layers[i + 1 :]
        for name in ("weight", "bias")
        if getattr(one, name, None) is not None
        and getattr(two, name, None) is not None
        and getattr(one, name).shape == getattr(two, name).shape
    ]
    if not pairs:
        return None
    one, two, name = rng.choice(pairs)
    setattr(two, name, getattr(one, name))
    return module


def shared(module: nn.Module, rng: random.Random) -> nn.Module | None:
    """A layer that stands in two places."""
    for chain in _parts(module, nn.Sequential):
        for number, part in enumerate(chain):
            if type(part) is nn.Linear and part.in_features == part.out_features:
                chain.insert(number, part)
                return module
            if type(part) in (nn.ReLU, nn.Tanh) and rng.random() < 0.5:
                chain.append(part)
                return module
    return None


def frozen(module: nn.Module, rng: random.Random) -> nn.Module | None:
    trainable = [p for p in module.parameters() if p.requires_grad]
    if len(trainable) < 2:
        return None
    rng.choice(trainable[:-1]).requires_grad_(False)
    return module


def odd_flatten(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng, nn.Flatten)
    if part is not None:
        part.start_dim, part.end_dim = rng.choice([(1, 3), (-3, -1), (2, -1)])
    return part and module


def extra_parameter(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng)
    if part is not None and not isinstance(part, nn.Sequential | Staged):
        part.register_parameter("extra", nn.Parameter(torch.randn(2)))
        return module
    return None


def harmless(module: nn.Module, rng: random.Random) -> nn.Module | None:
    part = _some(module, rng)
    if part is not None:
        part.note = "mine"  # type: ignore[assignment]
    return part and module


def half(module: nn.Module, rng: random.Random) -> nn.Module | None:
    """Weights that came in another precision."""
    return module.double() if rng.random() < 0.5 else module.half()


class _Extra(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([4, 2])

    def set_extra_state(self, state: Tensor) -> None:
        assert state.tolist() == [4, 2]


def extra_state(module: nn.Module, rng: random.Random) -> nn.Module | None:
    return _Extra(module)


def gradient_hook(module: nn.Module, rng: random.Random) -> nn.Module | None:
    parameters = [p for p in module.parameters() if p.requires_grad]
    rng.choice(parameters).register_hook(lambda grad: 0 * grad)
    return module


def patched(module: nn.Module, rng: random.Random) -> nn.Module | None:
    return module if _parts(module, nn.Linear) else None


def hooked_everywhere(module: nn.Module, rng: random.Random) -> nn.Module | None:
    return module if _parts(module, nn.Linear) else None


@contextmanager
def _patched_linear() -> Iterator[None]:
    original = nn.Linear.forward
    nn.Linear.forward = lambda self, x: 1.7 * original(self, x)  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.forward = original  # type: ignore[method-assign]


@contextmanager
def _global_hook() -> Iterator[None]:
    handle = register_module_forward_hook(lambda layer, given, out: 2 * out if isinstance(layer, nn.Linear) else None)
    try:
        yield
    finally:
        handle.remove()


_AROUND: dict[str, Callable[[], Any]] = {"patched": _patched_linear, "hooked_everywhere": _global_hook}
TWISTS = (
    subclass,
    container,
    forward_hook,
    pre_hook,
    backward_hook,
    backward_pre_hook,
    method,
    closure,
    old_weight_norm,
    old_spectral_norm,
    new_weight_norm,
    new_spectral_norm,
    parametrised,
    tied,
    shared,
    frozen,
    odd_flatten,
    extra_parameter,
    harmless,
    half,
    extra_state,
    gradient_hook,
    patched,
    hooked_everywhere,
)
REFUSED_TWISTS = {"closure", "gradient_hook", "odd_flatten", "shared"}
"""Twists after which a module may be refused: copies would lose something, or it is no sound model any more."""


def build(seed: int) -> Case:
    """The module of a seed: the same at every call."""
    rng = random.Random(seed)
    base = rng.choice([*BASES, *CHAINS * 8])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, shape = BASES[base](rng)
        twists: list[str] = []
        wanted = rng.choice([0, 1, 1, 1, 2, 2, 3]) if base not in REFUSED_BASES else 0
        for twist in rng.sample(TWISTS, k=wanted):
            if twists and twists[-1] in _AROUND:
                break
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    changed = twist(module, rng)
            except (ValueError, KeyError, RuntimeError):
                break  # torch itself does not combine the two
            if changed is not None:
                module = changed
                twists.append(twist.__name__)
    aliased = base == "listed" and "new_weight_norm" in twists  # the list then holds the memory of another parameter
    refused = aliased or base in REFUSED_BASES or bool(REFUSED_TWISTS.intersection(twists))
    return Case(seed, base, twists, shape, refused, base == "dropout", module)
