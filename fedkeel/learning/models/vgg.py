"""VGG networks.

Stages: ``block1`` … ``block5``, each ending with a pooling that halves the image, ``fc1`` if there is one, ``head``.
"""

from __future__ import annotations

from torch import nn

from fedkeel.learning.models._shapes import Shape, image
from fedkeel.learning.staged import Staged

VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG19 = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
"""Filters of the 3×3 convolutions, block by block."""


def vgg11_gradma(shape: Shape, classes: int) -> Staged:
    """VGG-11 with batch normalisation and, instead of the two layers of 4096, one of 128 with dropout one half."""
    stages, flat = _blocks(shape, VGG11, normalise=True)
    stages["fc1"] = nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5))
    stages["head"] = nn.Linear(128, classes)
    return Staged(stages)


def vgg19(shape: Shape, classes: int) -> Staged:
    """The sixteen convolutions of VGG-19 and one dense layer; FedPMVR does not say which head it used."""
    stages, flat = _blocks(shape, VGG19, normalise=False)
    stages["head"] = nn.Linear(flat, classes)
    model = Staged(stages)
    for module in model.modules():
        # With torch's default start the signal fades over sixteen layers without normalisation, and nothing trains.
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


def vgg19_bn(shape: Shape, classes: int) -> Staged:
    """``vgg19`` with batch normalisation after every convolution."""
    stages, flat = _blocks(shape, VGG19, normalise=True)
    stages["head"] = nn.Linear(flat, classes)
    return Staged(stages)


def _blocks(shape: Shape, plan: tuple[tuple[int, ...], ...], *, normalise: bool) -> tuple[dict[str, nn.Module], int]:
    """The convolutional stages and the length of their flat output, 512 on 32×32 images."""
    shrinks = 2 ** len(plan)
    inputs, height, width = image(shape, smallest=shrinks)
    stages: dict[str, nn.Module] = {}
    for number, filters in enumerate(plan, start=1):
        layers: list[nn.Module] = []
        for outputs in filters:
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            if normalise:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
        if number == len(plan):
            layers.append(nn.Flatten())
        stages[f"block{number}"] = nn.Sequential(*layers)
    return stages, inputs * (height // shrinks) * (width // shrinks)
