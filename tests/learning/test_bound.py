"""Models bound to a flat vector, against the functional call that they replace."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.engine.samples import array_of, as_channels_last, space_for
from fedkeel.learning import models
from fedkeel.learning.kernels.bound import pooled_before_relu, widened
from fedkeel.learning.losses import squared_hinge
from fedkeel.learning.task import Batch, Task


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 3 * 3, 4)
    )


def gradients(task: Task, y: torch.Tensor, batch: Batch, train: bool) -> list[torch.Tensor]:
    """By the bound module, and by the plain loss given as an objective, which goes through the functional call."""
    b = task.b0.expand(len(y), -1)
    bound = task.gradient(y, b, batch, train=train)
    functional = task.gradient(y, b, batch, objective=task.objective, train=train)
    return [*bound, *functional]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_gradient_loss_and_buffers_are_those_of_the_functional_call(train: bool, weighted: bool) -> None:
    torch.manual_seed(0)
    task = Task(conv_net(), dtype=torch.float64)
    y = task.w0 + 0.1 * torch.randn(2, task.d, dtype=torch.float64)
    x, targets = torch.randn(2, 5, 2, 8, 8, dtype=torch.float64), torch.randint(0, 4, (2, 5))
    weight = torch.rand(2, 5, dtype=torch.float64) if weighted else None
    g, loss, b, g2, loss2, b2 = gradients(task, y, Batch(x, targets, weight), train)
    assert torch.allclose(g, g2, atol=1e-13)
    assert torch.allclose(loss, loss2, atol=1e-13)
    assert torch.allclose(b, b2, atol=1e-13)
    assert torch.equal(b, task.b0.expand(2, -1)) != train


def test_a_vector_that_moves_in_place_is_followed() -> None:
    """Convolution weights are copies of the vector, the others views of it: both must be of this step."""
    torch.manual_seed(0)
    task = Task(conv_net(), dtype=torch.float64)
    batch = Batch(torch.randn(1, 5, 2, 8, 8, dtype=torch.float64), torch.randint(0, 4, (1, 5)))
    y = task.w0.clone().unsqueeze(0)
    out = torch.empty_like(y)
    for _ in range(3):
        g, *_ = task.gradient(y, task.b0.unsqueeze(0), batch, out=out)
        expected, *_ = task.gradient(y, task.b0.unsqueeze(0), batch, objective=task.objective)
        assert torch.allclose(g, expected, atol=1e-13)
        y.sub_(g, alpha=0.1)


def test_the_models_own_penalty_is_in_loss_and_gradient() -> None:
    torch.manual_seed(0)
    task = Task(nn.Linear(5, 1), squared_hinge(), torch.float64)
    batch = Batch(torch.randn(1, 4, 5, dtype=torch.float64), torch.tensor([[0, 1, 1, 0]]))
    g, loss, _, g2, loss2, _ = gradients(task, task.w0.unsqueeze(0), batch, True)
    assert torch.allclose(g, g2, atol=1e-15)
    assert torch.allclose(loss, loss2, atol=1e-15)


def test_a_parameter_that_takes_no_part_has_no_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.used(x))

    task = Task(Idle())
    g, *_ = task.gradient(task.w0[None], task.b0[None], Batch(torch.randn(1, 4, 5), torch.zeros(1, 4).long()))
    assert bool((g[:, task.layout.mask("layer:idle")] == 0).all())


def test_pooling_before_relu_changes_no_bit() -> None:
    torch.manual_seed(0)
    before = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 3))
    after = pooled_before_relu(copy.deepcopy(before))
    assert [type(layer) for layer in after][1:3] == [nn.MaxPool2d, nn.ReLU]
    x = torch.randn(6, 1, 8, 8)
    results = []
    for net in (before, after):
        out = net(x)
        nn.functional.cross_entropy(out, torch.arange(6) % 3).backward()
        results.append([out, *(p.grad for p in net.parameters())])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_tied_convolutions_stay_tied(name: str) -> None:
    """Widened one by one, they would be two tensors, of which one is trained."""
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(12, 4))
    setattr(net[2], name, getattr(net[1], name))
    wide = widened(copy.deepcopy(net))
    assert getattr(wide[2], name) is getattr(wide[1], name)
    task = Task(net, dtype=torch.float64)
    batch = Batch(torch.randn(1, 5, 1, 8, 8, dtype=torch.float64), torch.randint(0, 4, (1, 5)))
    g, _, _, g2, _, _ = gradients(task, task.w0[None].clone(), batch, True)
    assert torch.allclose(g, g2, atol=1e-13)


def test_widened_convolutions_compute_the_same() -> None:
    """Three channels between two convolutions become eight; outputs, gradients and the layout stay."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, 2, bias=False), nn.Flatten(), nn.Linear(20, 4)
    )
    wide = widened(copy.deepcopy(net))
    assert [tuple(p.shape) for p in wide.parameters()][:3] == [(8, 2, 3, 3), (8,), (5, 8, 2, 2)]
    task = Task(net, dtype=torch.float64)
    x, targets = torch.randn(1, 5, 2, 8, 8, dtype=torch.float64), torch.randint(0, 4, (1, 5))
    y = task.w0[None].clone()
    for _ in range(2):
        g, loss, _, g2, loss2, _ = gradients(task, y, Batch(x, targets), True)
        assert torch.allclose(g, g2, atol=1e-13)
        assert torch.allclose(loss, loss2, atol=1e-13)
        y.sub_(g, alpha=0.1)


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.BatchNorm2d(3), nn.Dropout(0.1)], ids=str)
def test_only_what_keeps_zeros_is_widened(between: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), between, nn.Conv2d(3, 5, 2))
    assert widened(copy.deepcopy(net))[0].out_channels == 3


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_channels_last_order_keep_shape_values_and_order(channels: int) -> None:
    x = torch.randn(7, channels, 4, 5)
    last = as_channels_last(x)
    rows, some = np.array([3, 0, 3]), space_for(last, 3)
    array_of(last, last).take(rows, axis=0, out=array_of(some, last), mode="clip")
    assert torch.equal(last, x)
    assert torch.equal(some, x[[3, 0, 3]])
    assert some.stride() == (20 * channels, 1, 5 * channels, channels)
    of_two_clients = space_for(last, 6).view(2, 3, channels, 4, 5)
    array_of(last, last).take(rows, axis=0, out=array_of(of_two_clients[1], last), mode="clip")
    assert torch.equal(of_two_clients[1], some)


@pytest.mark.parametrize("name", ["lenet5", "cnn_fedveca_mnist"])
def test_convolutional_models_of_the_zoo(name: str) -> None:
    torch.manual_seed(0)
    task = Task(models.build(name), dtype=torch.float64)
    x = torch.randn(1, 3, *models.spec(name).input_shape, dtype=torch.float64)
    g, loss, _, g2, loss2, _ = gradients(task, task.w0[None], Batch(x, torch.tensor([[0, 1, 1]])), True)
    assert torch.allclose(g, g2, atol=1e-12)
    assert torch.allclose(loss, loss2, atol=1e-12)
