"""What a data source is, and the choices every source shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkeel import arguments
from fedkeel.data.dataset import Dataset, Federation
from fedkeel.data.sources.files import Place
from fedkeel.data.transform import Transform
from fedkeel.errors import unknown

Constants = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel, of pixels / 255
UNIT: Constants = ((), ())


@dataclass(frozen=True)
class Request:
    """What a loader is asked for: where to look, how to transform, whether a part of the set will do."""

    place: Place
    transform: Transform
    subset_ok: bool
    params: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name. ``train`` and ``test`` are its sizes, 0 where parameters decide.

    ``normalisations`` maps the names of :func:`fedkeel.data.load`'s ``normalise`` to constants; ``params`` holds the
    defaults of what a generated set takes; ``spellings`` are names of sub-folders that may hold its files.
    """

    name: str
    doc: str
    train: int
    test: int
    classes: int
    download: bool
    load: Callable[[Request], Dataset | Federation]
    normalisations: dict[str, Constants] = field(default_factory=dict)
    spellings: tuple[str, ...] = ("",)
    params: dict[str, Any] = field(default_factory=dict)
    there: Callable[[Place], bool] = lambda place: True
    """Whether all files, or the accepted part of them, lie in the folders of a place; nothing is read."""

    def transform(self, normalise: str, augment: str | None) -> Transform:
        """The transform of a named normalisation; generated sets are used as they are."""
        known = {"unit": UNIT, "standard": UNIT, **self.normalisations}
        if arguments.text("data.normalise", normalise) not in known:
            raise unknown(f"normalisation of {self.name}", normalise, sorted(known))
        mean, std = known[normalise]
        return Transform(1.0 if self.params else 255.0, mean, std, augment)


def part_generator(*key: int) -> np.random.Generator:
    """A counter-based generator for fixed choices of a source, such as a split."""
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
