"""What an architecture can take: input shapes, checked before a layer is made."""

from __future__ import annotations

from fedkeel.errors import ModelError

Shape = tuple[int, ...]
"""One sample without its batch axis: ``(channels, height, width)`` or ``(features,)``."""


def image(shape: Shape, smallest: int) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width), or the sentence that says why this is no image for the architecture.

    ``smallest`` is the least height and width that leaves one pixel after all convolutions and poolings.
    """
    if len(shape) != 3:
        raise ModelError(
            f"it needs images of shape (channels, height, width), got samples of shape {shape}; "
            "reshape the data to images or use a dense model such as 'mlp_2nn' or 'linear_synth'"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ModelError(
            f"it needs images of at least {smallest}×{smallest}, got {height}×{width}; "
            "pad or resize the images, or use a model with fewer poolings"
        )
    return channels, height, width
