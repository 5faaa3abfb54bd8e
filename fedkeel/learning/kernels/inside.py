"""Objectives that look inside a model (``inside``), for chains of known layers: layer by layer and without autograd.

Autograd is left with an objective's own formula, whose arguments are what stages give; from there the derivatives go
back through the layers by hand (``chain``). What frozen models make of a sample is the same in every step, and is
computed once a round where that is less work. Clients are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkeel.learning.inside import Branches, Contrast
from fedkeel.learning.task import Batch, Task

TABLE_BYTES = 1 << 26
"""Features of all samples are kept if they are not larger than this."""
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
                z = way[self._cut].given.detach()
                frozen = self._frozen(i, one.x, k) if self._contrasts[i] else None
            with torch.enable_grad():
                outputs.requires_grad_()
                if frozen is None:
                    value = self._task.mean_loss(outputs, one)
                    (error,) = torch.autograd.grad(value, outputs)
                    joining = None
                else:
                    z.requires_grad_()
                    value = self._rule.value(self._task, outputs, z, frozen, self._rule.counts[i], one)
                    error, of_z = torch.autograd.grad(value, (outputs, z))
                    joining = {self._cut: of_z}
            with torch.no_grad():
                self._task.bound.back(chain, way, error, out[i], joining)
            losses.append(value.detach())
        return out, torch.stack(losses), b

    def _frozen(self, i: int, x: Tensor, k: int) -> Tensor:
        """What the frozen models make of client i's samples of step k [n, M, f]."""
        if self._table is None or self._positions is None:
            return self._features(i, x)
        return torch.index_select(self._table, 0, self._positions[k].to(x.device))

    def _features(self, i: int, x: Tensor) -> Tensor:
        """What client i's models make of samples x [n, ...]: [n, M, f], zero for those that do not count."""
        found: list[Tensor | None] = []
        for model, buffers, counts in zip(
            self._rule.models[i], self._rule.buffers[i], self._rule.counts[i], strict=True
        ):
            chain = self._task.frozen.chain_at(model, buffers)
            found.append(chain.forward(self._task.seen_by_chain(x), 0, self._cut)[0] if bool(counts) else None)
        some = next(z for z in found if z is not None)
        return torch.stack([torch.zeros_like(some) if z is None else z for z in found], dim=1)

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
            with torch.enable_grad():
                value = self._rule.value(self._task, z.requires_grad_(), hybrids.requires_grad_(), one)
                error, of_hybrids = torch.autograd.grad(value, (z, hybrids))
            with torch.no_grad():
                joining = {
                    cut: upper.by_inputs(back, of_z_l, cut)
                    for cut, (_, back), of_z_l in zip(chain.cuts, grafted, of_hybrids, strict=True)
                }
                self._task.bound.back(chain, way, error, out[i], joining)
            losses.append(value.detach())
        return out, torch.stack(losses), b
