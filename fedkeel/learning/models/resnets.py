"""Residual networks. Stages: ``stem``, ``layer1``, ``layer2``, …, ``head``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkeel.learning.models._shapes import Shape, image
from fedkeel.learning.staged import Staged

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many channels."""


class BasicBlock(nn.Module):
    """relu(x' + norm(conv(relu(norm(conv(x)))))): ``[B, inputs, H, W] → [B, outputs, H/stride, W/stride]``.

    x' is x itself or, where the shape changes, a normalised 1×1 convolution of it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.shortcut(x) + self.norm2(self.conv2(inner)))


def resnet18_gn(shape: Shape, classes: int) -> Staged:
    """ResNet-18 with GroupNorm(2) for BatchNorm.

    The stem is the one for ImageNet (7×7 convolution and 3×3 pooling, both of stride 2) also on 32×32 images, where
    the last layer is left with a single pixel: FedDC's code does it so. Convolutions start as in torchvision, from a
    normal distribution scaled by the fan-out.
    """

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(2, channels)

    channels, _, _ = image(shape, smallest=1)
    model = Staged(
        {
            "stem": nn.Sequential(
                nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
                norm(64),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            ),
            "layer1": _layer(64, 64, 2, 1, norm),
            "layer2": _layer(64, 128, 2, 2, norm),
            "layer3": _layer(128, 256, 2, 2, norm),
            "layer4": _layer(256, 512, 2, 2, norm),
            "head": _head(512, classes),
        }
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def resnet20_gradma(shape: Shape, classes: int) -> Staged:
    """ResNet-20 of He et al. for small images, 16/32/64 channels, with 1×1 convolutions where the shape changes.

    GradMA's own class cannot be run (it expects four layers and is given three); this is what its numbers describe.
    """
    channels, _, _ = image(shape, smallest=1)
    norm = nn.BatchNorm2d
    return Staged(
        {
            "stem": nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()),
            "layer1": _layer(16, 16, 3, 1, norm),
            "layer2": _layer(16, 32, 3, 2, norm),
            "layer3": _layer(32, 64, 3, 2, norm),
            "head": _head(64, classes),
        }
    )


def _layer(inputs: int, outputs: int, blocks: int, stride: int, norm: Norm) -> nn.Sequential:
    """``blocks`` basic blocks, of which the first changes the channels and the resolution."""
    rest = [BasicBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride, norm), *rest)


def _head(channels: int, classes: int) -> nn.Sequential:
    """Mean over the image, then the classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
