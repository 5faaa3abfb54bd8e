"""The comparison with plain torch before the first round, and what becomes of a model that fails it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedkeel.engine.grouping import can_stack
from fedkeel.engine.samples import as_channels_last
from fedkeel.errors import InputError, ModelError
from fedkeel.learning import models
from fedkeel.learning.admission import check_counts
from fedkeel.learning.kernels import dense
from fedkeel.learning.task import Batch, Task
from fedkeel.learning.verification import verify

X, Y = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fast_path_that_is_wrong_is_not_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one percent in the derivative of ReLU: neither stacking nor GradMA's own way is reached."""
    correct = dense._through
    monkeypatch.setattr(dense, "_through", lambda *given: 1.01 * correct(*given))
    task = Task(net(), dtype=dtype)
    x = X.to(dtype)
    wrong, *_ = task.gradient(task.w0[None], task.b0[None], Batch(x[None], Y[None]))
    verify(task, x, Y)
    right, *_ = task.gradient(task.w0[None], task.b0[None], Batch(x[None], Y[None]))
    expected, *_ = task.gradient(task.w0[None], task.b0[None], Batch(x[None], Y[None]), task.objective)
    assert task.dense is None
    assert not can_stack(task)
    assert "gradient of 0.weight" in task.notices[0]
    assert torch.allclose(right, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(wrong, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["svm", "2nn", "lenet_w3", "lenet5", "cnn_moon", "logistic"])
def test_models_of_the_zoo_pass(name: str) -> None:
    spec = models.spec(name)
    torch.manual_seed(0)
    task = Task(models.build(name), spec.loss)
    x, y = torch.randn(8, *spec.input_shape), torch.arange(8) % spec.classes
    before = torch.get_rng_state()
    verify(task, x, y, as_channels_last(x) if task.channels_last else x)
    assert not task.notices
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_that_are_not_finite_are_equal_where_they_stand_in_the_same_places() -> None:
    task = Task(net())
    verify(task, X * float("inf"), Y)
    assert not task.notices


def test_a_model_that_writes_into_its_inputs_gets_copies() -> None:
    class Writing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2))

    task = Task(Writing(5, 3))
    verify(task, X.clone(), Y)
    kept = X.clone()
    task.evaluate(task.w0, task.b0, kept, Y)
    task.gradient(task.w0[None], task.b0[None], Batch(kept[None], Y[None]))
    assert torch.equal(kept, X)


def test_a_function_that_holds_on_to_the_original_is_refused() -> None:
    module = nn.Linear(5, 3)
    module.forward = lambda x: 2 * x @ module.weight.T  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="holds on to a layer"):
        verify(Task(module), X, Y)


def test_a_model_that_cuts_the_gradient_off_is_refused() -> None:
    class Cut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(ModelError, match="do not depend on its trainable parameters"):
        verify(Task(Cut(5, 3)), X, Y)


def with_buffer(value: Tensor) -> nn.Module:
    module = nn.Linear(5, 3)
    module.register_buffer("kept", value)
    return module


def test_integers_that_the_vector_would_round_are_refused() -> None:
    big = torch.tensor([2**24 + 1])
    with pytest.raises(ModelError, match="'kept' holds integers beyond 16,777,216, which float32 would round"):
        Task(with_buffer(big))
    task = Task(with_buffer(big), dtype=torch.float64)
    assert torch.equal(task.state_dict(task.w0, task.b0)["kept"], big)


def test_a_counter_that_stands_still_is_noticed() -> None:
    """2^24 + 1 is 2^24 in float32: from there on nothing would be counted."""
    check_counts("steps", torch.tensor([2.0**24 - 1]))
    with pytest.raises(ModelError, match="'steps' holds integers beyond 16,777,216"):
        check_counts("steps", torch.tensor([2.0**24]))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.LazyLinear(3), "'weight' has no shape yet"),
        (nn.Linear(5, 3, dtype=torch.complex64), "'weight' is complex"),
        (nn.Linear(5, 3).requires_grad_(False), "no trainable parameter"),
        (nn.Sequential(nn.Flatten()), "no trainable parameter"),
    ],
)
def test_what_no_vector_can_stand_for_is_refused(module: nn.Module, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        Task(module)


def test_another_name_for_a_parameters_memory_is_refused() -> None:
    """Each step of torch's would move both; a copy moves one."""
    module = nn.Linear(5, 3)
    module.alias = [module.weight.data]  # type: ignore[assignment]
    with pytest.raises(ModelError, match="'weight' and 'alias' overlap in memory"):
        Task(module)


def test_a_class_is_no_model() -> None:
    with pytest.raises(InputError, match=r"Net\(\) instead of Net"):
        Task(nn.Linear)  # type: ignore[arg-type]


def test_tied_weights_are_exported_as_trained() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    task = Task(module)
    w = torch.arange(task.d, dtype=torch.float32)
    state = task.state_dict(w, task.b0)
    assert torch.equal(state["0.weight"], w[:16].view(4, 4))
    assert torch.equal(state["2.weight"], state["0.weight"])
    assert state["2.weight"].data_ptr() != state["0.weight"].data_ptr()
