"""The one local-training loop.

Every algorithm trains its clients here. The order of operations is part of the definition of the methods, so it is
fixed once:

    q ← ∇loss(y; ξ)                    the gradient, or what an algorithm puts in its place
    q ← m ← α·m + (1 − α)·q            on some coordinates, if an algorithm averages gradients there
    q ← b·q + a·(y − r) + s            the algorithm's correction; b is 1 unless it mixes gradients
    q ← q·min(1, max_norm/‖q‖)         clipping, if on
    q ← q + wd·y                       weight decay, after clipping
    v ← μ·v + q;  q ← v                local momentum, if on; v = 0 at the start of every round
    q ← Adam(q)                        or Adam's direction, if on; its moments are 0 at the start of every round
    y ← y − η·f_k·q                    f_k = 1, unless an algorithm changes the step size within a round

and after the last step, if the whole move is limited to D:

    y ← y_0 + (y − y_0)·min(1, D/‖y − y_0‖)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkeel.learning.adam import Moments
from fedkeel.learning.kernels.choice import Walk, descends, fast_steps, inside_gradient
from fedkeel.learning.kernels.dense import DenseNet, mean_loss, minus_one_hot
from fedkeel.learning.rule import Rule
from fedkeel.learning.sgd import Sgd as Sgd
from fedkeel.learning.task import Batch, Task, stream


@dataclass(frozen=True)
class Trained:
    """What K clients have after local training."""

    y: Tensor
    """Parameters [K, d]."""
    b: Tensor
    """Buffers [K, m]."""
    loss: Tensor
    """Mean objective over the steps taken [K], each taken before its step."""
    norms: Tensor
    """Norm of the corrected gradient at every step before clipping [K, steps]; [K, 0] without clipping."""
    moved: Tensor | None = None
    """‖y − y_0‖ over all steps, before it is limited [K]; None without a limit, where nobody asks."""
    acting: tuple[int, ...] | None = None
    """How many rows had a part in projected gradients, over all steps and blocks [K]; None where none are projected."""


PLAIN = Rule()
"""Steps along the gradient."""


@torch.no_grad()
def train(
    task: Task,
    y: Tensor,
    b: Tensor,
    batches: Iterable[Batch],
    sgd: Sgd,
    rule: Rule = PLAIN,
    all_samples: Callable[[], Sequence[Batch]] | None = None,
) -> Trained:
    """Train K clients from parameters y [K, d] and buffers b [K, m] over their batches.

    ``all_samples`` makes all of the clients' samples in one pass, in case that something can be computed of them
    beforehand.
    """
    start = y
    steps = fast_steps(task.dense, start, batches, sgd, rule, all_samples)
    if steps is not None and task.dense is not None:
        return _limited(_walked(task.dense, steps, b, batches), start, sgd.max_move)
    correction, averaging, after_step = rule.correction, rule.averaging, rule.after_step
    unforgetting, pace = rule.unforgetting, rule.pace
    projected = None if rule.projection is None else rule.projection.gradients(task, start)
    gradient = rule.gradient if projected is None else projected
    if rule.ascent is not None:
        gradient = rule.ascent.gradients(task, start, rule.calibration)
    inside = None if rule.inside is None else inside_gradient(task, batches, rule.inside, all_samples)
    descent = descends(task, inside, sgd, rule)
    y = y.clone()
    workspace = torch.empty_like(y)
    changes_q = averaging is not None or correction is not None or sgd.clip is not None or bool(sgd.weight_decay)
    velocity = torch.zeros_like(y) if sgd.has_momentum else None
    moments = None if sgd.adam is None else Moments(sgd.adam, y)
    loss_sum, steps_taken = y.new_zeros(len(y)), y.new_zeros(len(y))
    norms: list[Tensor] = []
    for k, batch in enumerate(stream(batches)):
        if descent is not None and batch.active is None:
            loss_sum += descent.descend(y, b, batch, k, sgd.lr)
            steps_taken += 1
            continue
        if inside is not None:
            q, loss, b_after = inside(y, b, batch, k, workspace)
        elif unforgetting is not None:
            q, loss, b_after = unforgetting.gradient(task, y, b, batch)
        elif gradient is None:
            q, loss, b_after = task.gradient(y, b, batch, out=workspace, calibration=rule.calibration)
        else:
            q, loss, b_after = gradient(y, b, batch, k)
            if changes_q:  # which may still be the algorithm's own
                q = workspace.copy_(q)
        if averaging is not None:
            averaging.apply(q, batch.active)
        if correction is not None:
            correction.add_to(q, y, k)
        if sgd.clip is not None:
            norm = torch.linalg.vector_norm(q, dim=1)
            # The 1e-6 is torch.nn.utils.clip_grad_norm_'s, which the papers' programs call.
            factor = (sgd.clip / (norm + 1e-6)).clamp(max=1.0)
            if bool((factor < 1).any()):
                q.mul_(factor.unsqueeze(1))
            norms.append(norm)
        if sgd.weight_decay:
            q.add_(y, alpha=sgd.weight_decay)
        if correction is not None and correction.decay is not None:
            q.add_(correction.decay * y)
        if velocity is not None:
            velocity.mul_(sgd.momentum).add_(q)
            q = velocity
        if moments is not None:
            q = moments.direction(q, y)
        if pace is not None:
            q = q * pace.at(k)  # in new memory, since the velocity does not slow down
        if batch.active is not None:
            # Clients whose steps are over stand still; their gradient is whatever the padding gave.
            q = torch.where(batch.active.unsqueeze(1), q, 0)
            b_after = torch.where(batch.active.unsqueeze(1), b_after, b)
            loss = torch.where(batch.active, loss, 0)
        if after_step is None and unforgetting is None:
            y.sub_(q, alpha=sgd.lr)
        else:
            moved = y.sub(q, alpha=sgd.lr)
            if after_step is not None:
                moved = after_step(moved, batch, k)
            if unforgetting is not None:
                moved = unforgetting.after_step(task, moved, k)
            y = moved if batch.active is None else torch.where(batch.active.unsqueeze(1), moved, y)
        b = b_after
        loss_sum += loss
        steps_taken += 1 if batch.active is None else batch.active
    recorded = torch.stack(norms, dim=1) if norms else y.new_empty(len(y), 0)
    acting = None if projected is None else tuple(projected.acting)
    trained = Trained(y, b, loss_sum / steps_taken.clamp(min=1), recorded, acting=acting)
    return _limited(trained, start, sgd.max_move)


def _walked(net: DenseNet, steps: Walk, b: Tensor, batches: Iterable[Batch]) -> Trained:
    """The same loop where all of a step folds into the products of a dense network."""
    log_p: list[Tensor] = []
    hots: list[Tensor] = []
    taken: list[Batch] = []
    for batch in stream(batches, net.classes):
        hots.append(minus_one_hot(batch.y, net.classes, batch.x.dtype) if batch.hot is None else batch.hot)
        log_p.append(steps.step(batch.x, hots[-1], batch.weight, batch.active))
        taken.append(batch)
    y = steps.y
    norms = torch.stack(list(steps.norms), dim=1) if len(steps.norms) else y.new_empty(len(y), 0)
    acting = None if steps.acting is None else tuple(steps.acting)
    return Trained(y, b, _mean_over_steps(log_p, hots, taken, y), norms, acting=acting)


def _mean_over_steps(log_p: list[Tensor], hots: list[Tensor], batches: list[Batch], y: Tensor) -> Tensor:
    """Each client's mean cross-entropy over the steps that it took [K], all at once: a step is short."""
    if not log_p:
        return y.new_zeros(len(y))
    shape = hots[0].shape
    if all(batch.weight is None and batch.active is None and batch.y.shape[1] == shape[2] for batch in batches):
        return torch.stack(log_p).mul_(torch.stack(hots)).sum(dim=2).mean(dim=(0, 2))
    parts = zip(log_p, hots, batches, strict=True)
    losses = torch.stack([mean_loss(own, hot, batch.weight) for own, hot, batch in parts])
    everybody = torch.ones(len(y), dtype=torch.bool, device=y.device)
    took = torch.stack([everybody if batch.active is None else batch.active for batch in batches])
    return (losses * took).sum(0) / took.sum(0).clamp(min=1)


def _limited(trained: Trained, start: Tensor, max_move: float | None) -> Trained:
    """What was trained, with the whole move from ``start`` [K, d] no longer than ``max_move``."""
    if max_move is None:
        return trained
    move = trained.y - start
    # In double precision, where squares of float32 do not overflow, and which not every accelerator has.
    moved = torch.linalg.vector_norm(move.cpu(), dim=1, dtype=torch.float64).to(start.device)
    factor = (max_move / moved).to(move.dtype).unsqueeze(1)
    return replace(trained, y=torch.where(factor < 1, start + move * factor, trained.y), moved=moved)
