"""Random modules against plain torch: outputs, gradients, a short training, and what is saved and loaded.

``run(count, seed)`` says how many differed. A refusal counts as right only where a module may be refused.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkeel.data import from_clients
from fedkeel.engine.fitting import check_model
from fedkeel.engine.samples import as_channels_last
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.threads import torch_threads
from fedkeel.errors import FedkeelError
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.task import Batch, Task
from fedkeel.runs.directory import export_model, load_model
from tests.hostile import zoo

STEPS, SAMPLES, CLIENTS = 3, 6, 2


class DifferenceError(Exception):
    """A difference from plain torch, or a sentence that says nothing."""


def run(count: int, seed: int) -> dict[str, Any]:
    """Compare this many random modules; give how many were wrong, and the first few of those."""
    examples: list[str] = []
    wrong = refused = noticed = 0
    for number in range(seed, seed + count):
        case = zoo.build(number)
        try:
            with warnings.catch_warnings(), torch_threads(1), case.around():
                warnings.simplefilter("ignore")
                noticed += bool(compare(case))
        except FedkeelError as error:
            refused += 1
            problem = complaint(case, str(error))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}" if torch_computes(case) else ""
        else:
            problem = ""
        if problem:
            wrong += 1
            examples.append(f"{case.title}: {problem}")
    return {"modules": count, "wrong": wrong, "refused": refused, "noticed": noticed, "examples": examples[:10]}


def complaint(case: zoo.Case, sentence: str) -> str:
    """What is wrong with a refusal."""
    if not case.may_be_refused and torch_computes(case):
        return f"refused: {sentence}"
    sound = "model" in sentence and sentence.endswith(".") and "\n" not in sentence and len(sentence) > 40
    return "" if sound else f"refused without a reason: {sentence!r}"


def torch_computes(case: zoo.Case) -> bool:
    """Whether the module works in plain torch; some combinations do not."""
    dtype = precision(case)
    x, y = torch.randn(SAMPLES, *case.shape, dtype=dtype), torch.zeros(SAMPLES, dtype=torch.long)
    try:
        with case.around():
            F.cross_entropy(fresh(case, dtype).train()(x), y).backward()
    except (RuntimeError, ValueError):
        return False
    return True


def precision(case: zoo.Case) -> torch.dtype:
    return torch.float64 if case.seed % 2 else torch.float32


def compare(case: zoo.Case) -> list[str]:
    """Raise where a module's task differs from the module; give the notices."""
    dtype = precision(case)
    close = 1e-8 if dtype == torch.float64 else 2e-3
    draw = torch.Generator().manual_seed(case.seed)
    x = torch.randn(CLIENTS, STEPS, SAMPLES, *case.shape, generator=draw, dtype=dtype)
    y = torch.randint(0, zoo.CLASSES, (CLIENTS, STEPS, SAMPLES), generator=draw)
    task = Task(case.module, dtype=dtype)
    if case.seed % 3:
        tried(task, x[0, 0], y[0, 0])
    elif case.may_be_refused or case.base in ("writing", "viewing", "listed", "changing", "counting"):
        tried(task, x[0, 0], y[0, 0])  # only a trial shows what these are
    same(fresh(case, dtype).eval()(x[0, 0].clone()), outputs(task, task.w0, task.b0, x[0, 0]), close, "outputs")
    gradients(case, task, x, y, close)
    if case.is_random:
        return task.notices
    y_after, b_after = trained(case, task, x, y, close)
    round_trip(case, task, y_after[0], b_after[0], x[0, 0], close)
    return task.notices


def tried(task: Task, x: Tensor, y: Tensor) -> None:
    """What a simulation does before its first round."""
    samples = x.numpy(), y.numpy()
    check_model(task, from_clients([samples], test=samples, classes=zoo.CLASSES))


def fresh(case: zoo.Case, dtype: torch.dtype) -> nn.Module:
    """The module once more, not used yet."""
    return zoo.build(case.seed).module.to(dtype)


def laid_out(task: Task, x: Tensor) -> Tensor:
    return as_channels_last(x) if task.channels_last and x.dim() == 4 else x.clone()


def outputs(task: Task, w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    given = laid_out(task, x)
    with torch.no_grad():
        found = task.outputs(w, b, given)
    same(x, given, 0, "samples after evaluation")
    return found


def gradients(case: zoo.Case, task: Task, x: Tensor, y: Tensor, close: float) -> None:
    """Value, gradient and buffers of two clients at once, by both ways, at points of their own."""
    train_mode = not case.is_random
    points = torch.stack([task.w0, task.w0 + 0.1 * torch.randn(task.d, generator=torch.Generator().manual_seed(1))])
    points = points.to(task.dtype)
    batch = Batch(torch.stack([laid_out(task, rows) for rows in x[:, 0]]), y[:, 0])
    expected = []
    for i in range(CLIENTS):
        module = fresh(case, task.dtype).train(train_mode)
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, part in task.layout.unflatten(points[i]).items():
                named[name].copy_(part)
        value = F.cross_entropy(module(x[i, 0].clone()), y[i, 0])
        found = torch.autograd.grad(value, [named[e.name] for e in task.layout], materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in found])
        expected.append((gradient, value.detach(), task.buffer_layout.flatten(dict(module.named_buffers()), x.dtype)))
    ways = [None] if task.not_functional else [None, task.objective]
    for way in ways:
        if way is not None and case.base == "listed":
            continue  # a trial refuses it; here there may have been none
        found = task.gradient(points, task.b0.expand(CLIENTS, -1), batch, way, train=train_mode)
        for what, ours, theirs in zip(("gradient", "loss", "buffers"), found, zip(*expected, strict=True), strict=True):
            same(torch.stack(theirs), ours, close, what)


def trained(case: zoo.Case, task: Task, x: Tensor, y: Tensor, close: float) -> tuple[Tensor, Tensor]:
    """Some steps of SGD on the task, and on modules of their own."""
    settings: dict[str, float] = [{}, {"momentum": 0.5}, {"weight_decay": 0.1}][case.seed % 3]
    batches = [
        Batch(torch.stack([laid_out(task, rows) for rows in x[:, k]]), y[:, k].contiguous()) for k in range(STEPS)
    ]
    start = task.w0.expand(CLIENTS, -1), task.b0.expand(CLIENTS, -1)
    result = train(task, *start, batches, Sgd(0.1, **settings))
    for i in range(CLIENTS):
        module = fresh(case, task.dtype).train()
        optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, **settings)
        losses = []
        for k in range(STEPS):
            optimiser.zero_grad()
            value = F.cross_entropy(module(x[i, k].clone()), y[i, k])
            value.backward()
            for parameter in module.parameters():  # a parameter that takes no part decays here as well
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            optimiser.step()
            losses.append(value.detach())
        same(task.layout.flatten(dict(module.named_parameters()), x.dtype), result.y[i], close, "trained parameters")
        same(task.buffer_layout.flatten(dict(module.named_buffers()), x.dtype), result.b[i], close, "trained buffers")
        same(torch.stack(losses).mean(), result.loss[i], close, "training loss")
        if i == 0:
            same(module.eval()(x[0, 0].clone()), outputs(task, result.y[0], result.b[0], x[0, 0]), close, "evaluation")
    return result.y, result.b


def round_trip(case: zoo.Case, task: Task, w: Tensor, b: Tensor, x: Tensor, close: float) -> None:
    """What is saved and loaded is what was trained, to the bit, under every name."""
    module = fresh(case, task.dtype)
    state = task.state_dict(w, b)
    if list(state) != list(module.state_dict()):
        raise DifferenceError(f"names of the state: {list(state)}")
    module.load_state_dict(copy.deepcopy(state))
    identical(task, module, w, b, "state_dict")
    same(module.eval()(x.clone()), outputs(task, w, b, x), close, "outputs of the loaded state")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        run = SimpleNamespace(server=SimpleNamespace(w=w), b=b)
        simulation = SimpleNamespace(task=task, reported=lambda state: state)
        export_model(cast(Simulation, simulation), cast(Any, run), path)
        module = fresh(case, task.dtype)
        load_model(module, path)
    identical(task, module, w, b, "export")


def identical(task: Task, module: nn.Module, w: Tensor, b: Tensor, what: str) -> None:
    """Bits, but for buffers that are not part of a state."""
    kept = module.state_dict().keys()
    if not torch.equal(task.layout.flatten(dict(module.named_parameters()), w.dtype), w):
        raise DifferenceError(f"parameters after {what}")
    buffers = dict(module.named_buffers())
    for name, part in task.buffer_layout.unflatten(b).items():
        if name in kept and not torch.equal(buffers[name].to(b.dtype), part):
            raise DifferenceError(f"buffer {name} after {what}")


def same(expected: Tensor, found: Tensor, close: float, what: str) -> None:
    expected, found = expected.detach().double(), found.detach().double()
    if expected.shape != found.shape:
        raise DifferenceError(f"{what}: shape {list(found.shape)} instead of {list(expected.shape)}")
    if not torch.allclose(found, expected, rtol=close, atol=close, equal_nan=True):
        raise DifferenceError(f"{what}: off by {float((found - expected).abs().max()):.2g}")
