"""FedReg: pseudo data and projections that can be computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_federation, tiny_simulation
from fedkeel.data import from_clients
from fedkeel.engine.client import local_of
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import ModelError
from fedkeel.learning.losses import squared_hinge
from fedkeel.learning.task import Batch, Task
from fedkeel.learning.unforgetting import share, turn


def one_sample(
    u: list[list[float]], x: list[float], steps: int = 1, name: str = "fedreg", **params: float
) -> Simulation:
    """One sample x of class 0, logits (⟨u_0, x⟩, ⟨u_1, x⟩), η = 1/2."""
    task = Task(nn.Linear(len(x), 2, bias=False), dtype=torch.float64)
    task.w0 = torch.tensor(u, dtype=torch.float64).flatten()
    sample = (np.array([x], np.float32), np.zeros(1, np.int64))
    federation = from_clients([sample], test=sample, classes=2)
    return Simulation(make_algorithm(name, **params), task, federation, Training(steps=steps, lr=0.5))


def test_pseudo_inputs_walk_uphill_and_carry_the_models_answer() -> None:
    """Logits (x, 0), class 0: the loss falls with x, so uphill is −1: ten steps of 0.1 from 1 lead to 0, where the
    model answers (1/2, 1/2); ten of 0.01 lead to 0.9, and the true label stays."""
    simulation = one_sample([[1.0], [0.0]], [1.0], eta_s=0.1, eta_p=0.01)
    local = local_of(simulation.job(simulation.start()), 0)
    pseudo, perturbed, counts = simulation.algorithm.pseudo_data(local)  # type: ignore[attr-defined]
    assert pseudo[0].x.flatten().tolist() == pytest.approx([0.0], abs=1e-15)
    assert pseudo[0].y.flatten().tolist() == pytest.approx([0.5, 0.5])
    assert perturbed[0].x.flatten().tolist() == pytest.approx([0.9])
    assert perturbed[0].y.tolist() == [[0]]
    assert counts.tolist() == [1]


def test_a_step_that_only_raises_the_pseudo_loss_is_undone() -> None:
    """At u = (0, 0) no input changes the loss, so x_s = x and its label is (1/2, 1/2). Every step moves y along
    (1, −1), and so does g2 = (σ − 1/2)(1, −1): the whole displacement is its component and is taken back.
    FedAvg moves; its first step alone is η/2 = 0.25."""
    stays = one_sample([[0.0], [0.0]], [1.0], steps=3)
    goes = one_sample([[0.0], [0.0]], [1.0], steps=3, name="fedavg")
    assert stays.step(stays.start())[0].server.w.abs().max() < 1e-14
    assert goes.step(goes.start())[0].server.w[0] > 0.25


def test_a_step_keeps_what_does_not_raise_the_pseudo_loss() -> None:
    """u_0 = (1, 0), u_1 = 0, x = (1, 1): the margin is 1 and the step is ±η(1 − σ(1))·(1, 1). Uphill is (−1, 0), so ten
    steps of 0.1 give x_s = (0, 1) with the label (1/2, 1/2): g2 lies along (0, 1), and that component is taken back.
    What is left lowers the loss on the perturbed input, too, so b = 0."""
    simulation = one_sample([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0], eta_s=0.1, eta_p=0.001)
    moved = 0.5 * (1 - 1 / (1 + math.exp(-1)))
    w = simulation.step(simulation.start())[0].server.w
    assert w.tolist() == pytest.approx([1 + moved, 0, -moved, 0], abs=1e-14)


def test_the_gradient_is_taken_between_the_local_and_the_global_model() -> None:
    """The second step of the same client reports the loss at γ y + (1 − γ) w, where the margin is 1 + 2γ·moved."""
    gamma = 0.3
    simulation = one_sample([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0], steps=2, gamma=gamma, eta_s=0.1, eta_p=0.001)
    margin = 1 + 2 * gamma * 0.5 * (1 - 1 / (1 + math.exp(-1)))
    _, record = simulation.step(simulation.start())
    assert record.losses == pytest.approx(((math.log1p(math.exp(-1)) + math.log1p(math.exp(-margin))) / 2,))


def test_share_is_the_coefficient_of_the_projection() -> None:
    """u = (3, 4) along g = (2, 0): ⟨u, g⟩/‖g‖² = 6/4; along zero it is zero, not undefined."""
    u = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    g = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    assert share(u, g).tolist() == [[1.5], [0.0]]


def test_clients_with_unequal_numbers_of_pseudo_batches_start_over_one_by_one() -> None:
    """Client 0 has one batch of 2, client 1 has batches of 2 and 1: at step 1 they take their batches 0 and 1."""
    first = Batch(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[0, 1], [1, 0]]))
    second = Batch(
        torch.tensor([[[0.0]], [[5.0]]]),
        torch.tensor([[0], [1]]),
        torch.tensor([[0.0], [1.0]]),
        torch.tensor([False, True]),
    )
    counts = torch.tensor([1, 2])
    assert turn([first, second], counts, 2) is first
    mixed = turn([first, second], counts, 1)
    assert mixed.x.squeeze(-1).tolist() == [[1.0, 2.0], [5.0, 0.0]]
    assert mixed.y.tolist() == [[0, 1], [1, 0]]
    assert mixed.weight is not None
    assert mixed.weight.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def test_the_pseudo_pass_sees_every_sample_once_in_an_order_of_its_own() -> None:
    schedule = RandomSchedule(Training(epochs=1, batch_size=4), seed=3)
    plan = schedule.pseudo_batches(2, 1, 10)
    assert [len(rows) for rows in plan] == [4, 4, 2]
    assert sorted(np.concatenate(plan)) == list(range(10))
    assert [rows.tolist() for rows in plan] == [rows.tolist() for rows in schedule.pseudo_batches(2, 1, 10)]
    assert [rows.tolist() for rows in plan] != [rows.tolist() for rows in schedule.batches(2, 1, 10, 3)]


def test_only_the_model_travels() -> None:
    simulation = tiny_simulation(make_algorithm("fedreg", mask=True), participation=0.6)
    _, record = simulation.step(simulation.start())
    assert record.bytes_down == record.bytes_up == 3 * simulation.task.d * 8


def test_a_loss_without_class_probabilities_is_refused() -> None:
    task = Task(nn.Linear(6, 1), squared_hinge())
    simulation = Simulation(make_algorithm("fedreg"), task, tiny_federation(), Training(epochs=1))
    with pytest.raises(ModelError, match="cross_entropy"):
        simulation.step(simulation.start())


class _Indexed(nn.Module):
    """Takes its inputs for numbers of rows in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x.long().abs() % 4)[:, :2].flatten(1))


def test_inputs_without_a_gradient_are_told() -> None:
    with pytest.raises(ModelError, match="has none at its inputs"):
        fedkeel.train("fedreg", model=_Indexed(), data=tiny_federation(), rounds=1, executor="serial")
