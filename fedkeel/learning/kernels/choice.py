"""The one place that decides which local steps are taken in a faster way than the plain loop's.

A kernel says which settings it knows. Whatever else is set, also what it has never heard of, is left to the plain loop,
against which all kernels are tested. Networks are exactly recognised ones that gave what plain torch gives (``trial``);
of any other, ``task.dense`` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from fedkeel.learning.correction import Correction
from fedkeel.learning.kernels.dense import AffinePull, DenseNet, Descent
from fedkeel.learning.kernels.projected import DenseWorker
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.sgd import Sgd, used
from fedkeel.learning.task import Batch, positions


class Walk(Protocol):
    """Local steps of K clients on a dense network."""

    def step(self, x: Tensor, hot: Tensor, weight: Tensor | None, active: Tensor | None) -> Tensor:
        """Take a step on inputs [K, B, ...] and targets as of ``minus_one_hot``; give log p before it [K, classes, B].

        Whoever is not ``active`` [K] has a batch of ``weight`` zero and stands still.
        """

    @property
    def y(self) -> Tensor:
        """The parameters after the steps so far [K, d]."""


def fast_steps(
    net: DenseNet | None,
    start: Tensor,
    batches: Iterable[Batch],
    sgd: Sgd,
    rule: Rule,
    all_samples: Callable[[], Sequence[Batch]] | None,
) -> Walk | None:
    """A faster way to take these steps from ``start`` [K, d], or None if there is none."""
    if net is None:
        return None
    if folds(net, sgd, rule):
        y = start.clone()
        return Descent(net, y, sgd.lr, folded(sgd, rule.correction or Correction(), y), rule.averaging)
    if rule.projection is not None and projects(sgd, rule, rule.projection):
        return DenseWorker(net, rule.projection, start, sgd.lr, positions(batches), all_samples)
    return None


def folds(net: DenseNet, sgd: Sgd, rule: Rule) -> bool:
    """Whether a step is y ← factor·y + offset − η·q with q = ∇ or m: nothing depends on the size of the gradient."""
    known = rule.used <= {"correction", "averaging"} and used(sgd) <= {"lr", "weight_decay", "max_move"}
    affine = rule.correction is None or used(rule.correction) <= {"slope", "constant", "decay"}
    return known and affine and (rule.averaging is None or net.can_average(rule.averaging))


def projects(sgd: Sgd, rule: Rule, projection: Projection) -> bool:
    """Whether a step is y ← y − η·QP(g, G) and nothing else."""
    known = rule.used == {"projection"} and used(sgd) <= {"lr", "max_move"}
    # A dense network draws nothing, so that it does not matter whether its gradients would draw each for itself.
    parts = {"rows", "before", "rho", "bounds", "own_draws"}
    return known and used(projection) <= parts and bool(projection.rows)


def folded(sgd: Sgd, correction: Correction, y: Tensor) -> AffinePull | None:
    """What a step does to y apart from the gradient: y − η·(slope·y + constant + wd·y + decay·y)."""
    rate: Tensor | float = sgd.weight_decay
    for part in (correction.slope, correction.decay):
        rate = rate if part is None else rate + part
    if correction.constant is None and not isinstance(rate, Tensor) and rate == 0:
        return None
    offset = None if correction.constant is None else (-sgd.lr * correction.constant).expand_as(y).contiguous()
    return AffinePull(1 - sgd.lr * rate, offset)
