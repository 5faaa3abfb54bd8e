"""A model and its loss as functions of flat vectors."""

import pytest
import torch
from torch import nn

from fedkeel.errors import InputError, ModelError
from fedkeel.learning import models
from fedkeel.learning.losses import Loss, cross_entropy, squared_hinge
from fedkeel.learning.task import Batch, Task


def batch(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return Batch(x.unsqueeze(0), y.unsqueeze(0))


def test_gradient_equals_that_of_the_module() -> None:
    """The flat gradient is what ``backward`` puts into the module's own parameters, concatenated."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    task = Task(module, dtype=torch.float64)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    nn.functional.cross_entropy(module(x), y).backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])
    gradient, loss, _ = task.gradient(task.w0[None], task.b0[None], batch(x, y))
    assert torch.allclose(gradient[0], expected, atol=1e-15)
    assert float(loss) == pytest.approx(float(nn.functional.cross_entropy(module(x), y).detach()))


def test_batchnorm_statistics_advance_as_in_the_module() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    task = Task(module, dtype=torch.float64)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.zeros(6, dtype=torch.long)
    b = task.b0[None]
    for _ in range(2):
        _, _, b = task.gradient(task.w0[None], b, batch(x, y))
        module.train()(x)
    loaded = task.state_dict(task.w0, b[0])
    for name, tensor in module.state_dict().items():
        assert torch.allclose(loaded[name].double(), tensor.double()), name
        assert loaded[name].dtype == tensor.dtype


def test_evaluation_leaves_the_statistics_alone() -> None:
    task = Task(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    before = task.b0.clone()
    task.evaluate(task.w0, task.b0, torch.randn(5, 2), torch.zeros(5, dtype=torch.long))
    assert torch.equal(task.b0, before)


def test_squared_hinge_by_hand() -> None:
    """w = (1, 0), λ = 0.1. Sample (0.5, 0) with label +1: margin 0.5, loss ½·0.25; label −1: margin 1.5, ½·2.25.

    Mean (0.125 + 1.125)/2 = 0.625, plus 0.1/2·1 = 0.05: 0.675. Half of the predictions (sign of 0.5) are right.
    """
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 0.0]]))
    task = Task(module, squared_hinge(0.1), torch.float64)
    x = torch.tensor([[0.5, 0.0], [0.5, 0.0]], dtype=torch.float64)
    score = task.evaluate(task.w0, task.b0, x, torch.tensor([1, 0]))
    assert score.loss == pytest.approx(0.675, abs=1e-15)
    assert score.accuracy == 0.5


def test_full_gradient_in_parts_carries_the_penalty_once() -> None:
    """λ/2·‖w‖² has gradient λw. Two weighted halves of a pass must add up to the whole pass."""
    task = Task(nn.Linear(2, 1, bias=False), squared_hinge(0.1), torch.float64)
    w = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    x, y = torch.randn(1, 4, 2, dtype=torch.float64), torch.tensor([[0, 1, 1, 0]])
    weight = torch.full((1, 4), 0.25, dtype=torch.float64)
    whole = task.gradient(w, task.b0[None], Batch(x, y, weight))[0]
    halves = [
        task.gradient(w, task.b0[None], Batch(x[:, s], y[:, s], weight[:, s]))[0] for s in (slice(2), slice(2, 4))
    ]
    assert torch.allclose(whole, halves[0] + halves[1], atol=1e-15)


@pytest.mark.parametrize(
    ("model", "loss", "shape", "classes"),
    [
        ("svm", squared_hinge(0.1), (1, 28, 28), 2),
        ("2nn", cross_entropy, (1, 28, 28), 10),
        ("mlp_gradma", cross_entropy, (1, 28, 28), 10),
        ("lenet5", cross_entropy, (1, 28, 28), 10),
        ("cnn_moon", cross_entropy, (3, 32, 32), 10),
    ],
)
def test_losses_are_those_that_come_with_gradients(
    model: str, loss: Loss, shape: tuple[int, ...], classes: int
) -> None:
    """Two clients whose shares of a pass do not add up to 1, one of them with a sample of weight 0, as padding has."""
    torch.manual_seed(0)
    task = Task(models.build(model, shape, classes), loss, torch.float64)
    y = task.w0 + 0.1 * torch.randn(2, task.d, dtype=torch.float64)
    b = task.b0.expand(2, -1)
    x, targets = torch.randn(2, 5, *shape, dtype=torch.float64), torch.randint(classes, (2, 5))
    weight = torch.tensor([[0.2, 0.1, 0.1, 0.1, 0.2], [0.25, 0.25, 0.1, 0.1, 0.0]], dtype=torch.float64)
    for batch in (Batch(x, targets, weight), Batch(x, targets)):
        expected = task.gradient(y, b, batch, train=False)[1]
        assert torch.allclose(task.losses(y, b, batch), expected, rtol=1e-12, atol=0)
        assert task.dense is None or torch.equal(task.losses(y, b, batch), expected)


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    assert Task(module).d == 8


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no trainable parameter"):
        Task(nn.Flatten())


def test_half_precision_is_refused() -> None:
    with pytest.raises(InputError, match="dtype must be float32 or float64"):
        Task(nn.Linear(2, 2), dtype=torch.float16)


def test_stages_are_asked_for_by_name() -> None:
    task = Task(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="Staged"):
        task.net(task.b0, train=False).features(task.w0, torch.zeros(1, 2))
