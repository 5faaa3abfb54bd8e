"""Metrics beside accuracy and loss, as sums over samples: parts add up to the whole, whoever computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.errors import ModelError, invalid, unknown
from fedkeel.learning.losses import in_shape_of

ROUNDING = 1e-9
"""By how much, as a share, sums of squares may be too small."""


@dataclass(frozen=True)
class Metric:
    """``sums(outputs, targets) → [k]`` of some samples in double precision; ``value(sums)`` of all of them.

    ``possible(sums)`` says whether any samples have such sums: others may have been sent by anybody.
    """

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Sequence[float]], float]
    possible: Callable[[Sequence[float]], bool]


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


def _possible_errors(sums: Sequence[float]) -> bool:
    """Errors are no less than 0, and of some targets; those of a model that diverged are not finite."""
    error, count, *_ = sums
    return not error < 0 and _is_count(count) and count > 0


def _possible_squares(sums: Sequence[float]) -> bool:
    """Besides, Σy² is at least (Σy)²/n, but for rounding."""
    _, count, total, squares = sums
    if not (_possible_errors(sums) and math.isfinite(total) and math.isfinite(squares)):
        return False
    return total * total / count <= squares * (1 + ROUNDING)


def _is_count(value: float) -> bool:
    return math.isfinite(value) and value >= 0 and value == int(value)


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


def _possible_confusions(sums: Sequence[float]) -> bool:
    """No class is right more often than it was answered or meant, and there are no more answers than labels."""
    C = len(sums) // 3
    right, answered, meant = sums[:C], sums[C : 2 * C], sums[2 * C :]
    if not all(map(_is_count, sums)) or sum(answered) > sum(meant):
        return False
    return all(r <= min(a, m) for r, a, m in zip(right, answered, meant, strict=True))


def _macro_f1(sums: Sequence[float]) -> float:
    """The mean of 2·right/(answered + meant) over all classes that were either; NaN if none was."""
    C = len(sums) // 3
    each = [2 * r / (a + m) for r, a, m in zip(sums[:C], sums[C : 2 * C], sums[2 * C :], strict=True) if a + m > 0]
    return sum(each) / len(each) if each else math.nan


def _mean(sums: Sequence[float]) -> float:
    return sums[0] / sums[1]


def _possible_mean(sums: Sequence[float]) -> bool:
    return _is_count(sums[1]) and sums[1] > 0


KNOWN = {
    "f1": Metric(_confusions, _macro_f1, _possible_confusions),
    "mae": Metric(_absolute, _mean, _possible_errors),
    "mse": Metric(_squared, _mean, _possible_squares),
    "rmse": Metric(_squared, lambda sums: math.sqrt(_mean(sums)), _possible_squares),
    "r2": Metric(_squared, _r2, _possible_squares),
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
            found[name] = Metric(_Mean(function), _mean, _possible_mean)
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
