"""What an actor of the ``ray`` executor does, and what is sent to it.

An actor gets its ``Kit`` once: algorithm, task, schedule and samples. A round sends one ``Order`` to all, the
broadcast, and to each actor ``Unit``s: what is told to some clients alone, and what they remember. What comes out of
Ray's object store is copied before anything is computed: that memory belongs to everybody on a machine, and is
write-protected only as long as nobody looks past NumPy.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from fedkeel.data.transform import Transform
from fedkeel.engine.client import Equipment, Work, answer_each
from fedkeel.engine.ray_cluster import library, software
from fedkeel.engine.samples import ClientData, Samples, Scored, array_of, as_images, is_channels_last
from fedkeel.engine.threads import one_thread
from fedkeel.engine.wire import packed_outcome, under, unpacked_call
from fedkeel.engine.worker_errors import Failure, failure_of
from fedkeel.errors import InputError
from fedkeel.learning.drawing import put_aside_for_good
from fedkeel.learning.task import Batch, Marks
from fedkeel.learning.trial import same_draws

Arrays = dict[str, "np.ndarray[Any, np.dtype[Any]]"]
PROBED = 8
"""Samples on which an actor shows that it computes what this process computes."""


@dataclass(frozen=True)
class Kit:
    """What an actor needs before the first round."""

    paths: list[str]
    """Where this process finds modules; on a machine that has these folders too, an actor finds them there."""
    settings: dict[str, Any]
    """Of torch, which are of the process and not of the run."""
    pickled: np.ndarray[Any, np.dtype[np.uint8]]
    """Equipment and everything about the samples that is no array."""
    arrays: Arrays


@dataclass(frozen=True)
class Order:
    """What all actors are told of a round: the broadcast, and models to evaluate."""

    number: int
    arrays: Arrays


@dataclass(frozen=True)
class Unit:
    """Some clients of a round: what they alone are told, what they remember, and the buffers that they start from."""

    head: dict[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Sheet:
    """A part of some samples on which a model of an order is to be marked."""

    model: int
    on: Scored
    part: slice
    seed: int | None = None


@dataclass(frozen=True)
class Hello:
    """What an actor says of itself, and what it computes of a few samples."""

    node: str
    host: str
    pid: int
    software: dict[str, str]
    processor: str
    loss: float
    gradient: np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Carried:
    """Samples as an actor has them: prepared already, in memory of its own."""

    x: Tensor
    y: Tensor
    ends: np.ndarray[Any, np.dtype[Any]]
    """Where each client's samples end."""
    transform: Transform
    dtype: torch.dtype
    scored: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def data_of(self, client: int) -> ClientData:
        """What a client trains on."""
        start = int(self.ends[client - 1]) if client else 0
        stop = int(self.ends[client])
        return ClientData(self.x[start:stop], self.y[start:stop], self.transform, self.dtype)

    def to_score(self, on: Scored) -> tuple[Tensor, Tensor]:
        """``test`` or ``validation``."""
        return self.scored[on]


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for the next step; elsewhere nothing is done.

    In a process of Ray's it gives large pieces back at once: 1.6 million page faults and a fifth of the time in two
    rounds of a small convolutional network, against 1,600 in a worker of the pool.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
        tune(_TRIM_THRESHOLD, 1 << 30)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As in malloc.h."""


class Worker:
    """An actor: it computes what it is told to, with one thread, and remembers nothing of a client."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._equipment: Equipment | None = None
        self._samples: Carried | Samples | None = None
        self._number = -1
        self._told: dict[str, Tensor] = {}

    def prepare(self, kit: Kit) -> Hello | Failure:
        """Unpack, and show what is computed here."""
        try:
            torch.set_num_threads(1)
            put_aside_for_good()
            sys.path += [path for path in kit.paths if path not in sys.path and os.path.isdir(path)]
            apply_settings(kit.settings)
            equipment, about = library().cloudpickle.loads(kit.pickled.tobytes())
            self._equipment, self._samples = equipment, _unpacked_samples(about, kit.arrays)
            node = library().get_runtime_context().get_node_id()
            loss, gradient = probe(equipment, self._samples)
            return Hello(
                node, platform.node(), os.getpid(), software(), torch.backends.cpu.get_cpu_capability(), loss, gradient
            )
        except BaseException as error:
            return _failure(error)

    def train(self, order: Order, unit: Unit) -> list[Arrays] | Failure:
        """What each client of a unit returns, one after the other as ``serial`` computes them."""
        try:
            assert self._equipment is not None
            assert self._samples is not None
            tensors = {**self._tensors(order), **copied(unit.arrays)}
            states = {name: list(rows) for name, rows in under(tensors, "state/").items()}
            call = unpacked_call(unit.head, tensors)
            work = Work(self._equipment, call, self._samples, states, tensors["buffers"])
            return [as_arrays(packed_outcome(one)) for one in answer_each(work, [[i] for i in range(len(call.steps))])]
        except BaseException as error:  # also sys.exit() in somebody's model
            return _failure(error)

    def mark(self, order: Order, sheets: Sequence[Sheet]) -> list[Marks] | Failure:
        """A model of the order on parts of some samples."""
        try:
            assert self._equipment is not None
            assert self._samples is not None
            tensors, task, found = self._tensors(order), self._equipment.task, []
            for sheet in sheets:
                x, y = self._samples.to_score(sheet.on)
                w, b = tensors[f"exam/{sheet.model}/w"], tensors[f"exam/{sheet.model}/b"]
                found.append(task.mark(w, b, x[sheet.part], y[sheet.part], sheet.seed))
            return found
        except BaseException as error:
            return _failure(error)

    def _tensors(self, order: Order) -> dict[str, Tensor]:
        if order.number != self._number:
            self._told, self._number = copied(order.arrays), order.number
        return self._told


def packed_kit(equipment: Equipment, samples: Samples) -> Kit:
    """What actors need of a run, for Ray's object store."""
    if any(getattr(torch_module, name, None) for name in vars(torch_module) if name.endswith("_hooks")):
        raise InputError(
            "the executor 'ray' cannot be used with global hooks of torch.nn.modules, which would be missing on other "
            "machines; put them on the model itself."
        )
    about, arrays = _packed_samples(samples)
    try:
        pickled = library().cloudpickle.dumps((equipment, about))
    except Exception as error:  # whatever somebody's model refuses
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")
        raise InputError(
            f"model, loss or algorithm cannot be sent to other machines ({reason}); keep open files, locks and threads "
            "out of them, or use the executor 'pool'."
        ) from None
    return Kit([path or os.getcwd() for path in sys.path], settings(), np.frombuffer(pickled, np.uint8), arrays)


def _packed_samples(samples: Samples) -> tuple[Any, Arrays]:
    """Samples as what can be pickled, and arrays; where not all are kept prepared, as they are stored."""
    if not samples.keeps_all:
        return samples, {}
    samples.prepare_all()
    x, y = samples.everybody
    sets = {"train": (x, y), "test": samples.test, "validation": samples.validation}
    arrays: Arrays = {"ends": np.cumsum(samples.federation.sizes)}
    layouts = {}
    for name, (inputs, targets) in sets.items():
        layouts[name] = is_channels_last(inputs)
        arrays[f"{name}/x"], arrays[f"{name}/y"] = array_of(inputs, inputs), targets.numpy()
    return (samples.transform, samples.dtype, layouts), arrays


def _unpacked_samples(about: Any, arrays: Arrays) -> Carried | Samples:
    if isinstance(about, Samples):
        return about
    transform, dtype, layouts = about
    sets, tensors = {}, copied(arrays)
    for name, last in layouts.items():
        x = tensors[f"{name}/x"]
        sets[name] = (as_images(x) if last else x, tensors[f"{name}/y"])
    x, y = sets.pop("train")
    return Carried(x, y, arrays["ends"].copy(), transform, dtype, sets)


def probe(equipment: Equipment, samples: Carried | Samples) -> tuple[float, np.ndarray[Any, np.dtype[Any]]]:
    """Loss and gradient [d] of the initial model on a few of the first client's samples, as training computes them."""
    data, task = samples.data_of(0), equipment.task
    x, y = data.x[:PROBED].clone(), data.y[:PROBED].clone()
    if is_channels_last(data.x):
        x = as_images(x.permute(0, 2, 3, 1).contiguous())
    with one_thread(), same_draws(task.draws_nothing, task.device, task.generators):
        # In evaluation mode: a BatchNorm does not train on a single sample, and a first client may have one only.
        gradient, loss, _ = task.gradient(task.w0[None], task.b0[None], Batch(x[None], y[None]), train=False)
    return float(loss[0]), gradient[0].detach().numpy().copy()


def as_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Tensors as Ray moves them without copying."""
    return {name: value.detach().contiguous().numpy() for name, value in tensors.items()}


def copied(arrays: Arrays) -> dict[str, Tensor]:
    """Arrays as tensors in memory of their own, which begins at a cache line as all of torch's does.

    NumPy's own need not, and the bits of a product may depend on that.
    """
    return {name: torch.tensor(value) for name, value in arrays.items()}


def settings() -> dict[str, Any]:
    """What a program may have set for the whole process and would be missing in another."""
    return {
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "flush": _flushes(),
    }


def apply_settings(given: Mapping[str, Any]) -> None:
    """Let this process have them too."""
    torch.set_default_dtype(given["dtype"])
    torch.set_float32_matmul_precision(given["precision"])
    torch.use_deterministic_algorithms(given["deterministic"], warn_only=given["warn_only"])
    torch.backends.mkldnn.enabled = given["mkldnn"]
    torch.set_flush_denormal(given["flush"])


def _flushes() -> bool:
    """Whether numbers too small to be normal count as zero: torch does not say, arithmetic does."""
    tiny = torch.tensor([1e-40], dtype=torch.float32)
    return bool((tiny * 1.0 == 0).all())


def _failure(error: BaseException) -> Failure:
    return failure_of(error, library().cloudpickle.dumps)
