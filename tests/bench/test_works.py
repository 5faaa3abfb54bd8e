"""The benchmark's work: data, models and arithmetic are what docs/benchmarks.md says."""

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.bench import flops
from fedkeel.bench.works import WORKS, Size, find, make_images, make_model, plain_model
from fedkeel.errors import InputError

PARAMETERS = {"W1": 7_850, "W2": 199_210, "W3": 44_426, "W4": 430_698}


@pytest.mark.parametrize(
    ("name", "train", "evaluate"),
    [
        ("W1", 31_360, 15_680),
        ("W2", 879_200, 397_600),
        ("W3", 1_517_040, 563_280),
        ("W4", 35_038_208, 12_097_536),
    ],
)
def test_operations_by_hand(name: str, train: int, evaluate: int) -> None:
    """Multiply-adds M of each layer: forward 2M, weights' gradient 2M, inputs' gradient 2M but for the first layer.

    W1: 784·10. W2: 784·200 + 200·200 + 200·10. W3: 24²·6·25 + 8²·16·6·25 + 256·120 + 120·84 + 84·10.
    W4: 28²·32·25 + 14²·32·32·25 + 1568·256 + 256·10.
    """
    assert flops.count(make_model(WORKS[name]), (1, 28, 28)) == flops.Flops(train, evaluate)


@pytest.mark.parametrize("name", WORKS)
def test_the_plain_model_is_the_zoo_model_in_one_sequence(name: str) -> None:
    staged, plain = make_model(WORKS[name]), plain_model(WORKS[name])
    assert sum(p.numel() for p in plain.parameters()) == PARAMETERS[name]
    assert all(not list(layer.children()) for layer in plain)
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(staged(x), plain(x))


def test_models_start_from_torchs_usual_weights() -> None:
    """nn.Linear draws from ±1/√inputs; FedVeca's own start would go up to 0.2 here."""
    dense = [layer for layer in plain_model(WORKS["W4"]) if isinstance(layer, nn.Linear)]
    assert float(dense[0].weight.detach().abs().max()) <= 1568**-0.5


def test_images_are_the_same_every_time_and_can_be_learned() -> None:
    size = Size(clients=4, samples=250, test=400)
    one, two = make_images(size), make_images(size)
    assert np.array_equal(one.x, two.x)
    assert one.x.shape == (1000, 1, 28, 28)
    assert one.x_test.shape == (400, 1, 28, 28)
    assert set(one.y) == set(range(10))
    flat, test = (x.reshape(len(x), -1).astype(np.float32) / 255 for x in (one.x, one.x_test))
    nearest = np.argmin((flat**2).sum(axis=1) - 2 * test @ flat.T, axis=1)
    assert 0.8 < (one.y[nearest] == one.y_test).mean() < 0.99  # a tenth of the labels is wrong


def test_sizes() -> None:
    size = Size()
    assert (size.steps, size.samples_per_round) == (600, 30_000)


def test_works_by_name() -> None:
    assert find("w3") is WORKS["W3"]
    with pytest.raises(InputError, match="there is no work named 'W9'"):
        find("W9")
