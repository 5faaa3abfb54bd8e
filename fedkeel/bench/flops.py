"""The arithmetic of a model, counted from its layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the matrix products and convolutions for one sample."""

    train: int
    """Forward and backward."""
    evaluate: int
    """Forward only."""


def count(model: nn.Module, input_shape: tuple[int, ...]) -> Flops:
    """Operations per sample of dense and convolutional layers; everything else is small beside them.

    A layer of M multiply-adds costs 2M forward, 2M for the gradient of its weights and 2M for that of its inputs, which
    the first layer does not need. Biases, activations, pooling and the loss are left out. By hand, for 28×28 inputs:

    * W1: M = 784·10 = 7,840; train 4M = 31,360, evaluate 2M = 15,680.
    * W2: M = 156,800 + 40,000 + 2,000; train 4·156,800 + 6·42,000 = 879,200, evaluate 2·198,800 = 397,600.
    * W3: 24²·6·25 = 86,400, then 8²·16·6·25 + 256·120 + 120·84 + 84·10 = 195,240;
      train 4·86,400 + 6·195,240 = 1,517,040, evaluate 563,280.
    * W4: 28²·32·25 = 627,200, then 14²·32·32·25 + 1,568·256 + 256·10 = 5,421,568;
      train 4·627,200 + 6·5,421,568 = 35,038,208, evaluate 12,097,536.
    """
    products: list[int] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        products.append(output.numel() * layer.weight[0].numel())

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        model(torch.zeros(1, *input_shape))
    for hook in hooks:
        hook.remove()
    return Flops(train=6 * sum(products) - 2 * products[0], evaluate=2 * sum(products))
