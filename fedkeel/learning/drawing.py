"""Random numbers that a model draws by itself: dropout, noise, whatever its code does.

Such draws come from generators that everybody in the process shares: torch's, NumPy's and Python's. ``keyed`` lets
them start from a seed for a while, so that what is drawn depends on nothing else, and gives them back as they were.
Generators that a model or algorithm keeps as its own are given a seed as well.
``draws_nothing`` says which models need no such care. Only models of which every part is known are among them: code
that nobody has looked at may draw.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from fedkeel.learning.losses import Loss
from fedkeel.system import ProcessLock

_SHARED = ProcessLock()
"""Held while the generators start from a key: threads that train at the same time take turns."""
_thread = threading.local()
"""``nobody_cares``: whether the generators may be left anywhere, since they were put aside."""
_OURS = "fedkeel.learning."
_numpy: Any = np.random  # its stubs lack two functions
_SILENT_NAMES = """
Sequential Identity Flatten Unflatten Linear Bilinear Embedding Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d
ConvTranspose3d MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d
AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d ReLU ReLU6 LeakyReLU PReLU ELU SELU CELU GELU
SiLU Mish Tanh Sigmoid LogSigmoid Hardtanh Hardswish Hardsigmoid Softplus Softsign Softmax LogSoftmax BatchNorm1d
BatchNorm2d BatchNorm3d GroupNorm LayerNorm LocalResponseNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d ZeroPad2d
ConstantPad2d ReflectionPad2d ReplicationPad2d PixelShuffle Upsample
"""
_SILENT = frozenset(getattr(nn, name) for name in _SILENT_NAMES.split())
"""Parts of torch that are functions of their inputs and weights."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def draws_nothing(model: nn.Module, loss: Loss) -> bool:
    """Whether a model and its loss are known to draw no random number, in training and in evaluation."""
    known_loss = all(_module_of(part).startswith(_OURS) for part in (loss.per_sample, loss.correct) if part)
    hooked = any(getattr(torch_module, f"_global{kind}", None) for kind in _HOOKS)
    return known_loss and not hooked and all(map(_is_silent, model.modules()))


def _is_silent(part: nn.Module) -> bool:
    own = vars(part)
    if type(part) not in _SILENT and not _module_of(type(part)).startswith(_OURS):
        return False
    tensors = [*part._parameters.values(), *part._buffers.values()]
    plain = all(tensor is None or type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    return plain and "forward" not in own and not any(own.get(kind) for kind in _HOOKS)


def _module_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", None))


def generators(device: torch.device) -> list[torch.Generator]:
    """torch's shared generators that code on a device draws from: main memory's, and the device's own."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        number = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[number]]
    if device.type == "mps":
        return [torch.default_generator, torch.mps._get_default_mps_generator()]
    return [torch.default_generator]


def drawn_so_far(device: torch.device) -> list[Tensor]:
    """Where torch's shared generators stand, for ``draw_again``."""
    return [generator.get_state() for generator in generators(device)]


def draw_again(device: torch.device, states: Sequence[Tensor]) -> None:
    """Let the next draws be those that followed when the generators stood there."""
    for generator, state in zip(generators(device), states, strict=True):
        generator.set_state(state)


@dataclass(frozen=True)
class _Stand:
    """Where all shared generators stand."""

    torchs: list[Tensor]
    kind: Any
    """NumPy's, which somebody may have exchanged for one of another kind, and where it stands."""
    numpys: Any
    pythons: Any

    @classmethod
    def now(cls, device: torch.device) -> _Stand:
        return cls(
            drawn_so_far(device), _numpy.get_bit_generator(), np.random.get_state(legacy=False), random.getstate()
        )

    def take(self, device: torch.device) -> None:
        draw_again(device, self.torchs)
        if self.kind is not _numpy.get_bit_generator():
            _numpy.set_bit_generator(self.kind)
        np.random.set_state(self.numpys)
        random.setstate(self.pythons)

    def is_same(self, other: _Stand) -> bool:
        return (
            all(map(torch.equal, self.torchs, other.torchs))
            and _listed(self.numpys) == _listed(other.numpys)
            and self.pythons == other.pythons
        )


def _listed(value: Any) -> Any:
    """A generator's state as something that can be compared."""
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value


@dataclass(frozen=True)
class Keyed:
    """The shared generators, started from a seed."""

    seed: int
    device: torch.device
    own: Sequence[Any] = ()
    """Further ones, see ``held_by``."""

    def start(self) -> None:
        """Let all of them begin at the seed."""
        for one in self.own:
            _start(one, self.seed)
        for generator in generators(self.device):
            generator.manual_seed(self.seed)
        if not isinstance(_numpy.get_bit_generator(), np.random.MT19937):
            _numpy.set_bit_generator(np.random.MT19937())  # the only kind that takes a seed
        np.random.seed([self.seed & 0xFFFFFFFF, self.seed >> 32])
        random.seed(self.seed)

    def was_used(self) -> bool:
        """Whether anything was drawn since."""
        now, own_now = _Stand.now(self.device), [_state(one) for one in self.own]
        self.start()
        fresh, own_fresh = _Stand.now(self.device), [_state(one) for one in self.own]
        now.take(self.device)
        for one, state in zip(self.own, own_now, strict=True):
            _put(one, state)
        return not now.is_same(fresh) or list(map(_listed, own_now)) != list(map(_listed, own_fresh))


@contextmanager
def keyed(seed: int, device: torch.device | None = None, own: Sequence[Any] = ()) -> Iterator[Keyed]:
    """Let the shared generators start from a seed (0 to 2^63 − 1); afterwards they are where they were before.

    So do ``own`` ones, which stay where they come to. Other threads that want the same wait; a thread may do it again
    inside.
    """
    where = torch.device("cpu") if device is None else device
    with _SHARED.held(), _put_aside(where):
        key = Keyed(seed, where, own)
        key.start()
        yield key


@contextmanager
def put_aside(device: torch.device) -> Iterator[None]:
    """Save where the shared generators stand once for all that is ``keyed`` in the block, one after the other.

    Saving them takes several times as long as giving them a seed.
    """
    with _SHARED.held(), _put_aside(device):
        _thread.nobody_cares = True
        try:
            yield
        finally:
            _thread.nobody_cares = False


@contextmanager
def nobody_draws() -> Iterator[None]:
    """Keep every other thread from what is ``keyed`` during the block.

    For a fork: torch locks a generator while it draws, and in the child nobody would ever unlock it.
    """
    with _SHARED.held():
        yield


def put_aside_for_good() -> None:
    """In a forked process whose generators nobody else will look at, nothing needs to be saved.

    NumPy's is exchanged for a new one: any thread of the parent may have been drawing from it at the fork, and would
    have left it locked for ever.
    """
    _numpy.set_bit_generator(np.random.MT19937())
    _thread.nobody_cares = True


@contextmanager
def _put_aside(device: torch.device) -> Iterator[None]:
    if getattr(_thread, "nobody_cares", False):
        _thread.nobody_cares = False  # but inside of what is keyed, somebody does
        try:
            yield
        finally:
            _thread.nobody_cares = True
        return
    before = _Stand.now(device)
    try:
        yield
    finally:
        before.take(device)


def keyed_if(
    seed: int | None, device: torch.device | None = None, own: Sequence[Any] = ()
) -> AbstractContextManager[object]:
    """``keyed``, where there is a seed."""
    return nullcontext() if seed is None else keyed(seed, device, own)


def held_by(things: Iterable[object]) -> list[Any]:
    """The generators that objects hold as attributes of their own."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    found = [value for thing in things for value in vars(thing).values() if isinstance(value, kinds)]
    return [one for one in found if not isinstance(one, random.SystemRandom)]  # which takes no seed


def _start(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        source = _bits(generator)
        source.state = type(source)(seed).state


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else _bits(generator).state


def _put(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        _bits(generator).state = state


def _bits(generator: Any) -> Any:
    """What a generator of NumPy, new or old, draws its bits from."""
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator
