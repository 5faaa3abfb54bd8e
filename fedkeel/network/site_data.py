"""What one site holds: its own samples, and how they are prepared. They never leave it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from fedkeel import __version__, build, config
from fedkeel.data.dataset import Federation, Split
from fedkeel.data.digest import digest
from fedkeel.data.npz import read_npz
from fedkeel.data.own import as_split
from fedkeel.data.transform import Transform
from fedkeel.errors import DataError, InputError, shown
from fedkeel.network.letters import Facts


@dataclass(frozen=True, eq=False)
class SiteData:
    """The samples of one client."""

    name: str
    train: Split
    transform: Transform
    test: Split | None = None
    """Test samples of its own, if it has any."""
    common: Split | None = None
    """The test set that all have in common, if it is here."""

    @classmethod
    def of(cls, federation: Federation, client: int) -> SiteData:
        """The share of one client in a federation that every site makes for itself."""
        if client >= federation.N:
            raise DataError(
                f"client {client} has no share: {federation.dataset.name} is dealt to {federation.N} clients, "
                f"0 to {federation.N - 1}."
            )
        data = federation.dataset
        own, rows = data.train, federation.clients[client]
        test = None
        if federation.held_tests is not None:
            held = federation.held_tests[client]
            test = Split(own.x[held], own.y[held])
        elif federation.client_tests is not None:
            held = federation.client_tests[client]
            test = Split(data.test.x[held], data.test.y[held])
        return cls(data.name, Split(own.x[rows], own.y[rows]), data.transform, test, data.test)

    @classmethod
    def of_arrays(cls, name: str, train: Split, test: Split | None = None) -> SiteData:
        """Arrays as they are; pixels (uint8) are divided by 255."""
        for what, other in {} if test is None else {"inputs": (train.x, test.x), "targets": (train.y, test.y)}.items():
            if other[0].dtype != other[1].dtype or other[0].shape[1:] != other[1].shape[1:]:
                raise DataError(f"the test {what} of {name} are not like those that it trains on.")
        return cls(name, train, Transform(255.0 if train.x.dtype.name == "uint8" else 1.0), test)

    @cached_property
    def digest(self) -> str:
        """Of everything that training and evaluation here depend on: 32 hexadecimal digits."""
        how = self.transform
        tests = ["none" if split is None else digest(split.x, split.y) for split in (self.test, self.common)]
        words = repr((how.scale, how.mean, how.std, how.augment, *tests))
        return digest(self.train.x, self.train.y, words=words)

    @property
    def classes(self) -> int:
        """One more than the largest label; 0 where targets are real numbers."""
        if self.train.y.dtype.name == "float32":
            return 0
        splits = [split for split in (self.train, self.test) if split is not None]
        return max(1, *(int(split.y.max()) + 1 for split in splits))

    def facts(self, client: int) -> Facts:
        """What the site says of itself."""
        x, y = self.train.x, self.train.y
        return Facts(
            client=client,
            samples=len(y),
            input_shape=tuple(x.shape[1:]),
            inputs=str(x.dtype),
            target_shape=tuple(y.shape[1:]),
            targets=str(y.dtype),
            classes=self.classes,
            has_test=self.test is not None,
            data=self.digest,
            fedkeel=__version__,
            torch=torch.__version__,
        )


def read(
    source: str, client: int, test: Path | None = None, targets: str = "labels", data_dir: Path | None = None
) -> SiteData:
    """The data of a site from what its operator names.

    ``experiment.toml``: this client's share of the experiment's data, dealt as in a simulation; ``mine.npz``: arrays
    ``x`` and ``y``; ``module:function``: a function of the operator's own that returns x and y, and perhaps x_test and
    y_test behind them.
    """
    if source.endswith(".toml"):
        _require_absent(test, "an experiment, which has its own")
        experiments = config.read(Path(source))
        if len({(e.seed, str(e.data), str(e.partition)) for e in experiments}) > 1:
            raise InputError(
                f"{source} is a sweep over data, partitions or seeds; a site has one share of one of them."
            )
        return SiteData.of(build.make_federation(experiments[0], data_dir), client)
    if source.endswith(".npz"):
        tested = None if test is None else _npz(test, targets)
        return SiteData.of_arrays(Path(source).name, _npz(Path(source), targets), tested)
    if ":" in source:
        _require_absent(test, "a function, which returns it")
        return _from_function(source, targets)
    raise InputError(
        f"--data must be an experiment (experiment.toml), arrays (mine.npz) or a function (module:function), got "
        f"{shown(source)}."
    )


def _npz(path: Path, targets: str) -> Split:
    x, y = read_npz(path, ("x", "y"))
    return as_split(x, y, path.name, targets)


def _from_function(source: str, targets: str) -> SiteData:
    module, _, name = source.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"--data {shown(source)} cannot be imported: {error}.") from None
    if not callable(function):
        raise InputError(f"--data {shown(source)} must be a function, got {shown(function)}.")
    try:
        found = function()
    except Exception as error:  # whatever a function of somebody's own may raise
        raise InputError(f"--data {shown(source)} raised {type(error).__name__}: {error}.") from error
    if not isinstance(found, tuple | list) or len(found) not in (2, 4):
        raise InputError(f"{shown(source)} must return x and y, or x, y, x_test and y_test, got {shown(found)}.")
    test = as_split(found[2], found[3], f"{source}.test", targets) if len(found) == 4 else None
    return SiteData.of_arrays(source, as_split(found[0], found[1], source, targets), test)


def _require_absent(test: Path | None, beside: str) -> None:
    if test is not None:
        raise InputError(f"--test must be absent beside {beside}, got {shown(str(test))}.")
