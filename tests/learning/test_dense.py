"""The hand-written gradient of dense networks against autograd."""

import pytest
import torch
from torch import nn

from fedkeel.learning import models
from fedkeel.learning.averaging import Averaging
from fedkeel.learning.correction import Correction
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.losses import squared_hinge
from fedkeel.learning.rule import Rule
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Batch, Task


def in_turn(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), activation, nn.Linear(4, 6), activation, nn.Linear(6, 3))


NETS = {
    "one layer": lambda: nn.Linear(5, 3),
    "no bias": lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)),
    "tanh, staged": lambda: Staged(
        {"a": nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.Tanh()), "b": nn.Linear(4, 3)}
    ),
    "one activation in two places": lambda: in_turn(nn.ReLU()),
    "no activation between": lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("padded", [False, True])
def test_gradient_equals_autograd(name: str, padded: bool) -> None:
    torch.manual_seed(0)
    task = Task(NETS[name](), dtype=torch.float64)
    assert task.dense is not None
    K, B = 3, 7
    y = torch.stack([task.w0 + 0.1 * torch.randn(task.d, dtype=torch.float64) for _ in range(K)])
    x, targets = torch.randn(K, B, 5, dtype=torch.float64), torch.randint(0, 3, (K, B))
    weight = torch.rand(K, B, dtype=torch.float64) if padded else None
    batch, b = Batch(x, targets, weight), task.b0.expand(K, -1)
    ours, loss, _ = task.gradient(y, b, batch)
    task.dense = None
    expected, expected_loss, _ = task.gradient(y, b, batch)
    assert torch.allclose(ours, expected, atol=1e-14)
    assert torch.allclose(loss, expected_loss, atol=1e-14)


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.fc(x)


def twice() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(5, 3))


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    net[2].weight = net[0].weight
    return net


def half_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "module",
    [
        Doubles(),
        half_frozen(),
        twice(),
        tied(),
        nn.Sequential(nn.ReLU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)),
    ],
    ids=lambda module: str(module)[:40],
)
def test_other_networks_are_left_to_autograd(module: nn.Module) -> None:
    assert Task(module).dense is None


def test_other_losses_are_left_to_autograd() -> None:
    assert Task(nn.Linear(5, 1), squared_hinge()).dense is None


@pytest.mark.parametrize("name", ["logistic", "2nn", "emnist_nn", "linear_synth"])
def test_the_dense_models_of_the_zoo_are_recognised(name: str) -> None:
    assert Task(models.build(name)).dense is not None


CORRECTIONS = {
    "none": lambda K, d: None,
    "shift for all": lambda K, d: Correction(constant=torch.randn(d, dtype=torch.float64)),
    "pull by client": lambda K, d: Correction(
        slope=torch.rand(K, 1, dtype=torch.float64), constant=torch.randn(K, d, dtype=torch.float64)
    ),
    "share": lambda K, d: Correction(share=0.3),
    "share and pull by client": lambda K, d: Correction(
        slope=torch.rand(K, 1, dtype=torch.float64), constant=torch.randn(K, d, dtype=torch.float64), share=0.3
    ),
    "slope and decay": lambda K, d: Correction(slope=0.3, decay=torch.rand(K, 1, dtype=torch.float64)),
}


K = 3


def four_steps(unequal: bool) -> tuple[Task, list[Batch]]:
    """39 parameters and four batches of three clients; unequal: the second has fewer samples, the third none."""
    torch.manual_seed(0)
    task = Task(NETS["tanh, staged"](), dtype=torch.float64)
    weight = torch.zeros(K, 6, dtype=torch.float64)
    weight[0], weight[1, :3] = 1 / 6, 1 / 3
    mask = (weight, torch.tensor([True, True, False])) if unequal else (None, None)
    return task, [
        Batch(torch.randn(K, 6, 5, dtype=torch.float64), torch.randint(0, 3, (K, 6)), *mask) for _ in range(4)
    ]


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("unequal", [False, True])
def test_the_folded_step_is_the_step_of_the_loop(name: str, unequal: bool) -> None:
    """Four steps with decay and correction folded into the products, against the loop that takes them in turn."""
    task, steps = four_steps(unequal)
    y, b = task.w0.expand(K, -1), task.b0.expand(K, -1)
    correction = CORRECTIONS[name](K, task.d)
    folded = train(task, y, b, steps, Sgd(0.1, weight_decay=0.01), Rule(correction=correction))
    task.dense = None
    plain = train(task, y, b, steps, Sgd(0.1, weight_decay=0.01), Rule(correction=correction))
    assert torch.allclose(folded.y, plain.y, atol=1e-13)
    assert torch.allclose(folded.loss, plain.loss, atol=1e-13)
    if unequal:
        assert torch.equal(folded.y[2], y[2])


PARTS = {
    "last layer": ([slice(24, 39)], True),
    "all": ([slice(0, 39)], True),
    "two stretches": ([slice(0, 24), slice(24, 39)], True),
    "weights only": ([slice(24, 36)], False),
    "half a layer": ([slice(0, 10)], False),
    "some biases": ([slice(22, 24)], False),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("unequal", [False, True])
def test_averaged_steps_fold_where_whole_layers_are_averaged(name: str, unequal: bool) -> None:
    """4 · 5 + 4 and 3 · 4 + 3 parameters. Four steps against the loop; m moves for those only who take a step."""
    parts, folds = PARTS[name]
    task, steps = four_steps(unequal)
    y, b = task.w0.expand(K, -1), task.b0.expand(K, -1)
    start = torch.randn(K, sum(part.stop - part.start for part in parts), dtype=torch.float64)
    correction = Correction(slope=0.3, constant=torch.randn(task.d, dtype=torch.float64), share=0.7)
    one, two = Averaging(parts, 0.4, start.clone()), Averaging(parts, 0.4, start.clone())
    assert task.dense is not None
    assert task.dense.can_average(one) == folds
    folded = train(task, y, b, steps, Sgd(0.1, weight_decay=0.01), Rule(correction=correction, averaging=one))
    task.dense = None
    plain = train(task, y, b, steps, Sgd(0.1, weight_decay=0.01), Rule(correction=correction, averaging=two))
    assert torch.allclose(folded.y, plain.y, atol=1e-13)
    assert torch.allclose(one.m, two.m, atol=1e-13)
    assert not torch.allclose(one.m[0], start[0])
    if unequal:
        assert torch.equal(folded.y[2], y[2])
        assert torch.equal(one.m[2], start[2])
