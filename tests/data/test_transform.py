"""Normalisation by hand, and augmentations on images small enough to see every outcome."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkeel.data import Transform
from fedkeel.data.transform import AUGMENTATIONS, _crop
from fedkeel.errors import InputError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_prepare_scales_and_normalises_per_channel() -> None:
    """255 → 1 → (1 − 0.5)/0.25 = 2 in channel 0 and (1 − 0)/0.5 = 2 in channel 1; 0 → −2 and 0."""
    x = np.array([[[[255]], [[255]]], [[[0]], [[0]]]], dtype=np.uint8)
    got = Transform(255, (0.5, 0.0), (0.25, 0.5)).prepare(x)
    assert got.dtype == torch.float32
    assert got.flatten().tolist() == [2.0, 2.0, -2.0, 0.0]


def test_prepare_keeps_vectors_and_takes_tensors_and_other_types() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert Transform(1.0).prepare(x, torch.float64).tolist() == [[1.0, 2.0]]
    assert Transform(1.0, (1.0, 1.0), (1.0, 2.0)).prepare(x).tolist() == [[0.0, 0.5]]


@pytest.mark.filterwarnings("error")
def test_prepare_takes_read_only_arrays_in_silence() -> None:
    x = np.zeros((1, 2), dtype=np.float32)
    x.flags.writeable = False
    assert Transform(1.0).prepare(x).shape == (1, 2)


def test_crop_moves_the_window_and_shows_the_padding() -> None:
    """Offset 4 is the image itself; offset (3, 4) shows a row of padding above it; (4, 6) cuts two columns off."""
    x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    cut = {o: _crop(x, torch.tensor([o]), "constant")[0, 0].tolist() for o in [(4, 4), (3, 4), (4, 6)]}
    assert cut[4, 4] == x[0, 0].tolist()
    assert cut[3, 4] == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert cut[4, 6] == [[3, 0, 0], [6, 0, 0], [9, 0, 0]]


def test_reflecting_crop_repeats_the_border_mirrored() -> None:
    x = torch.arange(25.0).reshape(1, 1, 5, 5)
    got = _crop(x, torch.tensor([(4, 3)]), "reflect")[0, 0, 0]
    assert got.tolist() == [1.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_augmentations_are_deterministic_keep_shape_and_vary(name: str) -> None:
    x = torch.rand(64, 3, 8, 8, generator=seeded())
    transform = Transform(augment=name)
    once, again, other = (transform.augmented(x, seeded(s)) for s in (1, 1, 2))
    assert once.shape == x.shape
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(x, torch.rand(64, 3, 8, 8, generator=seeded()))  # the batch itself is left alone


def test_half_of_the_images_keep_their_place_in_flip_crop_half() -> None:
    """No flip and no crop: ¼ of the images are unchanged, another ¼ only mirrored; 1/81 of the crops move nothing."""
    x = torch.rand(4000, 1, 8, 8, generator=seeded())
    got = Transform(augment="flip_crop_half").augmented(x, seeded(5))
    same = (got == x).flatten(1).all(1).float().mean().item()
    mirrored = (got == x.flip(-1)).flatten(1).all(1).float().mean().item()
    assert abs(same - 0.256) < 0.03
    assert abs(mirrored - 0.256) < 0.03


def test_crop_flip_moves_almost_every_image() -> None:
    """Unchanged up to a flip with probability 1/81."""
    x = torch.rand(4000, 1, 8, 8, generator=seeded())
    got = Transform(augment="crop_flip").augmented(x, seeded(5))
    still = ((got == x).flatten(1).all(1) | (got == x.flip(-1)).flatten(1).all(1)).float().mean().item()
    assert abs(still - 1 / 81) < 0.008


def test_augmentation_takes_leading_axes_and_refuses_vectors() -> None:
    x = torch.rand(2, 3, 1, 8, 8, generator=seeded())
    transform = Transform(augment="crop_flip")
    flat = transform.augmented(x.reshape(6, 1, 8, 8), seeded(1))
    assert torch.equal(transform.augmented(x, seeded(1)).reshape(6, 1, 8, 8), flat)
    assert Transform().augmented(x, seeded()) is x
    with pytest.raises(InputError, match="None for data that are not images"):
        transform.augmented(torch.zeros(2, 3), seeded())


def test_a_transform_refuses_bad_constants() -> None:
    for kwargs, sentence in [
        ({"scale": 0}, "transform.scale must be a number above 0"),
        ({"mean": (0.1,)}, "transform.std must be as long as transform.mean"),
        ({"mean": (0.1,), "std": (0.0,)}, "transform.std must be numbers above 0"),
        ({"augment": "crop_flipp"}, "Did you mean 'crop_flip'?"),
    ]:
        with pytest.raises(InputError) as caught:
            Transform(**kwargs)  # type: ignore[arg-type]
        assert sentence in str(caught.value)
