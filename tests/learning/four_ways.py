"""The same steps computed in four ways: dense kernels or plain autograd, clients stacked or one by one.

Three clients take 4, 2 and 3 steps on minibatches of 3, 4 and 2 samples, so that a stack has padding of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkeel.engine.stacking import stacked
from fedkeel.learning.loop import Sgd, Trained, train
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Batch, Task

STEPS, WIDTHS, CLASSES = torch.tensor([4, 2, 3]), (3, 4, 2), 3
RuleOf = Callable[[Task, slice], Rule]
"""The rule of some of the clients."""


def task(dense: bool, *between: nn.Module) -> Task:
    """A network of two dense layers, by hand or by autograd alone."""
    torch.manual_seed(3)
    found = Task(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), *between, nn.Linear(4, CLASSES)), dtype=torch.float64)
    if not dense:
        found.use_plain_autograd()
    return found


def data() -> list[list[Batch]]:
    """Every client's minibatches."""
    key = torch.Generator().manual_seed(4)
    return [
        [
            Batch(
                torch.randn(1, width, 5, dtype=torch.float64, generator=key),
                torch.randint(CLASSES, (1, width), generator=key),
            )
            for _ in range(steps)
        ]
        for steps, width in zip(STEPS.tolist(), WIDTHS, strict=True)
    ]


def start(of: Task) -> Tensor:
    """Where the clients begin [K, d]."""
    return of.w0 + torch.tensor([[0.0], [0.1], [-0.2]], dtype=torch.float64)


def together(of: Task, sgd: Sgd, rule: RuleOf) -> Trained:
    """All clients as one computation."""
    b = of.b0.expand(3, -1)
    return train(of, start(of), b, stacked(data(), torch.float64), sgd, rule(of, slice(None)))


def one_by_one(of: Task, sgd: Sgd, rule: RuleOf) -> Trained:
    """One client after the other."""
    each = [
        train(of, start(of)[i : i + 1], of.b0.expand(1, -1), batches, sgd, rule(of, slice(i, i + 1)))
        for i, batches in enumerate(data())
    ]
    y, b, loss = (torch.cat([getattr(one, name) for one in each]) for name in ("y", "b", "loss"))
    return Trained(y, b, loss, torch.empty(3, 0))


def assert_all_the_same(sgd: Sgd, rule: RuleOf) -> Trained:
    """Four ways, one result; it is returned."""
    reference = one_by_one(task(dense=False), sgd, rule)
    for found in (
        one_by_one(task(dense=True), sgd, rule),
        together(task(dense=False), sgd, rule),
        together(task(dense=True), sgd, rule),
    ):
        torch.testing.assert_close(found.y, reference.y, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(found.loss, reference.loss, rtol=1e-11, atol=1e-13)
    return reference
