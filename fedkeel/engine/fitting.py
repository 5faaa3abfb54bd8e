"""Whether a model fits the data, tried on a few samples before anything is trained."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedkeel.data.dataset import Array, Federation
from fedkeel.engine.samples import as_channels_last, prepared
from fedkeel.errors import FedkeelError, ModelError, invalid
from fedkeel.learning.kernels.trial import verify_kernels
from fedkeel.learning.losses import Loss, in_shape_of
from fedkeel.learning.metrics import check_metrics
from fedkeel.learning.task import Task
from fedkeel.learning.verification import verify

EXAMPLES = 8


def check_model(task: Task, federation: Federation) -> None:
    """Refuse a model that cannot take the samples or gives no scores for them; compare the task with plain torch."""
    dataset = federation.dataset
    if task.loss.answers == "classes":
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            _check_labels(task.loss, split.y, f"{dataset.name}.{part}")
    check_on(task, *some_samples(federation, task, channels_last=False), dataset.name, dataset.classes)


def check_on(task: Task, x: Tensor, y: Tensor, name: str, classes: int) -> None:
    """The same on given samples, prepared for the model: inputs [n, ...] and targets [n, ...] of so many classes."""
    try:
        outputs = task.plain_outputs(x)
        _check_outputs(outputs, x, y, task.loss, name, classes)
        assert isinstance(outputs, Tensor)
        check_metrics(task.metrics, outputs, y)
        images = as_channels_last(x) if task.channels_last and x.dim() == 4 else x
        verify(task, x, y, images)
        verify_kernels(task, images, y)
    except FedkeelError:
        raise
    except Exception as error:  # whatever a stranger's forward pass or loss may raise
        shape = "×".join(map(str, x.shape[1:]))
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        advice = "choose a model for this shape (fedkeel models)."
        if "indices" in reason and x.is_floating_point():
            advice = 'an embedding takes whole numbers: give the data with inputs="tokens".'
        if not isinstance(error, RuntimeError | ValueError | IndexError):
            advice = "mend its forward pass."
        if "dtype" in reason:
            advice = f"all its tensors must be parameters or buffers of its own, which are {x.dtype} here."
        raise ModelError(f"the model cannot take the inputs of {name} ({shape} each): {reason}; {advice}") from None


def some_samples(federation: Federation, task: Task, channels_last: bool) -> tuple[Tensor, Tensor]:
    """A few of the clients' samples, as training has them but for augmentation: inputs [n, ...] and targets [n]."""
    rows: list[int] = []
    for client in federation.clients:
        rows += [int(row) for row in client[: EXAMPLES - len(rows)]]
        if len(rows) == EXAMPLES:
            break
    dataset = federation.dataset
    split = dataset.train
    return prepared(split.x[rows], split.y[rows], dataset.transform, task.dtype, channels_last, task.device)


def _check_outputs(outputs: object, x: Tensor, y: Tensor, loss: Loss, name: str, classes: int) -> None:
    samples = len(x)
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
    if loss.answers == "classes":
        _check_scores(shape, y, loss, name, classes)
    elif loss.answers == "values":
        _check_values(outputs, y, loss, name)
    losses = loss.per_sample(outputs, y)
    if not isinstance(losses, Tensor) or losses.shape != (samples,):
        returned = str(list(losses.shape)) if isinstance(losses, Tensor) else type(losses).__name__
        raise ModelError(
            f"the loss {loss.name} must give one value for each sample, [{samples}] for {samples} samples, got "
            f"{returned}; "
            "the mean over a batch is taken here: return the values before it."
        )
    if loss.correct is not None and loss.correct(outputs, y).shape != (samples,):
        raise ModelError(f"the loss {loss.name} must say of each of {samples} samples whether its answer is right.")


def _check_values(outputs: Tensor, y: Tensor, loss: Loss, name: str) -> None:
    """Outputs and targets of one shape, since torch would otherwise compare each with each."""
    if not y.is_floating_point():
        raise ModelError(
            f"{loss.name} compares outputs with real numbers, but the targets of {name} are labels; "
            'give the data with targets="real", or take cross-entropy.'
        )
    if in_shape_of(y, outputs).shape != y.shape:
        raise ModelError(
            f"the model must return the shape of its targets for {loss.name}, {list(y.shape)} for {len(y)} samples of "
            f"{name}, got {list(outputs.shape)}; end it with a layer of as many outputs."
        )


def _check_labels(loss: Loss, y: Array, name: str) -> None:
    """Labels that the loss leaves out may pad a sequence, but no sample may consist of them."""
    if y.dtype != np.int64:
        return
    if y.ndim > 1 and (strange := y[(y < 0) & (y != (-1 if loss.ignored is None else loss.ignored))]).size:
        hint = "Pad with the label that the loss leaves out, or give nn.CrossEntropyLoss(ignore_index=...)."
        raise invalid(f"{name} labels", f"from 0, or {loss.ignored} for padding", int(strange[0]), hint)
    left_out = np.zeros(y.shape, dtype=bool) if loss.ignored is None else y == loss.ignored
    empty = np.flatnonzero(left_out.reshape(len(y), -1).all(axis=1))
    if empty.size:
        raise invalid(
            f"{name} labels",
            f"some that count: {loss.name} leaves out {loss.ignored}",
            f"nothing else in sample {empty[0]}",
            "Drop such samples: every sample counts alike in a client's loss.",
        )


def _check_scores(shape: list[int], y: Tensor, loss: Loss, name: str, classes: int) -> None:
    if y.is_floating_point():
        if shape != list(y.shape):
            raise ModelError(
                f"{loss.name} takes labels, or a probability for each class: the targets of {name} are real numbers of "
                f"the shape {list(y.shape)}, but the model returns {shape}."
            )
        return
    if len(shape) != y.dim() + 1 or shape[2:] != list(y.shape[1:]):
        wanted = ", ".join(["samples", "classes", *map(str, y.shape[1:])])
        advice = "end it with nn.Flatten() or a layer that gives one score a class."
        if y.dim() > 1:
            advice = "torch wants the classes on the second axis: outputs.transpose(1, 2) if they come last."
        raise ModelError(f"the model must return the shape [{wanted}] for cross-entropy, got {shape}; {advice}")
    if shape[1] < classes:
        raise ModelError(
            f"the model has {shape[1]} outputs but {name} has {classes} classes; "
            "give the model at least as many outputs."
        )
