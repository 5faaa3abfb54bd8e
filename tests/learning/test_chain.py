"""The hand-written gradient of chains with convolutions against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedkeel.learning import models
from fedkeel.learning.kernels.chain import recognise
from fedkeel.learning.losses import squared_hinge
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Batch, Task


def in_turn(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), activation, nn.Conv2d(6, 4, 3), activation, nn.Flatten(), nn.Linear(64, 3))


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(4, 3)
    ),
    "every setting": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), bias=False),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.Conv2d(4, 6, 2, dilation=2, groups=2, padding=1),
        nn.MaxPool2d((2, 1), stride=(1, 1)),
        nn.Identity(),
        nn.Flatten(),
        nn.Linear(72, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 3),
    ),
    "staged": lambda: Staged(
        {"body": nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten()), "head": nn.Linear(108, 3)}
    ),
    "one activation in two places": lambda: in_turn(nn.ReLU()),
    "two classes": lambda: nn.Sequential(nn.Conv2d(2, 1, 8), nn.Flatten()),
    "pooled first": lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 3)),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [name for name in CHAINS if name != "two classes"])
def test_gradient_equals_autograd(name: str, padded: bool) -> None:
    """Autograd through ``torch.func.functional_call`` on the module as it was given, images not in channels_last."""
    torch.manual_seed(0)
    module = CHAINS[name]()
    task = Task(module, dtype=torch.float64)
    assert task.bound._chain is not None
    x, targets = torch.randn(5, 2, 8, 8, dtype=torch.float64), torch.randint(0, 3, (5,))
    weight = torch.rand(5, dtype=torch.float64) if padded else None
    images = x.contiguous(memory_format=torch.channels_last)
    batch = Batch(images[None], targets[None], None if weight is None else weight[None])
    ours, loss, _ = task.gradient(task.w0[None], task.b0[None], batch)
    one = Batch(x, targets, weight)
    w = task.w0.clone().requires_grad_()
    value = task.objective(task.net(task.b0, True), w, one, {})
    (expected,) = torch.autograd.grad(value, w)
    assert torch.allclose(ours[0], expected, rtol=1e-12, atol=1e-14)
    assert float(loss) == pytest.approx(float(value.detach()), rel=1e-12)


@pytest.mark.parametrize("name", ["lenet_w3", "cnn_moon", "cnn_fedveca_mnist"])
def test_models_of_the_papers_are_chains(name: str) -> None:
    assert Task(models.build(name)).bound._chain is not None


def test_other_losses_work_as_well() -> None:
    torch.manual_seed(0)
    task = Task(CHAINS["two classes"](), squared_hinge(), torch.float64)
    x, targets = torch.randn(1, 5, 2, 8, 8, dtype=torch.float64), torch.randint(0, 2, (1, 5))
    ours = task.gradient(task.w0[None], task.b0[None], Batch(x, targets))[0]
    task.bound._chain = None
    assert torch.allclose(ours, task.gradient(task.w0[None], task.b0[None], Batch(x, targets))[0], rtol=1e-12)


def half_frozen() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3))
    net[0].requires_grad_(False)
    return net


def used_twice() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), conv)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    net[1].weight = net[0].weight
    return net


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.conv(x)
        return out


@pytest.mark.parametrize(
    "module",
    [
        half_frozen(),
        used_twice(),
        tied(),
        Residual(),
        nn.Sequential(nn.ReLU(), nn.Conv2d(2, 3, 3)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Tanh()),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout(0.5)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.LeakyReLU()),
        nn.Sequential(nn.Conv2d(2, 3, 3, padding="same")),
        nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(6, 3)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(2)),
        nn.Sequential(nn.Linear(5, 3), nn.Flatten()),
        nn.Sequential(nn.MaxPool2d(2), nn.Linear(5, 3)),
    ],
    ids=lambda module: str(module).replace("\n", "")[:60],
)
def test_anything_else_is_left_to_autograd(module: nn.Module) -> None:
    assert recognise(module, [p for p in module.parameters() if p.requires_grad]) is None
