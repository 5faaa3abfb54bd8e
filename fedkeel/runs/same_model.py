"""Whether a run goes on with the model that it began with: what it is made of, its first weights and first answers.

Code cannot be compared, and a module of one's own has no name that says what it computes. So a run keeps what can be
looked at: how torch prints the module, its tensors, a digest of its initial weights, what it answers to a few samples,
and the gradient of its loss on them in training mode, where dropout and normalisation show as well.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from fedkeel.engine.rounds import Rounds
from fedkeel.errors import DataError, FedkeelError, ModelError, shown
from fedkeel.learning.drawing import held_by, keyed
from fedkeel.learning.layout import Layout
from fedkeel.learning.task import Task
from fedkeel.runs.store import Store

KEY = "model"
"""Name of the record among the store's texts."""
NUMBERS = 16
"""Of each answer that are kept; its size stands for the others."""
NEAR = {torch.float32: 1e-4, torch.float64: 1e-9}
"""How far answers may lie apart, as a share of their size: another processor rounds otherwise."""
ON_ACCELERATORS = 2e-2
SAME_WEIGHTS = 1e-6
"""The same for sizes and sums of initial weights, which may be drawn with other instructions."""
_SEED = 7


class ModelRecord(BaseModel):
    """What a model is, as far as it can be told without its code."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    layers: str
    """The module as torch prints it."""
    tensors: dict[str, str]
    """Type and shape of every parameter and buffer."""
    loss: str
    weights: str
    """Digest of the initial parameters and buffers."""
    sizes: dict[str, tuple[float, float]]
    """Norm and sum of each of them."""
    answers: list[list[float]]
    """To each of a few samples: its norm, and its first numbers."""
    gradient: dict[str, float]
    """Of the mean loss on these samples in training mode: its norm for each parameter; empty if it has none there."""


def text_of(simulation: Rounds) -> str:
    """What a run keeps of its model."""
    return of(simulation).model_dump_json()


def recorded(store: Store) -> ModelRecord | None:
    """What a run kept of its model; None for a run of a version that kept nothing."""
    text = store.meta(KEY)
    if text is None:
        return None
    try:
        return ModelRecord.model_validate_json(text)
    except ValidationError:
        raise DataError(
            f"the record of its model in the run in {store.directory} is damaged; restore the run from a copy."
        ) from None


def check_resumed(store: Store, simulation: Rounds) -> None:
    """Refuse to go on with another model; a run that has no record of its model gets one now."""
    before = recorded(store)
    if before is None:
        store.put_meta(KEY, text_of(simulation))
        return
    found = difference(before, of(simulation), _tolerance(simulation.task))
    if found:
        raise ModelError(f"the run in {store.directory} cannot go on with another model: {found}.")


def of(simulation: Rounds) -> ModelRecord:
    """The record of a simulation's model."""
    task = simulation.task
    parts = {**_parts(task.layout, task.w0), **_parts(task.buffer_layout, task.b0)}
    entries = [*task.layout, *task.buffer_layout]
    x, y = simulation.few_samples()
    return ModelRecord(
        layers=_printed(task),
        tensors={e.name: f"{str(e.dtype).removeprefix('torch.')} {list(e.shape)}" for e in entries},
        loss=f"{task.loss.name}, l2 {task.loss.l2:g}" if task.loss.l2 else task.loss.name,
        weights=_digest(task),
        sizes={name: (_norm(part), float(part.sum(dtype=torch.float64))) for name, part in parts.items()},
        answers=_answers(task, x),
        gradient=_gradient(task, x, y),
    )


def difference(before: ModelRecord, now: ModelRecord, tolerance: float) -> str:
    """What differs, in words for the end of a sentence; nothing if the models are the same up to round-off."""
    if before.tensors != now.tensors:
        names = before.tensors | now.tensors
        name = next(name for name in names if before.tensors.get(name) != now.tensors.get(name))
        was, got = before.tensors.get(name, "absent"), now.tensors.get(name, "absent")
        return f"its tensor {name!r} was {was}, now {got}; give the model that the run was started with"
    if before.layers != now.layers:
        return f"{_first_line(before.layers, now.layers)}; give the model that the run was started with"
    if before.loss != now.loss:
        return f"its loss was {before.loss}, now {now.loss}; give the loss that the run was started with"
    if before.weights != now.weights:
        for name, sizes in before.sizes.items():
            size = max(abs(sizes[0]), 1e-30)
            if not all(_near(a, b, SAME_WEIGHTS * size) for a, b in zip(sizes, now.sizes[name], strict=True)):
                return (
                    f"the layers are the same, but the initial weights are not (first in {name!r}); make the model as "
                    "for the first start, with torch.manual_seed before it, or load the weights that it had then"
                )
    if not _alike(before.answers, now.answers, tolerance):
        return (
            "layers and initial weights are the same, but its answers to the same samples are not; its forward pass "
            "has changed: give the code that the run was started with"
        )
    whole = sum(size**2 for size in before.gradient.values()) ** 0.5
    for name, size in before.gradient.items():
        if not _near(size, now.gradient.get(name, float("nan")), tolerance * max(size, 0.1 * whole)):
            return (
                "layers, initial weights and answers are the same, but in training mode the gradient of its loss is "
                f"not (first for {name!r}); give the code and the loss that the run was started with"
            )
    return ""


def _answers(task: Task, x: Tensor) -> list[list[float]]:
    outputs = task.plain_outputs(x)
    if not isinstance(outputs, Tensor):
        return []
    rows = outputs.detach().cpu().double().reshape(len(outputs), -1)
    return [[_norm(row), *map(float, row[:NUMBERS])] for row in rows]


def _gradient(task: Task, x: Tensor, y: Tensor) -> dict[str, float]:
    module = task.module_at(task.w0, task.b0).to(task.device).train()
    parameters = dict(module.named_parameters())
    try:
        with torch.enable_grad(), keyed(_SEED, task.device, held_by(module.modules())):
            value = task.loss.per_sample(module(x.clone()), y).mean()
            parts = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    except FedkeelError:
        raise
    except Exception:  # a stranger's code that cannot do this outside its own training, which was tried before
        return {}
    return {name: 0.0 if part is None else _norm(part) for name, part in zip(parameters, parts, strict=True)}


def _printed(task: Task) -> str:
    """Without addresses, which are others in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(task.module_at(task.w0, task.b0)))


def _digest(task: Task) -> str:
    digest = hashlib.sha256()
    for vector in (task.w0, task.b0):
        digest.update(vector.contiguous().view(torch.uint8).numpy().data if vector.numel() else b"")
    return digest.hexdigest()[:32]


def _parts(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    named: dict[str, Tensor] = layout.unflatten(vector)
    return named


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.detach().cpu().double()))


def _first_line(before: str, now: str) -> str:
    pairs: list[tuple[Any, Any]] = [
        pair for pair in zip(before.splitlines(), now.splitlines(), strict=False) if pair[0] != pair[1]
    ]
    if not pairs:
        return "it has more or fewer layers than before"
    was, got = (line.strip() for line in pairs[0])
    return f"its layer {shown(was)} is now {shown(got)}"


def _alike(before: list[list[float]], now: list[list[float]], tolerance: float) -> bool:
    if [len(row) for row in before] != [len(row) for row in now]:
        return False
    return all(
        _near(a, b, tolerance * abs(row[0]))
        for row, other in zip(before, now, strict=True)
        for a, b in zip(row, other, strict=True)
    )


def _near(a: float, b: float, within: float) -> bool:
    """Whether two numbers are equal up to a distance; NaN is like NaN, and infinity like itself."""
    return a == b or (a != a and b != b) or abs(a - b) <= within


def _tolerance(task: Task) -> float:
    return NEAR[task.dtype] if task.device.type == "cpu" else ON_ACCELERATORS
