"""The first use of what goes by hand inside a model: the kernels' answers, against autograd on a few samples.

``verification`` compares a model's outputs and gradients with plain torch. This compares what else kernels compute of
it: derivatives by inputs, objectives that look at stages, targets that are probabilities, steps that are taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkeel.learning.inside import Branches, Contrast, Inside
from fedkeel.learning.kernels.choice import inside_gradient, sees_stages
from fedkeel.learning.kernels.uphill import by_inputs, error_by
from fedkeel.learning.loop import train
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.rule import Rule
from fedkeel.learning.sgd import Sgd
from fedkeel.learning.task import Batch, Batches, Objective, Task
from fedkeel.learning.trial import (
    MOST,
    ON_ACCELERATORS,
    ROUND_OFF,
    SHAKEN,
    alike,
    in_last_digits,
    norm_of,
    nudged,
)
from fedkeel.learning.unforgetting import Unforgetting
from fedkeel.learning.uphill import by_inputs as plain_by_inputs

Compared = dict[str, Callable[[Tensor], Tensor]]
"""Functions of the parameters [d] by what they give."""


def verify_kernels(task: Task, x: Tensor, y: Tensor) -> None:
    """Compare on samples x [B, ...], y [B]; what differs by more than round-off is left to autograd for good.

    Comes after ``verification.verify``, once for a task.
    """
    if task.kernels_tried or not task.by_hand or task.chain is None:
        return
    task.kernels_tried = True
    found = ""
    for seed in range(2):  # since a ReLU may stand so close to zero that round-off turns it
        found = _difference(task, Batch(x[None], y[None]), nudged(task.w0, task.layout, seed).to(task.device))
        if not found:
            return
    task.use_plain_autograd()
    task.notices.append(
        f"the fast way to compute this model differs from plain autograd ({found}), so plain autograd is used: "
        "the results are right, the rounds take longer."
    )


def _difference(task: Task, batch: Batch, w: Tensor) -> str:
    """What the kernels give otherwise than autograd at parameters w [d]; nothing if all is well."""
    plain = _plainly(task, batch)
    for name, kernel in _by_hand(task, batch).items():
        expected = plain[name](w)
        try:
            answer = kernel(w)
        except Exception as error:  # whatever it is, autograd has no such trouble
            return f"{name} ({type(error).__name__})"
        tolerance = ROUND_OFF[task.dtype] if task.device.type == "cpu" else ON_ACCELERATORS
        if _near(task, answer, expected, tolerance):
            continue
        # Deep networks multiply round-off: see how far a change of the last digits takes autograd itself.
        off = norm_of(plain[name](in_last_digits(w)) - expected) / max(norm_of(expected), 1e-30)
        if not _near(task, answer, expected, max(tolerance, min(SHAKEN * off, MOST))):
            return name
    return ""


def _near(task: Task, answer: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether each tensor's part of two gradients [d] is the same, or all of two gradients by inputs."""
    whole = 0.1 * tolerance * norm_of(expected)
    if answer.shape != task.w0.shape:
        return alike(answer, expected, tolerance, whole)
    parts = zip(task.layout.unflatten(answer).values(), task.layout.unflatten(expected).values(), strict=True)
    return all(alike(one, other, tolerance, whole) for one, other in parts)


def _inside_rules(task: Task) -> dict[str, Inside]:
    """One of each kind, with frozen models near the start."""
    w = [nudged(task.w0, task.layout, seed).to(task.device) for seed in (3, 4)]
    b = task.b0.to(task.device)
    rules: dict[str, Inside] = {
        "gradient of a contrast": Contrast(
            1.0,
            0.5,
            torch.stack(w)[None],
            b.expand(1, 2, -1),
            torch.ones(1, 2, dtype=torch.bool, device=task.device),
        ),
        "gradient of branches": Branches(1.0, 1.0, 1.0, 1.0, w[0][None], b[None]),
    }
    return {name: rule for name, rule in rules.items() if sees_stages(task, rule)}


@dataclass(frozen=True)
class _Twice(Batches):
    """All samples as the minibatch of either of two steps."""

    batch: Batch

    def __len__(self) -> int:
        return 2

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        return self.batch

    @property
    def positions(self) -> Sequence[Tensor]:
        return [torch.arange(self.batch.y.shape[1])] * len(self)


def _taken_back(task: Task, batch: Batch, objective: Objective | None) -> Callable[[Tensor], Tensor]:
    """From a point w [d] to how far it moves in two steps, part of which is taken back."""
    b, counts = task.b0.to(task.device)[None], torch.ones(1, dtype=torch.long)
    remembered = [_soft(task, batch)], [batch]

    def moved(w: Tensor) -> Tensor:
        rule = Rule(unforgetting=Unforgetting(w[None], b, 0.4, 0.5, remembered, counts, objective))
        return train(task, w[None], b, _Twice(batch), Sgd(0.1, clip=10.0), rule, lambda: [batch]).y[0] - w

    return moved


def _plainly(task: Task, batch: Batch) -> Compared:
    b = task.b0.to(task.device)[None]
    soft = _soft(task, batch)
    compared: Compared = {
        "gradient by inputs": lambda w: plain_by_inputs(task, w[None], b, batch, task.loss.per_sample)[0],
        "gradient under soft labels": lambda w: task.gradient(w[None], b, soft, task.objective)[0][0],
        "steps taken back": _taken_back(task, batch, task.objective),
    }
    for name, rule in _inside_rules(task).items():
        compared[name] = lambda w, rule=rule: rule.gradient(task, w[None], b, batch)[0][0]  # type: ignore[misc]
    return compared


def _by_hand(task: Task, batch: Batch) -> Compared:
    b = task.b0.to(task.device)[None]
    soft = _soft(task, batch)

    def slopes(w: Tensor) -> Tensor:
        chain = task.frozen.chain_at(w, b[0])
        x, y = batch.x[0], batch.y[0]
        return by_inputs(chain, task.seen_by_chain(x), error_by(task.loss.per_sample, y)).view(x.shape)

    compared: Compared = {"gradient by inputs": slopes}
    if task.loss is cross_entropy:
        compared["gradient under soft labels"] = lambda w: task.gradient(w[None], b, soft)[0][0]
        compared["steps taken back"] = _taken_back(task, batch, None)
    for name, rule in _inside_rules(task).items():
        gradient = inside_gradient(task, [], rule, None)
        compared[name] = lambda w, gradient=gradient: gradient(  # type: ignore[misc]
            w[None], b, batch, 0, torch.empty_like(w)[None]
        )[0][0]
    return compared


def _soft(task: Task, batch: Batch) -> Batch:
    """The same samples with probabilities of the classes as targets, which only cross-entropy knows."""
    if task.loss is not cross_entropy:
        return batch
    with torch.no_grad():
        outputs = task.outputs(task.w0.to(task.device), task.b0.to(task.device), batch.x[0])
    hot = F.one_hot(batch.y[0], outputs.shape[-1])
    return Batch(batch.x, (0.5 * outputs.softmax(-1) + 0.5 * hot)[None])
