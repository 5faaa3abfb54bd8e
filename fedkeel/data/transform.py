"""From stored arrays to what a model sees: cast, scale, normalise, augment; always whole batches at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedkeel import arguments
from fedkeel.errors import invalid, unknown

if TYPE_CHECKING:
    import torch

PAD = 4  # pixels on every side before a crop, in all three papers' pipelines


@dataclass(frozen=True)
class Transform:
    """How stored values become model input: ``(x / scale − mean) / std``, then perhaps a random augmentation.

    ``mean`` and ``std`` hold one value per channel (or one for all), or are empty for "only scale". ``augment`` names
    one of :data:`AUGMENTATIONS`; it is applied to training batches only, after normalisation.
    """

    scale: float = 255.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: str | None = None

    def __post_init__(self) -> None:
        (scale,) = arguments.numbers_of("transform.scale", [self.scale])
        if scale <= 0:
            raise invalid("transform.scale", "a number above 0", self.scale, "Use 255 for uint8 images, 1 for floats.")
        for part in ("mean", "std"):
            object.__setattr__(self, part, arguments.numbers_of(f"transform.{part}", getattr(self, part)))
        if len(self.mean) != len(self.std):
            raise invalid("transform.std", f"as long as transform.mean ({len(self.mean)} values)", self.std)
        if not all(s > 0 for s in self.std):
            raise invalid("transform.std", "numbers above 0", self.std, "Leave out channels that never change.")
        if self.augment is not None and arguments.text("transform.augment", self.augment) not in AUGMENTATIONS:
            raise unknown("augmentation", self.augment, sorted(AUGMENTATIONS))

    def prepare(self, x: npt.NDArray[Any] | torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Cast, scale and normalise ``x`` [n, ...]; the result has the same shape and ``dtype`` (default float32).

        Tokens (int64) are indices, of which nothing is changed.
        """
        import torch

        if isinstance(x, np.ndarray):
            x = np.require(x, requirements="W")  # torch warns of arrays that it could not write to
        values = torch.as_tensor(x)
        if values.dtype == torch.int64:
            return values  # tokens, which stay the whole numbers that they are
        values = values.to(dtype or torch.float32)
        if self.scale != 1:
            values = values / self.scale
        if self.mean:
            per_channel = (-1,) + (1,) * (values.ndim - 2)
            mean = torch.tensor(self.mean, dtype=values.dtype, device=values.device).reshape(per_channel)
            std = torch.tensor(self.std, dtype=values.dtype, device=values.device).reshape(per_channel)
            values = (values - mean) / std
        return values

    def augmented(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A randomly augmented copy of the normalised batch ``x`` [..., C, H, W]; ``x`` itself without augmentation."""
        if self.augment is None:
            return x
        if x.ndim < 4:
            raise invalid("transform.augment", "None for data that are not images", self.augment)
        batch = x.reshape(-1, *x.shape[-3:])
        return AUGMENTATIONS[self.augment](batch, generator).reshape(x.shape)


def flip_crop_half(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """FedDC and FedDyn: flip half of the images, and crop half of them after zero padding."""
    flipped = _flip(x, generator)
    offsets = _offsets(len(x), generator)
    offsets[_coins(len(x), generator)] = PAD  # the middle of the padded image: no crop
    return _crop(flipped, offsets, "constant")


def crop_flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """GradMA: crop every image after zero padding, then flip half of them."""
    return _flip(_crop(x, _offsets(len(x), generator), "constant"), generator)


def reflect_crop_flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """MOON and NIID-Bench: crop every image after reflecting its border, then flip half of them."""
    return _flip(_crop(x, _offsets(len(x), generator), "reflect"), generator)


AUGMENTATIONS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "flip_crop_half": flip_crop_half,
    "crop_flip": crop_flip,
    "reflect_crop_flip": reflect_crop_flip,
}


def _coins(n: int, generator: torch.Generator) -> torch.Tensor:
    """n fair coins as booleans."""
    import torch

    return torch.rand(n, generator=generator, device=generator.device) < 0.5


def _offsets(n: int, generator: torch.Generator) -> torch.Tensor:
    """Where each crop begins in the padded image: int64 [n, 2] in 0..2·PAD."""
    import torch

    return torch.randint(0, 2 * PAD + 1, (n, 2), generator=generator, device=generator.device)


def _flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    coins = _coins(len(x), generator).to(x.device)
    return torch.where(coins[:, None, None, None], x.flip(-1), x)


def _crop(x: torch.Tensor, offsets: torch.Tensor, padding: str) -> torch.Tensor:
    """Pad ``x`` [n, C, H, W] and cut an H × W window at ``offsets`` [n, 2] out of every image."""
    import torch
    from torch.nn.functional import pad

    n, channels, height, width = x.shape
    padded = pad(x, (PAD, PAD, PAD, PAD), mode=padding)
    offsets = offsets.to(x.device)
    rows = offsets[:, :1] + torch.arange(height, device=x.device)
    columns = offsets[:, 1:] + torch.arange(width, device=x.device)
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
