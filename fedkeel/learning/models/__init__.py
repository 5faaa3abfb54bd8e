"""The models of the papers' experiments by name, and a few for benchmarks.

``build(name)`` gives the model as its paper has it; ``input_shape`` and ``classes`` fit it to other data. Every model
is a :class:`~fedkeel.learning.staged.Staged`. Initial weights come from torch's global generator: the caller seeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from fedkeel.errors import ModelError, invalid, unknown
from fedkeel.learning.losses import Loss, cross_entropy, squared_hinge
from fedkeel.learning.models import convnets, dense, resnets, vgg
from fedkeel.learning.models._shapes import Shape
from fedkeel.learning.staged import Staged

__all__ = ["ModelSpec", "build", "names", "parameter_count", "spec"]


@dataclass(frozen=True)
class ModelSpec:
    """One entry of the registry: what the model is and how to make it."""

    name: str
    paper: str
    """The paper whose experiments use it."""
    summary: str
    """One line: the layers."""
    input_shape: Shape
    """Default shape of a sample: (channels, height, width) or (features,)."""
    classes: int
    """Default number of classes: the width of the output (``svm``: 2 classes, one score)."""
    params: int
    """Trainable parameters at the defaults."""
    build: Callable[[Shape, int], Staged]
    """From the shape of a sample and the number of classes to the model; :func:`build` checks these first."""
    loss: Loss = cross_entropy
    """What the paper trains it with."""


_MNIST = (1, 28, 28)
_CIFAR = (3, 32, 32)
_TINY_IMAGENET = (3, 64, 64)
_OURS = "none (fedkeel's benchmarks)"

_SPECS = (
    ModelSpec(
        "svm",
        "FedVeca",
        "linear score of a two-class SVM without bias, starts at 0 (squared hinge is the loss)",
        _MNIST,
        2,
        784,
        dense.svm,
        squared_hinge(l2=0.1),
    ),
    ModelSpec(
        "cnn_fedveca_mnist",
        "FedVeca",
        "conv 5×5 32, 32 (same), fc 256; truncated normal 0.1, bias 0.1",
        _MNIST,
        10,
        430_698,
        convnets.cnn_fedveca,
    ),
    ModelSpec(
        "cnn_fedveca_cifar",
        "FedVeca",
        "conv 5×5 32, 32 (same), fc 256; truncated normal 0.1, bias 0.1",
        _CIFAR,
        10,
        555_178,
        convnets.cnn_fedveca,
    ),
    ModelSpec("mlp_2nn", "FedDC", "fc 200, 200", _MNIST, 10, 199_210, dense.mlp_2nn),
    ModelSpec("emnist_nn", "FedDC", "fc 100, 100", _MNIST, 10, 89_610, dense.emnist_nn),
    ModelSpec(
        "cifar_cnn_feddc",
        "FedDC",
        "conv 5×5 64, 64 (valid), fc 384, 192",
        _CIFAR,
        10,
        797_962,
        convnets.cifar_cnn_feddc,
    ),
    ModelSpec("linear_synth", "FedDC", "softmax regression, starts at 0", (30,), 5, 155, dense.linear_synth),
    ModelSpec(
        "resnet18_gn",
        "FedDC",
        "ResNet-18 with GroupNorm(2) and the ImageNet stem",
        _CIFAR,
        10,
        11_181_642,
        resnets.resnet18_gn,
    ),
    ModelSpec("mlp_gradma", "GradMA", "fc 200, 100 with BatchNorm", _MNIST, 10, 178_710, dense.mlp_gradma),
    ModelSpec(
        "lenet_gradma",
        "GradMA",
        "conv 5×5 32, 64 (valid), fc 512, 128, with BatchNorm and dropout",
        _CIFAR,
        10,
        941_834,
        convnets.lenet_gradma,
    ),
    ModelSpec(
        "vgg11_gradma",
        "GradMA",
        "VGG-11 with BatchNorm, fc 128 with dropout",
        _CIFAR,
        100,
        9_304_548,
        vgg.vgg11_gradma,
    ),
    ModelSpec(
        "resnet20_gradma",
        "GradMA",
        "ResNet-20 (16/32/64) with BatchNorm and 1×1 shortcuts",
        _TINY_IMAGENET,
        200,
        284_824,
        resnets.resnet20_gradma,
    ),
    ModelSpec("cnn_moon", "FedPMVR", "conv 5×5 6, 16 (valid), fc 120, 84", _CIFAR, 10, 62_006, convnets.cnn_moon),
    ModelSpec(
        "cnn_moon_proj",
        "MOON",
        "cnn_moon with the projection 84, 256; features = the 256 numbers",
        _CIFAR,
        10,
        92_626,
        convnets.cnn_moon_proj,
    ),
    ModelSpec(
        "lenet5",
        "FedPMVR",
        "LeNet-5: conv 5×5 6, 16 (valid), fc 120, 84, tanh, average pooling",
        _MNIST,
        10,
        44_426,
        convnets.lenet5,
    ),
    ModelSpec(
        "lenet_fedpmvr",
        "FedPMVR",
        "LeNet of the paper's code: conv 5×5 6, 6, fc 120 per pixel, fc 84, tanh",
        _MNIST,
        10,
        164_116,
        convnets.lenet_fedpmvr,
    ),
    ModelSpec("vgg19", "FedPMVR", "VGG-19 with one dense layer", _CIFAR, 10, 20_029_514, vgg.vgg19),
    ModelSpec("vgg19_bn", "FedPMVR", "VGG-19 with BatchNorm, one dense layer", _CIFAR, 10, 20_040_522, vgg.vgg19_bn),
    ModelSpec(
        "cnn_gvrgm_mnist",
        "FedGVRGM",
        "conv 5×5 32, 64 (same), fc 512 (the FedAvg paper's; FedGVRGM gives no widths)",
        _MNIST,
        10,
        1_663_370,
        convnets.cnn_mcmahan,
    ),
    ModelSpec(
        "cnn_gvrgm_mnist_light",
        "FedGVRGM",
        "conv 5×5 10, 20 (valid), fc 50",
        _MNIST,
        10,
        21_840,
        convnets.cnn_mnist_light,
    ),
    ModelSpec(
        "cnn_gvrgm_cifar",
        "FedGVRGM",
        "conv 5×5 64, 64 (valid), fc 384, 192 (cifar_cnn_feddc; FedGVRGM gives no widths)",
        _CIFAR,
        10,
        797_962,
        convnets.cifar_cnn_feddc,
    ),
    ModelSpec("logistic", _OURS, "softmax regression", _MNIST, 10, 7_850, dense.logistic),
    ModelSpec(
        "lenet_w3",
        _OURS,
        "conv 5×5 6, 16 (valid), fc 120, 84, ReLU, max pooling (cnn_moon on MNIST)",
        _MNIST,
        10,
        44_426,
        convnets.cnn_moon,
    ),
)

_BY_NAME = {entry.name: entry for entry in _SPECS}
_ALIASES = {"2nn": "mlp_2nn"}


def names() -> list[str]:
    """The names of all models, paper by paper; aliases such as ``2nn`` are accepted but not listed."""
    return list(_BY_NAME)


def spec(name: str) -> ModelSpec:
    """The registry entry of a name or alias."""
    try:
        return _BY_NAME[_ALIASES.get(name, name)]
    except KeyError:
        raise unknown("model", name, [*_BY_NAME, *_ALIASES]) from None


def build(name: str, input_shape: Sequence[int] | None = None, classes: int | None = None) -> Staged:
    """A new model that maps ``[B, *input_shape]`` to ``[B, classes]`` (``svm``: to one score, ``[B, 1]``).

    What is not given is as in the paper. A shape that the architecture cannot take is a :class:`ModelError`.
    """
    entry = spec(name)
    shape = entry.input_shape if input_shape is None else tuple(input_shape)
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise invalid("model.input_shape", "(channels, height, width) or (features,), all above 0", shape)
    width = entry.classes if classes is None else classes
    if width < 1:
        raise invalid("model.classes", "a whole number of at least 1", width)
    try:
        return entry.build(shape, width)
    except ModelError as error:
        raise ModelError(f"the model {entry.name!r} does not fit: {error}.") from None


def parameter_count(module: nn.Module) -> int:
    """How many trainable numbers the module has; buffers (BatchNorm statistics) do not count."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
