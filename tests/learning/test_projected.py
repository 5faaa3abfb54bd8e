"""Projected steps of dense networks against the same steps with every gradient written, as GradMA takes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import combinations
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds as after
from fedkeel.check import tiny_federation
from fedkeel.engine.choice import make_executor
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.kernels import choice, projected
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.projected import Projection
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Batch, Task

MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "one layer": lambda: [nn.Linear(6, 3)],
    "three layers": lambda: [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)],
    "no bias": lambda: [nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)],
}
ROWS = [rows for size in (1, 2, 3) for rows in combinations(("prev", "global", "anchor"), size)]


def simulation(model: str, executor: str = "serial", epochs: int = 3, **params: Any) -> Simulation:
    torch.manual_seed(0)
    return Simulation(
        make_algorithm("gradma_w", **params),
        Task(nn.Sequential(*MODELS[model]()), dtype=torch.float64),
        tiny_federation((9, 12, 7, 15)),
        Training(epochs=epochs, batch_size=4, lr=0.5),
        executor=make_executor(executor, 1),
    )


def trained(model: str, dense: bool, executor: str = "serial", epochs: int = 3, **params: Any) -> Tensor:
    """The global model after four rounds, by the steps for dense networks or the general ones."""
    run = simulation(model, executor, epochs, **params)
    with (
        mock.patch.object(choice, "DenseWorker", wraps=projected.DenseWorker) as walks,
        nullcontext() if dense else mock.patch.object(choice, "projects", return_value=False),
    ):
        end: Tensor = after(run, 4).server.w
    assert walks.called == dense
    return end


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", ROWS, ids="-".join)
def test_the_steps_are_those_of_the_written_gradients(model: str, rows: tuple[str, ...]) -> None:
    assert torch.allclose(trained(model, True, rows=rows), trained(model, False, rows=rows), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "params",
    [{"blocks": "tensor"}, {"rho_l": 0.1}, {"prev_init": "global"}, {"unseen": "global"}],
    ids=lambda params: next(iter(params)),
)
def test_whatever_the_parameters(params: dict[str, Any]) -> None:
    model = "three layers"
    assert torch.allclose(trained(model, True, **params), trained(model, False, **params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_whoever_computes_and_whether_samples_come_again(executor: str) -> None:
    """With one epoch no sample comes again, and nothing is computed beforehand; for clients in a group nothing is
    either, and those of 7 to 15 samples stand still when their own steps are over.
    """
    for epochs in (1, 3):
        with (
            mock.patch.object(projected, "KnownStart", wraps=projected.KnownStart) as known,
            mock.patch.object(projected, "AnyStart", wraps=projected.AnyStart) as computed,
        ):
            ours = trained("three layers", True, executor, epochs)
        assert known.called == (epochs == 3)
        assert any(len(call.args[1]) > 1 for call in computed.call_args_list) == (executor == "stacked")
        assert torch.allclose(ours, trained("three layers", False, epochs=epochs), rtol=1e-9, atol=1e-12)


def test_what_is_known_of_the_start_is_what_would_be_computed() -> None:
    """Both ways to have the answers of x: for a minibatch with other shares than equal ones, and for all of it."""
    torch.manual_seed(0)
    task = Task(nn.Sequential(*MODELS["three layers"]()), dtype=torch.float64)
    assert task.dense is not None
    x, samples = task.w0.unsqueeze(0), torch.randn(1, 11, 6, dtype=torch.float64)
    y, rows, share = torch.randint(0, 3, (1, 11)), torch.tensor([4, 0, 10]), torch.tensor([[0.5, 0.2, 0.3]]).double()
    hot = projected.minus_one_hot(y[:, rows], 3, torch.float64)
    parts = [Batch(samples[:, :5], y[:, :5]), Batch(samples[:, 5:], y[:, 5:])]
    with mock.patch.object(projected, "AT_ONCE", 4):
        known = projected.KnownStart(task.dense, x, parts, [rows]).of(samples[:, rows], hot, share, 0)
    computed = projected.AnyStart(task.dense, x).of(samples[:, rows], hot, share, 0)
    for own, other in zip(
        [known.first, *known.inputs, *known.errors], [computed.first, *computed.inputs, *computed.errors], strict=True
    ):
        assert torch.allclose(own, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("params", [{}, {"blocks": "tensor"}, {"rows": ("prev", "anchor")}], ids=str)
def test_all_ways_count_the_same_active_conditions(params: dict[str, Any]) -> None:
    """Dense and general steps; clients one by one, and as a stack in which small ones end early."""

    def counts(executor: str, dense: bool) -> dict[int, float]:
        run = simulation("three layers", executor, **params)
        with nullcontext() if dense else mock.patch.object(choice, "projects", return_value=False):
            found = run.step(run.start())[1].noted["active_local"]
        run.executor.close()
        assert isinstance(found, dict)
        return found

    expected = counts("serial", dense=True)
    assert all(0 < count <= 3 * 6 for count in expected.values())
    assert counts("serial", dense=False) == pytest.approx(expected)
    assert counts("stacked", dense=True) == pytest.approx(expected)
    assert counts("stacked", dense=False) == pytest.approx(expected)


@pytest.mark.parametrize("dense", [True, False])
def test_what_acted_is_a_result_of_training_and_nothing_is_left_in_the_rule(dense: bool) -> None:
    """In the first step y − y_0 is 0 and forbids nothing; the second would go on the same way, so that the row acts."""
    task = Task(nn.Sequential(nn.Linear(1, 2, bias=False)), dtype=torch.float64)
    start = torch.zeros(1, 2, dtype=torch.float64)
    rule = Rule(projection=Projection(("anchor",), start, 0.0, torch.tensor([0, 2])))
    batches = [Batch(torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64))] * 2
    with nullcontext() if dense else mock.patch.object(choice, "projects", return_value=False):
        found = [train(task, start, start[:, :0], batches, Sgd(lr=0.1), rule).acting for _ in range(2)]
    assert found == [(1,), (1,)]
    assert train(task, start, start[:, :0], batches, Sgd(lr=0.1)).acting is None
