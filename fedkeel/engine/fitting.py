"""Whether a model fits the data, tried on a few samples before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.data.dataset import Federation
from fedkeel.engine.samples import as_channels_last
from fedkeel.errors import FedkeelError, ModelError
from fedkeel.learning.task import Task

EXAMPLES = 8


def check_model(task: Task, federation: Federation) -> None:
    """Refuse a model that cannot take the samples or gives no scores for them; compare the task with plain torch."""
    check_on(task, *_examples(federation, task), federation.dataset.name, federation.dataset.classes)


def check_on(task: Task, x: Tensor, y: Tensor, name: str, classes: int) -> None:
    """The same on given samples, prepared for the model: inputs [n, ...] and targets [n] of so many classes."""
    try:
        outputs = task.plain_outputs(x)
        _check_outputs(outputs, len(x), task.loss.name, name, classes)
        task.verify(x, y, as_channels_last(x) if task.channels_last and x.dim() == 4 else x)
    except FedkeelError:
        raise
    except Exception as error:  # whatever a stranger's forward pass or loss may raise
        shape = "×".join(map(str, x.shape[1:]))
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        advice = "choose a model for this shape (fedkeel models)."
        if not isinstance(error, RuntimeError | ValueError | IndexError):
            advice = "mend its forward pass."
        if "dtype" in reason:
            advice = f"all its tensors must be parameters or buffers of its own, which are {x.dtype} here."
        raise ModelError(f"the model cannot take the inputs of {name} ({shape} each): {reason}; {advice}") from None


def _examples(federation: Federation, task: Task) -> tuple[Tensor, Tensor]:
    """A few of the clients' samples: inputs [n, ...] and targets [n]."""
    rows: list[int] = []
    for client in federation.clients:
        rows += [int(row) for row in client[: EXAMPLES - len(rows)]]
        if len(rows) == EXAMPLES:
            break
    dataset = federation.dataset
    x = dataset.transform.prepare(dataset.train.x[rows], task.dtype)
    return x.to(task.device), torch.from_numpy(dataset.train.y[rows]).to(task.device)


def _check_outputs(outputs: object, samples: int, loss: str, name: str, classes: int) -> None:
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        got = str(outputs.dtype) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"the model must return one tensor of real numbers, the scores of its samples, got {got}; "
            "wrap it in a module that returns only that."
        )
    shape = list(outputs.shape)
    if not shape or shape[0] != samples:
        raise ModelError(
            f"the model must return one row of scores for each sample, got {shape} for {samples} samples; "
            "keep the batch as the first axis."
        )
    if loss != "cross_entropy":
        return
    if len(shape) != 2:
        raise ModelError(
            f"the model must return the shape [samples, classes] for cross-entropy, got {shape}; "
            "end it with nn.Flatten() or a layer that gives one score a class."
        )
    if shape[1] < classes:
        raise ModelError(
            f"the model has {shape[1]} outputs but {name} has {classes} classes; "
            "give the model at least as many outputs."
        )
