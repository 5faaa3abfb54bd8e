"""A short run of random modules against plain torch; ``python -m tests.hostile`` has the long one."""

from __future__ import annotations

import pytest
from torch import nn

from fedkeel.engine import fitting
from fedkeel.learning import recognise
from tests.hostile.modules import run


def test_random_modules_are_what_torch_says() -> None:
    found = run(150, seed=0)
    assert found["modules"] == 150
    assert not found["wrong"], "\n".join(found["examples"])


def test_layers_known_by_their_kind_alone_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hooks and subclasses overlooked and nothing compared before the first round, models train as others."""
    kinds = (nn.Linear, nn.Conv2d, nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.Flatten, nn.Identity, nn.Sequential)
    monkeypatch.setattr(recognise, "is_unchanged", lambda module: isinstance(module, kinds))
    monkeypatch.setattr(fitting, "verify", lambda *given: None)
    assert run(40, seed=0)["wrong"] > 0
