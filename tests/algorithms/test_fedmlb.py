"""FedMLB: the hybrid paths on a model of three numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.data import from_clients
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.inside import divergence
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Task

LN3 = math.log(3)


def three_numbers(steps: int, **params: float) -> torch.Tensor:
    """(a, u_0, u_1) after steps with η = 1 from a = 1, u = (ln 3, 0); logits a·u of the one sample, of class 0."""
    module = Staged({"body": nn.Linear(1, 1, bias=False), "head": nn.Linear(1, 2, bias=False)})
    with torch.no_grad():
        module.body.weight.fill_(1.0)
        module.head.weight.copy_(torch.tensor([[LN3], [0.0]], dtype=torch.float64))
    task = Task(module, dtype=torch.float64)
    task.w0[1] = LN3  # the module was float32
    sample = (np.ones((1, 1), np.float32), np.zeros(1, np.int64))
    federation = from_clients([sample], test=sample, classes=2)
    simulation = Simulation(make_algorithm("fedmlb", **params), task, federation, Training(steps=steps, lr=1.0))
    w: torch.Tensor = simulation.step(simulation.start())[0].server.w
    return w


def test_the_first_step_adds_the_hybrid_loss_to_the_lower_stage_only() -> None:
    """The logits (ln 3, 0) give p = (3/4, 1/4), so dCE/dz = (−1/4, 1/4); du = a dz and da = ⟨u, dz⟩ = −ln 3/4.
    The hybrid path's head is frozen: λ2 = 2 triples da and leaves du. KL is zero where y = w, at its minimum."""
    w = three_numbers(1, lambda1=1.0, lambda2=2.0, lambda3=7.0)
    assert w.tolist() == pytest.approx([1 + 3 * LN3 / 4, LN3 + 1 / 4, -1 / 4], abs=1e-14)


def test_later_the_client_learns_from_the_hybrid_path_and_the_hybrid_path_from_the_client() -> None:
    """Second step with λ1 = 1, λ2 = 0: from a = 1 + ln 3/4, u = (ln 3 + 1/4, −1/4), m = a(ln 3 + 1/2) is the margin of
    the client's path and h = a ln 3 that of the hybrid. With P = σ(h), Q = σ(m): dCE/dm = Q − 1,
    dKL/dm = Q − P, dKL/dh = P(1 − P)(h − m), since log(P/(1 − P)) = h and log(Q/(1 − Q)) = m.
    Then da = (dCE/dm + λ3 dKL/dm)(ln 3 + 1/2) + λ3 dKL/dh·ln 3 and du = ±(dCE/dm + λ3 dKL/dm) a."""
    lambda3 = 0.5
    a, u = 1 + LN3 / 4, (LN3 + 1 / 4, -1 / 4)
    m, h = a * (LN3 + 1 / 2), a * LN3
    P, Q = 1 / (1 + math.exp(-h)), 1 / (1 + math.exp(-m))
    dm, dh = Q - 1 + lambda3 * (Q - P), lambda3 * P * (1 - P) * (h - m)
    expected = [a - dm * (LN3 + 1 / 2) - dh * LN3, u[0] - dm * a, u[1] + dm * a]
    assert three_numbers(2, lambda1=1.0, lambda2=0.0, lambda3=lambda3).tolist() == pytest.approx(expected, abs=1e-13)


def test_the_divergence_and_its_two_gradients() -> None:
    """p = (3/4, 1/4) against q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2); by the logits of q it falls by q − p,
    by the logits of p it grows by p_i(ln(p_i/q_i) − KL) = ±3/16 ln 3."""
    p = torch.tensor([[LN3, 0.0]], dtype=torch.float64, requires_grad=True)
    q = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    value = divergence(p, q)
    by_p, by_q = torch.autograd.grad(value.sum(), (p, q))
    assert float(value.detach()) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert by_q[0].tolist() == pytest.approx([-0.25, 0.25])
    assert by_p[0].tolist() == pytest.approx([3 / 16 * LN3, -3 / 16 * LN3])


def test_batchnorm_statistics_advance_once_a_step() -> None:
    """The hybrid paths run the frozen stages in evaluation mode, so only the client's own path counts."""
    sizes = (12, 7, 20, 10, 16)
    one, two = (
        tiny_simulation(make_algorithm(name, **params), sizes=sizes, norm=True, drop_last=True, steps=3)
        for name, params in (("fedmlb", {"lambda2": 0.0, "lambda3": 0.0}), ("fedavg", {}))
    )
    mine, plain = one.step(one.start())[0], two.step(two.start())[0]
    torch.testing.assert_close(mine.b, plain.b, rtol=0, atol=1e-13)
    assert not torch.equal(mine.b, one.start().b)


def test_only_the_model_travels() -> None:
    simulation = tiny_simulation(make_algorithm("fedmlb"), participation=0.6)
    _, record = simulation.step(simulation.start())
    assert record.bytes_down == record.bytes_up == 3 * simulation.task.d * 8
