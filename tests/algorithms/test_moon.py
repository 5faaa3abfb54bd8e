"""MOON: the contrast on a model whose features can be computed by hand, and what clients remember."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds, tiny_federation, tiny_simulation
from fedkeel.data import from_clients
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import ModelError
from fedkeel.learning.inside import Contrast
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Batch, Task
from fedkeel.state.rows import Rows


def one_sample(**params: float) -> Simulation:
    """One client with the sample x = 1: features z = (y_0, y_1), and a head of zeros, so the plain loss leaves them."""
    module = Staged({"body": nn.Linear(1, 2, bias=False), "head": nn.Linear(2, 2, bias=False)})
    with torch.no_grad():
        module.body.weight.copy_(torch.tensor([[1.0], [0.0]]))
        module.head.weight.zero_()
    sample = (np.ones((1, 1), np.float32), np.zeros(1, np.int64))
    federation = from_clients([sample], test=sample, classes=2)
    task = Task(module, dtype=torch.float64)
    return Simulation(make_algorithm("moon", **params), task, federation, Training(steps=1, lr=0.1))


def test_a_step_turns_the_features_away_from_the_previous_model() -> None:
    """z = z_w = (1, 0), z_prev = (0, 1), T = 1/2: the logits are (cos)/T = (2, 0), so the previous model has the
    probability q = 1/(1 + e²). d cos(z, z_w)/dz = 0 at z = z_w and d cos(z, z_prev)/dz = (0, 1), hence
    dℓ/dz = q/T·(0, 1), and with η = 0.1, μ = 3: z ← (1, −0.1·3·2/(1 + e²))."""
    simulation = one_sample(mu=3.0, T=0.5)
    previous = torch.tensor([[0.0, 1, 0, 0, 0, 0]], dtype=torch.float64)
    start = simulation.start()
    memory = start.clients | {"prev": Rows({0: previous}), "when": Rows({0: torch.zeros(1, dtype=torch.float64)})}
    after, _ = simulation.step(replace(start, t=1, clients=memory))
    assert after.server.w[:2].tolist() == pytest.approx([1.0, -0.6 / (1 + math.e**2)], abs=1e-14)


def test_the_features_return_to_the_global_ones() -> None:
    """No previous model would leave ℓ = 0; with z_prev = −z_w = (−1, 0), a client that starts at z = (0, 1) has
    logits (0, 0), and dℓ/dz = ½/T·((−1, 0) − (1, 0)) = (−2, 0): with η μ = 0.1 it moves to (0.2, 1), towards w."""
    simulation = one_sample(mu=1.0, T=0.5)
    z = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    w = simulation.task.w0
    contrast = Contrast(1.0, 0.5, torch.stack([w, -w])[None], torch.empty(1, 2, 0), torch.ones(1, 2, dtype=torch.bool))
    frozen, outputs = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]).double(), torch.tensor([[50.0, 0.0]]).double()
    batch = Batch(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    value = contrast.value(simulation.task, outputs, z, frozen, contrast.counts[0], batch)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert float(value.detach()) == pytest.approx(math.log(2))
    assert gradient[0].tolist() == pytest.approx([-2.0, 0.0], abs=1e-14)


def test_who_has_not_trained_has_no_contrast_which_is_the_contrast_with_the_received_model() -> None:
    """With prev = w both logits are equal and their gradients cancel, whatever y is."""
    simulation = tiny_simulation(make_algorithm("moon", mu=5.0), steps=3)
    start = simulation.start()
    seen = replace(start, clients=start.clients | {"when": Rows({i: torch.zeros(1).double() for i in range(5)})})
    plain = tiny_simulation(make_algorithm("fedavg"), steps=3)
    first = rounds(simulation, 1).server.w
    torch.testing.assert_close(first, rounds(simulation, 1, seen).server.w, rtol=0, atol=1e-14)
    torch.testing.assert_close(first, rounds(plain, 1).server.w, rtol=0, atol=1e-14)
    assert not torch.allclose(rounds(simulation, 2).server.w, rounds(plain, 2).server.w, atol=1e-4)


@pytest.mark.parametrize("buffer", [1, 2])
def test_the_program_keeps_what_every_client_held_after_each_of_the_last_rounds(buffer: int) -> None:
    """Snapshots of all N models after every round, of absent clients too, are what the memories must amount to."""
    simulation = tiny_simulation(make_algorithm("moon", mode="code", buffer=buffer), participation=0.4, steps=1)
    template = simulation.algorithm.client_init(simulation.problem)
    state = simulation.start()
    snapshots = [torch.stack([simulation.task.w0] * 5)] * buffer
    for t in range(7):
        clients = State(**{name: rows.take(range(5), template[name]) for name, rows in state.clients.items()})
        prev, _, _, valid = simulation.algorithm.contrasted(clients, t)  # type: ignore[attr-defined]
        assert torch.equal(prev, torch.stack(snapshots[-buffer:], dim=1))
        assert valid.sum(1).tolist() == [min(t, buffer)] * 5
        job = simulation.job(state)
        trained = simulation.executor.run(job).message.y
        held = snapshots[-1].clone()
        held[list(job.clients.ids)] = trained
        snapshots.append(held)
        state, _ = simulation.step(state)


def test_by_default_a_client_remembers_its_own_last_models_oldest_first() -> None:
    simulation = tiny_simulation(make_algorithm("moon", buffer=2), participation=0.4, steps=1)
    template = simulation.algorithm.client_init(simulation.problem)
    state = simulation.start()
    trained: dict[int, list[torch.Tensor]] = {i: [] for i in range(5)}
    for t in range(7):
        clients = State(**{name: rows.take(range(5), template[name]) for name, rows in state.clients.items()})
        prev, _, when, valid = simulation.algorithm.contrasted(clients, t)  # type: ignore[attr-defined]
        for i, models in trained.items():
            assert [row.tolist() for row in prev[i][valid[i]]] == [row.tolist() for row in models[-2:]]
            assert int(valid[i].sum()) == min(2, len(models))
            assert when[i, -1] < t
        job = simulation.job(state)
        for i, y in zip(job.clients.ids, simulation.executor.run(job).message.y, strict=True):
            trained[i].append(y)
        state, _ = simulation.step(state)


def test_a_previous_model_keeps_its_own_batchnorm_statistics() -> None:
    simulation = tiny_simulation(make_algorithm("moon"), sizes=(12, 7, 20, 10, 16), norm=True, drop_last=True)
    start = simulation.start()
    outcome = simulation.executor.run(simulation.job(start))
    state, _ = simulation.step(start)
    kept = torch.stack([state.clients["prev_b"][i][0] for i in range(5)])
    assert torch.equal(kept, outcome.buffers)
    assert not torch.equal(kept[0], kept[1])


def test_only_the_model_travels() -> None:
    simulation = tiny_simulation(make_algorithm("moon", buffer=2), participation=0.6)
    _, record = simulation.step(simulation.start())
    assert record.bytes_down == record.bytes_up == 3 * simulation.task.d * 8


@pytest.mark.parametrize("name", ["moon", "fedmlb"])
@pytest.mark.parametrize(
    ("module", "said"),
    [(Staged({"head": nn.Linear(6, 3)}), "at least two stages"), (nn.Linear(6, 3), "cut into stages")],
)
def test_a_model_without_an_inside_is_refused(name: str, module: nn.Module, said: str) -> None:
    simulation = Simulation(make_algorithm(name), Task(module), tiny_federation(), Training(epochs=1))
    with pytest.raises(ModelError, match=said):
        simulation.step(simulation.start())
