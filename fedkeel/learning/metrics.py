"""Metrics beside accuracy and loss, as sums over samples: parts add up to the whole, whoever computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.errors import ModelError, invalid, unknown
from fedkeel.learning.losses import in_shape_of


@dataclass(frozen=True)
class Metric:
    """``sums(outputs, targets) → [k]`` of some samples in double precision; ``value(sums)`` of all of them."""

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Sequence[float]], float]

    def of(self, sums: Sequence[float]) -> float:
        """``value``, and NaN for sums that no samples have, such as those of none."""
        try:
            return self.value(sums)
        except ArithmeticError:
            return math.nan
        except ValueError:  # the root of a negative number
            return math.nan


def _errors(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Errors and targets, one after the other, in double precision and main memory."""
    outputs = in_shape_of(targets, outputs)
    if not targets.is_floating_point() or outputs.shape != targets.shape:
        raise ValueError(f"it compares outputs {list(outputs.shape)} with real targets {list(targets.shape)}")
    y = targets.cpu().double().flatten()
    return outputs.cpu().double().flatten() - y, y


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    error, _ = _errors(outputs, targets)
    return torch.stack([error.abs().sum(), error.new_tensor(error.numel())])


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    error, y = _errors(outputs, targets)
    return torch.stack([error.square().sum(), error.new_tensor(error.numel()), y.sum(), y.square().sum()])


def _r2(sums: Sequence[float]) -> float:
    """1 − Σ(o − y)²/Σ(y − ȳ)²; NaN for targets that are all equal."""
    error, count, total, squares = sums
    spread = squares - total * total / count
    return 1 - error / spread if spread > 0 else math.nan


def _confusions(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every class how often it was right, answered, and meant; labels below 0 are padding [3·C]."""
    if targets.is_floating_point() or outputs.dim() != targets.dim() + 1 or outputs.shape[1] < 2:
        raise ValueError(f"it needs labels and a score for each class, got outputs {list(outputs.shape)}")
    C, meant = outputs.shape[1], targets >= 0
    # The largest of numbers with NaN among them is NaN's place, which is nobody's answer.
    given = outputs.argmax(dim=1).where(~outputs.isnan().any(dim=1), C)
    labels, answers = targets[meant].cpu(), given[meant].cpu()
    right = labels[answers == labels]
    counts = [torch.bincount(found, minlength=C + 1)[:C] for found in (right, answers, labels)]
    return torch.cat(counts).double()


def _macro_f1(sums: Sequence[float]) -> float:
    """The mean of 2·right/(answered + meant) over all classes that were either; NaN if none was."""
    C = len(sums) // 3
    each = [2 * r / (a + m) for r, a, m in zip(sums[:C], sums[C : 2 * C], sums[2 * C :], strict=True) if a + m > 0]
    return sum(each) / len(each) if each else math.nan


KNOWN = {
    "f1": Metric(_confusions, _macro_f1),
    "mae": Metric(_absolute, lambda sums: sums[0] / sums[1]),
    "mse": Metric(_squared, lambda sums: sums[0] / sums[1]),
    "rmse": Metric(_squared, lambda sums: math.sqrt(sums[0] / sums[1])),
    "r2": Metric(_squared, _r2),
}
"""Metrics by name: macro F1 for classes, the others for targets that are real numbers."""
LONGEST = 100
"""Characters of a name."""


@dataclass(frozen=True)
class _Mean:
    """The mean over samples of somebody's own function."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = self.function(outputs, targets)
        if not isinstance(values, Tensor) or values.shape != (len(targets),):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"it must give one value for each of {len(targets)} samples, got {got}")
        values = values.cpu().double()
        return torch.stack([values.sum(), values.new_tensor(len(values))])


def as_metrics(given: object) -> dict[str, Metric]:
    """Metrics by name: names of :data:`KNOWN`, or functions of outputs and targets with a value for each sample."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        found = {}
        for name, function in given.items():
            if not isinstance(name, str) or name in ("accuracy", "loss", *KNOWN):
                raise invalid("metrics", "a dict from new names to functions", name)
            if not (name.isprintable() and 0 < len(name) <= LONGEST):
                raise invalid("metrics", f"a dict from printable names of at most {LONGEST} characters", name)
            if not callable(function):
                raise invalid(f"metrics[{name!r}]", "a function f(outputs, targets) with a value a sample", function)
            found[name] = Metric(_Mean(function), lambda sums: sums[0] / sums[1])
        return found
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise invalid("metrics", "a list of names or a dict of functions by name", given)
    for name in given:
        if not isinstance(name, str) or name not in KNOWN:
            raise unknown("metric", name, sorted(KNOWN), "" if isinstance(name, str) else "Give a dict of functions.")
    return {name: KNOWN[name] for name in given}


def check_metrics(metrics: Mapping[str, Metric], outputs: Tensor, targets: Tensor) -> None:
    """Refuse metrics that cannot be taken of a model's outputs."""
    for name, metric in metrics.items():
        try:
            metric.value(metric.sums(outputs, targets).tolist())
        except Exception as error:  # whatever a stranger's function may raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelError(f"the metric {name} cannot be taken of this model's outputs: {reason}.") from None
