"""Small convolutional networks: two convolutions, each followed by a pooling that halves the image, then dense layers.

Stages: ``conv1``, ``conv2`` (its output is already flat), ``fc1``, ``fc2``, …, ``head``.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedkeel.learning.models._shapes import Shape, image
from fedkeel.learning.staged import Staged

KERNEL = 5
"""Side of every convolution kernel of this family."""


def cnn_fedveca(shape: Shape, classes: int) -> Staged:
    """FedVeca's network, without the local response normalisation that only the code it builds on has.

    The first dense layer has 7·7·32 = 1568 inputs on 28×28 images and 8·8·32 = 2048 on 32×32 ones. Weights start
    from a normal distribution of deviation 0.1 cut at two deviations, biases at 0.1.
    """
    model = Staged(_stages(shape, classes, convs=(32, 32), hidden=(256,), same=True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(parameter, 0.1)
        else:
            nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
    return model


def cifar_cnn_feddc(shape: Shape, classes: int) -> Staged:
    """FedDC's (and FedDyn's) CIFAR network: 64 and 64 filters, dense layers of 384 and 192."""
    return Staged(_stages(shape, classes, convs=(64, 64), hidden=(384, 192)))


def cnn_mcmahan(shape: Shape, classes: int) -> Staged:
    """The MNIST network of the FedAvg paper: 32 and 64 filters, a dense layer of 512."""
    return Staged(_stages(shape, classes, convs=(32, 64), hidden=(512,), same=True))


def cnn_mnist_light(shape: Shape, classes: int) -> Staged:
    """A network with the plan of ``cnn_mcmahan`` and a hundredth of its weights: 10 and 20 filters, a layer of 50."""
    return Staged(_stages(shape, classes, convs=(10, 20), hidden=(50,)))


def cnn_moon(shape: Shape, classes: int) -> Staged:
    """LeNet's widths with ReLU and max pooling: 6 and 16 filters, dense layers of 120 and 84."""
    return Staged(_stages(shape, classes, convs=(6, 16), hidden=(120, 84)))


def cnn_moon_proj(shape: Shape, classes: int) -> Staged:
    """``cnn_moon`` with MOON's projection 84 → 84 → 256 before the classifier; the features are the projection."""
    stages = _stages(shape, classes, convs=(6, 16), hidden=(120, 84))
    del stages["head"]
    stages["projection"] = nn.Sequential(nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256))
    stages["head"] = nn.Linear(256, classes)
    return Staged(stages)


def lenet5(shape: Shape, classes: int) -> Staged:
    """LeNet-5 with tanh and average pooling."""
    return Staged(
        _stages(shape, classes, convs=(6, 16), hidden=(120, 84), activation=nn.Tanh, pooling=nn.AvgPool2d),
    )


def lenet_fedpmvr(shape: Shape, classes: int) -> Staged:
    """The LeNet of FedPMVR's code: 6 filters in both convolutions, and the dense layer of 120 acts on every pixel.

    The code puts that layer before the flattening; a 1×1 convolution says the same thing here.
    """
    channels, height, width = image(shape, _smallest(same=False))
    pixels = _pooled(height, same=False) * _pooled(width, same=False)
    return Staged(
        {
            "conv1": nn.Sequential(nn.Conv2d(channels, 6, KERNEL), nn.Tanh(), nn.AvgPool2d(2)),
            "conv2": nn.Sequential(nn.Conv2d(6, 6, KERNEL), nn.Tanh(), nn.AvgPool2d(2)),
            "fc1": nn.Sequential(nn.Conv2d(6, 120, 1), nn.Tanh(), nn.Flatten()),
            "fc2": nn.Sequential(nn.Linear(120 * pixels, 84), nn.Tanh()),
            "head": nn.Linear(84, classes),
        }
    )


def lenet_gradma(shape: Shape, classes: int) -> Staged:
    """GradMA's "LeNet-5": 32 and 64 filters, dense layers of 512 and 128, batch normalisation, dropout one half."""
    return Staged(_stages(shape, classes, convs=(32, 64), hidden=(512, 128), normalise=True, dropout=0.5))


def _stages(
    shape: Shape,
    classes: int,
    *,
    convs: tuple[int, int],
    hidden: tuple[int, ...],
    same: bool = False,
    activation: type[nn.Module] = nn.ReLU,
    pooling: type[nn.MaxPool2d | nn.AvgPool2d] = nn.MaxPool2d,
    normalise: bool = False,
    dropout: float = 0.0,
) -> dict[str, nn.Module]:
    """The stages of one network: filters of the two convolutions, widths of the hidden dense layers.

    ``same`` pads the convolutions so that only the poolings shrink the image; otherwise each takes 4 pixels off.
    """
    channels, height, width = image(shape, _smallest(same=same))
    flat = convs[-1] * _pooled(height, same=same) * _pooled(width, same=same)
    stages: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise((channels, *convs)), start=1):
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2 if same else 0)]
        if normalise:
            layers.append(nn.BatchNorm2d(outputs))
        layers += [activation(), pooling(2)]
        if number == len(convs):
            layers.append(nn.Flatten())
        stages[f"conv{number}"] = nn.Sequential(*layers)
    for number, (inputs, outputs) in enumerate(pairwise((flat, *hidden)), start=1):
        layers = [nn.Linear(inputs, outputs)]
        if normalise:
            layers.append(nn.BatchNorm1d(outputs))
        layers.append(activation())
        if dropout:
            layers.append(nn.Dropout(dropout))
        stages[f"fc{number}"] = nn.Sequential(*layers)
    stages["head"] = nn.Linear(hidden[-1], classes)
    return stages


def _pooled(side: int, *, same: bool) -> int:
    """Pixels that are left of ``side`` after the two convolutions and poolings."""
    for _ in range(2):
        side = (side if same else side - KERNEL + 1) // 2
    return side


def _smallest(*, same: bool) -> int:
    """The least side with ``_pooled`` ≥ 1."""
    return 4 if same else 16
