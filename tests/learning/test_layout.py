"""Queries on where tensors lie, on a network small enough to count by hand."""

import pytest
import torch
from torch import nn

from fedkeel.errors import InputError
from fedkeel.learning.layout import Layout


@pytest.fixture
def layout() -> Layout:
    """Conv(1→2, 3×3): 18 + 2; BatchNorm(2): 2 + 2; Linear(8→3): 24 + 3; Linear(3→2): 6 + 2. 59 numbers in all."""
    return Layout.of_parameters(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    )


def places(mask: torch.Tensor) -> list[int]:
    return torch.nonzero(mask).flatten().tolist()


def test_counts_and_kinds(layout: Layout) -> None:
    assert layout.d == 59
    assert [entry.kind for entry in layout] == ["conv"] * 2 + ["norm"] * 2 + ["linear"] * 4
    assert [entry.layer for entry in layout] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [("conv", 0, 19), ("norm", 20, 23), ("linear", 24, 58), ("last1", 51, 58), ("last2", 24, 58), ("last3", 0, 58)],
)
def test_masks(layout: Layout, query: str, first: int, last: int) -> None:
    """``last3`` starts at the convolution, so it also takes the BatchNorm between it and the dense layers."""
    assert places(layout.mask(query)) == list(range(first, last + 1))


def test_mask_of_nothing_everything_and_one_layer(layout: Layout) -> None:
    assert places(layout.mask("none")) == []
    assert int(layout.mask("all").sum()) == 59
    assert places(layout.mask("layer:5")) == list(range(51, 59))


@pytest.mark.parametrize("query", ["last0", "lastx", "biggest", "layer:7"])
def test_an_unknown_mask_is_refused(layout: Layout, query: str) -> None:
    with pytest.raises(InputError, match="mask must be"):
        layout.mask(query)


def test_flatten_and_unflatten_are_inverse(layout: Layout) -> None:
    vector = torch.arange(59.0)
    assert torch.equal(layout.flatten(layout.unflatten(vector), torch.float32), vector)
