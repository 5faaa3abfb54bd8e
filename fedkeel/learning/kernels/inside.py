"""Objectives that look inside a model (``inside``), for chains of known layers: layer by layer and without autograd.

The derivatives of an objective's formula by what stages give are written out for cross-entropy, and left to autograd
for other losses; from there they go back through the layers (``chain``). What frozen models make of a sample is the
same in every step, and is computed once a round where that is less work. Clients are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkeel.learning.inside import Branches, Contrast
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.task import Batch, Task

TABLE_BYTES = 1 << 26
"""Features of all samples are kept if they are not larger than this."""
SHORTEST = 1e-8
"""Length below which a vector counts as so long, as in ``torch.nn.functional.cosine_similarity``."""
AT_ONCE = 250
"""Samples of which they are computed at a time, so that the intermediate results stay in cache."""


class ContrastByHand:
    """The gradients of ``Contrast``."""

    def __init__(
        self,
        task: Task,
        rule: Contrast,
        positions: Sequence[Tensor] | None,
        all_samples: Callable[[], Sequence[Batch]] | None,
    ) -> None:
        self._task, self._rule, self._positions = task, rule, positions
        assert task.chain is not None
        self._cut = task.chain.cuts[-1]
        # Who has nothing to stand off from has no contrast, whatever the features are.
        self._contrasts: list[bool] = rule.counts[:, 1:].any(dim=1).tolist()
        self._table = self._features_of_all(all_samples) if any(self._contrasts) else None

    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses = []
        for i in range(len(y)):
            one = batch.of(i)
            chain = self._task.bound.chain_at(y[i], b[i])
            with torch.no_grad():
                outputs, way = chain.forward(self._task.seen_by_chain(one.x))
                value, error = _plain_loss(self._task, outputs, one)
                joining = None
                if self._contrasts[i]:
                    frozen = self._frozen(i, one.x, k)
                    of_l, of_z = contrast(self._rule, way[self._cut].given, frozen, self._rule.counts[i], one.weight)
                    value, joining = value + of_l, {self._cut: of_z}
                self._task.bound.back(chain, way, error, out[i], joining)
            losses.append(value)
        return out, torch.stack(losses), b

    def _frozen(self, i: int, x: Tensor, k: int) -> Tensor:
        """The features of the frozen models for client i's samples of step k, each of length one [n, M, f]."""
        if self._table is None or self._positions is None:
            return self._features(i, x)
        return torch.index_select(self._table, 0, self._positions[k].to(x.device))

    def _features(self, i: int, x: Tensor) -> Tensor:
        """Those of client i's models for samples x [n, ...], each of length one; zero for models that do not count."""
        found: list[Tensor | None] = []
        for model, buffers, counts in zip(
            self._rule.models[i], self._rule.buffers[i], self._rule.counts[i], strict=True
        ):
            chain = self._task.frozen.chain_at(model, buffers)
            found.append(chain.forward(self._task.seen_by_chain(x), 0, self._cut)[0] if bool(counts) else None)
        some = next(z for z in found if z is not None)
        features = torch.stack([torch.zeros_like(some) if z is None else z for z in found], dim=1)
        return features.div_(torch.linalg.vector_norm(features, dim=2, keepdim=True).clamp_(min=SHORTEST))

    @torch.no_grad()
    def _features_of_all(self, all_samples: Callable[[], Sequence[Batch]] | None) -> Tensor | None:
        """Those of all samples of the only client [n, M, f], if they are needed as often as that."""
        if self._positions is None or all_samples is None or len(self._rule.models) > 1:
            return None
        samples = all_samples()
        if sum(map(len, self._positions)) < sum(part.y.shape[1] for part in samples):
            return None
        parts = [x for part in samples for x in torch.split(part.x[0], AT_ONCE)]
        first = self._features(0, parts[0])
        n = sum(map(len, parts))
        if n * first[0].numel() * first.itemsize > TABLE_BYTES:
            return None
        table = first.new_empty(n, *first.shape[1:])
        torch.cat([first, *(self._features(0, x) for x in parts[1:])], out=table)
        return table


class BranchesByHand:
    """The gradients of ``Branches``."""

    def __init__(self, task: Task, rule: Branches) -> None:
        self._task, self._rule = task, rule

    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses = []
        for i in range(len(y)):
            one = batch.of(i)
            chain = self._task.bound.chain_at(y[i], b[i])
            upper = self._task.frozen.chain_at(self._rule.w[i], self._rule.b[i])
            with torch.no_grad():
                z, way = chain.forward(self._task.seen_by_chain(one.x))
                grafted = [upper.forward(way[cut].given, cut) for cut in chain.cuts]
                hybrids = torch.stack([z_l for z_l, _ in grafted])
                if self._task.loss is cross_entropy:
                    value, error, of_hybrids = branches(self._rule, z, hybrids, one.y, one.weight)
                else:
                    with torch.enable_grad():
                        value = self._rule.value(self._task, z.requires_grad_(), hybrids.requires_grad_(), one)
                        error, of_hybrids = torch.autograd.grad(value, (z, hybrids))
                joining = {
                    cut: upper.by_inputs(back, of_z_l, cut)
                    for cut, (_, back), of_z_l in zip(chain.cuts, grafted, of_hybrids, strict=True)
                }
                self._task.bound.back(chain, way, error, out[i], joining)
            losses.append(value.detach())
        return out, torch.stack(losses), b


def _plain_loss(task: Task, outputs: Tensor, one: Batch) -> tuple[Tensor, Tensor]:
    """The loss of one client's outputs, and its derivative by them."""
    if task.loss is not cross_entropy or one.y.is_floating_point():
        with torch.enable_grad():
            value = task.mean_loss(outputs.requires_grad_(), one)
            (error,) = torch.autograd.grad(value, outputs)
        return value.detach(), error
    hot = one.y.unsqueeze(1)
    log_p = torch.log_softmax(outputs, dim=-1)
    share = _share(log_p, one.weight)
    value = -_mean(log_p.gather(1, hot), share)
    return value, log_p.exp_().scatter_add_(1, hot, _minus_ones(hot, log_p)).mul_(share)


def contrast(rule: Contrast, z: Tensor, frozen: Tensor, counts: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """μ·ℓ for features z [n, f] and frozen ones of length one [n, M, f], and its derivative by z.

    With c_j = cos(z, z_j) and q = softmax(c/T): ∂ℓ/∂c = (q − e_0)/T, and ∂c_j/∂z = (z_j − c_j ẑ)/‖z‖.
    """
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_(min=SHORTEST)
    direction = z / length
    c = (frozen * direction.unsqueeze(1)).sum(dim=2)
    log_q = torch.log_softmax((c / rule.T).masked_fill_(~counts, -torch.inf), dim=1)
    share = _share(z, weight)
    value = -rule.mu * _mean(log_q[:, :1], share)
    of_c = log_q.exp_()
    of_c[:, 0] -= 1
    of_c.mul_(share * (rule.mu / rule.T))
    towards = (of_c.unsqueeze(2) * frozen).sum(dim=1)
    along = (of_c * c).sum(dim=1, keepdim=True)
    return value, towards.addcmul_(along, direction, value=-1).div_(length)


def branches(
    rule: Branches, z: Tensor, hybrids: Tensor, targets: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``Branches.value`` under cross-entropy for outputs z [n, C] and hybrids [M, n, C]; its derivatives by both.

    With p = softmax(z_l/T), q = softmax(z/T): ∂KL/∂z = (q − p)/T, and ∂KL/∂z_l = p (log p − log q − KL)/T.
    """
    M, share = len(hybrids), _share(z, weight)
    hot = targets.unsqueeze(1).expand(M + 1, -1, 1)
    both = torch.cat([z.unsqueeze(0), hybrids])
    logs = torch.log_softmax(both, dim=-1)
    soft = logs if rule.T == 1 else torch.log_softmax(both / rule.T, dim=-1)
    p, apart = soft.exp(), soft[1:] - soft[0]
    divergence = (p[1:] * apart).sum(dim=-1, keepdim=True)
    own, others = logs.gather(2, hot).split_with_sizes([1, M])
    value = rule.lambda3 * _mean(divergence, share) - rule.lambda2 * _mean(others, share)
    value = value / M - rule.lambda1 * _mean(own, share)
    errors = p.clone() if rule.T == 1 else logs.exp()
    errors.scatter_add_(2, hot, _minus_ones(hot, z))
    strength = rule.lambda3 / (M * rule.T)
    errors[0].mul_(rule.lambda1).add_(torch.sub(p[0] * M, p[1:].sum(dim=0)), alpha=strength)
    errors[1:].mul_(rule.lambda2 / M).add_(p[1:].mul_(apart.sub_(divergence)), alpha=strength)
    errors.mul_(share)
    return value, errors[0], errors[1:]


def _minus_ones(like: Tensor, values: Tensor) -> Tensor:
    return values.new_full((1,) * like.dim(), -1.0).expand_as(like)


def _mean(values: Tensor, share: Tensor | float) -> Tensor:
    """The mean over samples of values [..., n, 1]; of several in front, the sum of the means."""
    return (values * share).sum()


def _share(like: Tensor, weight: Tensor | None) -> Tensor | float:
    """The weight of a sample in the mean, [n, 1] where these differ."""
    return 1 / len(like) if weight is None else weight.unsqueeze(1)
