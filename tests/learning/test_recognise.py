"""Fast paths take only layers that are exactly what their type says."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations

from fedkeel.learning.kernels.bound import pooled_before_relu
from fedkeel.learning.recognise import is_exactly, is_unchanged, layers_of
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Task


class Sequential(nn.Sequential):
    pass


def hooked(layer: nn.Module, register: str) -> nn.Module:
    getattr(layer, register)(lambda *given: None)
    return layer


def with_attribute(name: str) -> nn.Module:
    layer = nn.Linear(3, 2)
    setattr(layer, name, types.MethodType(lambda self, x: x, layer))
    return layer


def reshaped() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(torch.zeros(5, 3))
    return layer


CHANGED: dict[str, Callable[[], nn.Module]] = {
    "subclass": lambda: type("Linear", (nn.Linear,), {})(3, 2),
    "named alike": Sequential,
    "forward hook": lambda: hooked(nn.Linear(3, 2), "register_forward_hook"),
    "pre-hook": lambda: hooked(nn.Linear(3, 2), "register_forward_pre_hook"),
    "backward hook": lambda: hooked(nn.ReLU(), "register_full_backward_hook"),
    "backward pre-hook": lambda: hooked(nn.Sequential(), "register_full_backward_pre_hook"),
    "forward of one object": lambda: with_attribute("forward"),
    "call of one object": lambda: with_attribute("_call_impl"),
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(3, 2)),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 2)),
    "parametrised": lambda: parametrizations.weight_norm(nn.Conv2d(1, 2, 3)),
    "another shape": reshaped,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CHANGED)
def test_what_was_changed_is_not_known(name: str) -> None:
    assert not is_unchanged(CHANGED[name]())


def test_torchs_own_layers_are_known_and_notes_on_them_do_no_harm() -> None:
    layer = nn.Linear(3, 2)
    layer.note = "mine"  # type: ignore[assignment]
    parts = [layer, nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Tanh(), nn.BatchNorm2d(3), nn.Flatten()]
    assert all(map(is_unchanged, parts))
    found = layers_of(Staged({"one": nn.Sequential(*parts), "two": nn.Identity()}))
    assert found is not None
    assert found[:-1] == parts
    assert is_exactly(nn.ReLU(), nn.ReLU, nn.Tanh)


def test_patched_classes_and_hooks_on_all_modules_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert Task(net).dense is not None
    with monkeypatch.context() as patch:
        patch.setattr(nn.ReLU, "forward", lambda self, x: x)
        assert Task(net).dense is None
    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "linear", lambda *given: given[0])
        assert Task(net).dense is None
    handle = register_module_forward_hook(lambda *given: None)
    try:
        assert Task(net).dense is None
    finally:
        handle.remove()
    assert Task(net).dense is not None


def test_a_sequential_that_somebody_may_enter_in_the_middle_keeps_its_order() -> None:
    class Slicing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))

    net = pooled_before_relu(Slicing())
    assert isinstance(net.get_submodule("parts.1"), nn.ReLU)


def test_a_relu_in_place_is_only_moved_from_what_is_nobody_elses() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(1, 1, 1), nn.ReLU(True), nn.MaxPool2d(2))
    kinds = [type(layer) for layer in pooled_before_relu(net)]  # type: ignore[arg-type]
    assert kinds == [nn.ReLU, nn.MaxPool2d, nn.Conv2d, nn.MaxPool2d, nn.ReLU]
