"""FedNTD's objective by hand, against plain torch, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedkeel.algorithms.fedntd import not_true
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import CLASSES, rounds, tiny_simulation
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import ModelError
from fedkeel.learning.inside import divergence
from tests.algorithms.quadratic import simulation as quadratics


def test_the_other_classes() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 3)
    assert not_true(logits, torch.tensor([0, 2, 3])).tolist() == [[1, 2, 3], [0, 1, 3], [0, 1, 2]]


def test_the_divergence_by_hand() -> None:
    """Of class 0, so that its logits do not count: global (ln 3, 0) is (¾, ¼), local (0, 0) is (½, ½).

    KL = ¾ ln(¾/½) + ¼ ln(¼/½) = ¾ ln 3 − ln 2.
    """
    kept, own = torch.tensor([[9.0, math.log(3), 0.0]]), torch.tensor([[-5.0, 0.0, 0.0]])
    target = torch.tensor([0])
    found = divergence(not_true(kept, target), not_true(own, target))
    assert float(found) == pytest.approx(0.75 * math.log(3) - math.log(2))


def tiny(name: str, **params: float) -> Simulation:
    """One client, whose four batches are all of its 12 samples."""
    return tiny_simulation(make_algorithm(name, **params), (12,), steps=4, batch_size=12, lr=0.5)


def test_local_steps_against_plain_torch() -> None:
    """With an ordinary module, its optimiser, and KLDivLoss over the logits that are left by a mask."""
    run = tiny("fedntd", beta=0.7, tau=2.0)
    data = run.samples.data_of(0)
    x, y = data.x, data.y
    local, kept = (run.task.module_at(run.task.w0, run.task.b0) for _ in range(2))
    others = torch.ones(len(y), CLASSES, dtype=torch.bool).scatter(1, y.unsqueeze(1), False)
    optimiser = torch.optim.SGD(local.parameters(), lr=0.5)
    for _ in range(4):
        optimiser.zero_grad()
        student, teacher = (model(x)[others].view(len(y), CLASSES - 1) / 2 for model in (local, kept))
        kl = torch.nn.KLDivLoss(reduction="batchmean")(student.log_softmax(1), teacher.detach().softmax(1))
        (F.cross_entropy(local(x), y) + 0.7 * kl).backward()
        optimiser.step()
    expected = torch.cat([tensor.detach().flatten() for tensor in local.parameters()])
    assert torch.allclose(rounds(run, 1).server.w, expected, rtol=0, atol=1e-12)
    assert float((rounds(tiny("fedavg"), 1).server.w - expected).abs().max()) > 1e-4


def test_what_it_cannot_compare() -> None:
    """Of two classes one is left, whose share is always 1; probabilities have no true class."""
    with pytest.raises(ModelError, match="at least three classes"):
        not_true(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ModelError, match="one label"):
        not_true(torch.zeros(4, 3), torch.full((4, 3), 1 / 3))


def test_other_losses_are_refused() -> None:
    run = quadratics(make_algorithm("fedntd"), [(1, 1)], steps=1)
    with pytest.raises(ModelError, match="needs a model with the loss cross_entropy, got value"):
        run.step(run.start())
