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
from fedkeel.learning.kernels.chain import Chain, Passed
from fedkeel.learning.losses import cross_entropy
from fedkeel.learning.task import Batch, Task

TABLE_BYTES = 1 << 26
"""Features of all samples are kept if they are not larger than this."""
SHORTEST = 1e-8
"""Length below which a vector counts as so long, as in ``torch.nn.functional.cosine_similarity``."""
AT_ONCE = 250
"""Samples of which they are computed at a time, so that the intermediate results stay in cache."""


Errors = tuple[Tensor, Sequence[Passed], Tensor, dict[int, Tensor]]
"""An objective's value; the way through the layers, and its derivatives by the outputs and by what goes into layers."""


class ByHand:
    """Gradients of an objective, or steps along them, client by client."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def errors(self, i: int, chain: Chain, one: Batch, k: int) -> Errors:
        """Of client i's samples of step k."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, y: Tensor, b: Tensor, batch: Batch, k: int, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses = []
        for i in range(len(y)):
            chain = self._task.bound.chain_at(y[i], b[i])
            value, way, error, joining = self.errors(i, chain, batch.of(i), k)
            self._task.bound.back(chain, way, error, out[i], joining)
            losses.append(value)
        return out, torch.stack(losses), b

    @torch.no_grad()
    def descend(self, y: Tensor, b: Tensor, batch: Batch, k: int, lr: float) -> Tensor:
        """Take a step y ← y − lr·∇ in place, where the layers can (``moves_in_place``); the values before it [K].

        The products add straight into the parameters: the gradient, as large as the model, is never written.
        """
        losses = []
        for i in range(len(y)):
            chain = self._task.bound.chain_at(y[i], b[i])
            value, way, error, joining = self.errors(i, chain, batch.of(i), k)
            chain.descend(way, error, lr, joining)
            losses.append(value)
        return torch.stack(losses)


class ContrastByHand(ByHand):
    """Of ``Contrast``."""

    def __init__(
        self,
        task: Task,
        rule: Contrast,
        positions: Sequence[Tensor] | None,
        all_samples: Callable[[], Sequence[Batch]] | None,
    ) -> None:
        super().__init__(task)
        self._rule, self._positions = rule, positions
        assert task.chain is not None
        self._cut = task.chain.cuts[-1]
        # Who has nothing to stand off from has no contrast, whatever the features are.
        self._contrasts: list[bool] = rule.counts[:, 1:].any(dim=1).tolist()
        self._table = self._features_of_all(all_samples) if any(self._contrasts) else None

    def errors(self, i: int, chain: Chain, one: Batch, k: int) -> Errors:
        outputs, way = chain.forward(self._task.seen_by_chain(one.x))
        value, error = _plain_loss(self._task, outputs, one)
        if not self._contrasts[i]:
            return value, way, error, {}
        frozen = self._frozen(i, one.x, k)
        of_l, of_z = contrast(self._rule, way[self._cut].given, frozen, self._rule.counts[i], one.weight)
        return value + of_l, way, error, {self._cut: of_z}

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


class BranchesByHand(ByHand):
    """Of ``Branches``."""

    def __init__(self, task: Task, rule: Branches) -> None:
        super().__init__(task)
        self._rule = rule

    def errors(self, i: int, chain: Chain, one: Batch, k: int) -> Errors:
        upper = self._task.frozen.chain_at(self._rule.w[i], self._rule.b[i])
        z, way = chain.forward(self._task.seen_by_chain(one.x))
        grafted = [upper.forward(way[cut].given, cut) for cut in chain.cuts]
        if self._task.loss is cross_entropy:
            value, (error, *of_hybrids) = branches(
                self._rule, torch.stack([z, *(z_l for z_l, _ in grafted)]), one.y, one.weight
            )
        else:
            with torch.enable_grad():
                hybrids = torch.stack([z_l for z_l, _ in grafted]).requires_grad_()
                value = self._rule.value(self._task, z.requires_grad_(), hybrids, one)
                error, together = torch.autograd.grad(value, (z, hybrids))
            of_hybrids = list(together)
        joining = {
            cut: upper.by_inputs(back, of_z_l, cut)
            for cut, (_, back), of_z_l in zip(chain.cuts, grafted, of_hybrids, strict=True)
        }
        return value.detach(), way, error, joining


def _plain_loss(task: Task, outputs: Tensor, one: Batch) -> tuple[Tensor, Tensor]:
    """The loss of one client's outputs, and its derivative by them."""
    if task.loss is not cross_entropy or one.y.is_floating_point():
        with torch.enable_grad():
            value = task.mean_loss(outputs.requires_grad_(), one)
            (error,) = torch.autograd.grad(value, outputs)
        return value.detach(), error
    log_p = torch.log_softmax(outputs, dim=-1)
    share = _share(log_p, one.weight)
    of_log_p = torch.zeros_like(log_p).scatter_(1, one.y.unsqueeze(1), -1)
    error = torch._log_softmax_backward_data(of_log_p, log_p, 1, log_p.dtype)  # p − one-hot
    return _mean(of_log_p.mul_(log_p), share), error.mul_(share)


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


def branches(rule: Branches, both: Tensor, targets: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """``Branches.value`` under cross-entropy for outputs z and hybrids behind them [1 + M, n, C]; its derivatives.

    With p = softmax(z_l/T), q = softmax(z/T): ∂KL/∂z = (q − p)/T, and ∂KL/∂z_l = p (log p − log q − KL)/T.
    """
    M, share = len(both) - 1, _share(both[0], weight)
    logs = torch.log_softmax(both, dim=-1)
    of_logs = torch.zeros_like(logs).scatter_(2, targets.unsqueeze(1).expand(M + 1, -1, 1), -1)
    errors = torch._log_softmax_backward_data(of_logs, logs, 2, logs.dtype)  # p − one-hot
    soft = logs if rule.T == 1 else torch.log_softmax(both / rule.T, dim=-1)
    p, apart = soft.exp(), soft[1:] - soft[0]
    divergence = (p[1:] * apart).sum(dim=-1, keepdim=True)
    entropies = of_logs.mul_(logs).sum(dim=-1, keepdim=True)
    beside = (entropies[1:] * rule.lambda2).add_(divergence, alpha=rule.lambda3).sum(dim=0)
    value = _mean(torch.add(beside / M, entropies[0], alpha=rule.lambda1), share)
    strength = rule.lambda3 / (M * rule.T)
    errors[0].mul_(rule.lambda1).add_(torch.sub(p[0] * M, p[1:].sum(dim=0)), alpha=strength)
    errors[1:].mul_(rule.lambda2 / M).add_(p[1:].mul_(apart.sub_(divergence)), alpha=strength)
    return value, errors.mul_(share)


def _mean(values: Tensor, share: Tensor | float) -> Tensor:
    """The mean over samples of values [..., n, 1]; of several in front, the sum of the means."""
    return (values * share).sum()


def _share(like: Tensor, weight: Tensor | None) -> Tensor | float:
    """The weight of a sample in the mean, [n, 1] where these differ."""
    return 1 / len(like) if weight is None else weight.unsqueeze(1)
