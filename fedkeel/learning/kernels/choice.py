"""The one place that decides what is computed in a faster way than the plain loop's.

A kernel says which settings it knows. Whatever else is set, also what it has never heard of, is left to the plain loop,
against which all kernels are tested. Networks are exactly recognised ones that gave what plain torch gives (``trial``);
of any other, ``task.dense`` is None and ``task.by_hand`` false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from fedkeel.learning.correction import Correction
from fedkeel.learning.inside import Branches, Contrast, Inside
from fedkeel.learning.kernels.dense import AffinePull, DenseNet, Descent
from fedkeel.learning.kernels.inside import BranchesByHand, ByHand, ContrastByHand
from fedkeel.learning.kernels.projected import DenseWorker
from fedkeel.learning.kernels.unforgetting import UnforgettingSteps
from fedkeel.learning.kernels.uphill import uphill_by_hand
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.sgd import Sgd, used
from fedkeel.learning.task import Batch, Task, positions
from fedkeel.learning.unforgetting import Unforgetting
from fedkeel.learning.uphill import PerSample
from fedkeel.learning.uphill import uphill as plain_uphill


class Walk(Protocol):
    """Local steps of K clients on a dense network."""

    @property
    def norms(self) -> Sequence[Tensor]:
        """Of the gradient of every step so far [K], if it is clipped."""

    @property
    def acting(self) -> Sequence[int] | None:
        """How many rows had a part in each client's steps so far [K]; None where none are projected."""

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
        correction = rule.correction or Correction()
        share = 1.0 if correction.share is None else correction.share
        pull = folded(sgd, correction, y)
        return Descent(net, y, sgd.lr * share, pull, rule.averaging, rule.pace, rule.calibration)
    places = positions(batches)
    if rule.projection is not None and projects(sgd, rule, rule.projection):
        return DenseWorker(net, rule.projection, start, sgd.lr, places, all_samples)
    if rule.unforgetting is not None and places is not None and takes_back(start, sgd, rule, rule.unforgetting):
        return UnforgettingSteps(net, rule.unforgetting, sgd.lr, sgd.clip, places, all_samples)
    return None


def folds(net: DenseNet, sgd: Sgd, rule: Rule) -> bool:
    """Whether a step is y ← factor·y + offset − η·b·q with q = ∇ or m: nothing depends on the size of the gradient.

    Where step sizes change, factor, offset and η do with them; averages of gradients are not known together with that.
    """
    parts = {"correction", "calibration"} | ({"averaging"} if rule.pace is None else {"pace"})
    known = rule.used <= parts and used(sgd) <= {"lr", "weight_decay", "max_move"}
    affine = rule.correction is None or used(rule.correction) <= {"slope", "constant", "decay", "share"}
    paced = rule.pace is None or used(rule.pace) <= {"factors"}
    scored = rule.calibration is None or used(rule.calibration) <= {"scale", "shift"}
    return known and affine and paced and scored and (rule.averaging is None or net.can_average(rule.averaging))


def takes_back(start: Tensor, sgd: Sgd, rule: Rule, unforgetting: Unforgetting) -> bool:
    """Whether one client takes plain steps from w, with the plain loss, which are taken back and nothing else."""
    known = rule.used == {"unforgetting"} and used(sgd) <= {"lr", "clip", "max_move"}
    parts = {"w", "b", "gamma", "beta", "remembered", "counts"}
    alone = len(start) == 1 and start.data_ptr() == unforgetting.w.data_ptr()
    full = all(batch.weight is None for part in unforgetting.remembered for batch in part)
    return known and alone and full and used(unforgetting) <= parts


class InsideGradient(Protocol):
    """Gradients of an objective that looks inside the model."""

    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [K, d], loss [K] and buffers [K, m] of step k; ``out`` [K, d] may be overwritten for it."""


def inside_gradient(
    task: Task, batches: Iterable[Batch], rule: Inside, all_samples: Callable[[], Sequence[Batch]] | None
) -> InsideGradient:
    """The gradients of an objective of what stages give, in the fastest way there is."""
    if sees_stages(task, rule):
        if type(rule) is Contrast:
            return ContrastByHand(task, rule, positions(batches), all_samples)
        if type(rule) is Branches:
            return BranchesByHand(task, rule)
    return lambda y, b, batch, k, out: rule.gradient(task, y, b, batch)


def descends(task: Task, gradient: InsideGradient | None, sgd: Sgd, rule: Rule) -> ByHand | None:
    """Whoever can take steps along such gradients in place, if nothing but the step size is between the two."""
    plain = rule.used == {"inside"} and used(sgd) <= {"lr", "max_move"}
    return gradient if plain and isinstance(gradient, ByHand) and task.bound.moves_in_place else None


def sees_stages(task: Task, rule: Inside) -> bool:
    """Whether the layers go by hand and a rule's own formulas are all that is left to autograd."""
    chain = task.chain
    if chain is None or not task.by_hand or task.loss.l2 or not chain.cuts:
        return False
    return type(rule) is Branches or (type(rule) is Contrast and chain.gives_vectors(chain.cuts[-1]))


def uphill(
    task: Task, w: Tensor, b: Tensor, batches: Sequence[Batch], loss: PerSample, etas: Sequence[float], steps: int
) -> list[list[Tensor]]:
    """``learning.uphill.uphill``, in the fastest way there is."""
    known = task.chain is not None and task.by_hand and len(batches) and steps
    way = uphill_by_hand if known else plain_uphill
    return way(task, w, b, batches, loss, etas, steps)


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
