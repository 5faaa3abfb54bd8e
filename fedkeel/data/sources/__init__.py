"""Data sets by name: embedded, found on disk, downloaded or generated."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

from fedkeel import arguments
from fedkeel.data.dataset import Dataset, Federation
from fedkeel.data.sources import cifar, grey, synthetic, tiny_imagenet
from fedkeel.data.sources.files import Place, cache_folder, place
from fedkeel.data.sources.source import Request, Source
from fedkeel.errors import InputError, unknown

Folder = str | os.PathLike[str] | None
SOURCES: dict[str, Source] = {
    source.name: source
    for family in (grey.SOURCES, cifar.SOURCES, tiny_imagenet.SOURCES, synthetic.SOURCES)
    for source in family
}


def sources() -> list[Source]:
    """Every data set that :func:`load` knows: name, one line, sizes, classes, whether it must be downloaded."""
    return list(SOURCES.values())


def is_there(name: str, data_dir: Folder = None) -> bool:
    """Whether :func:`load` would find a set without downloading anything."""
    source = SOURCES[name]
    return not source.download or source.there(place(name, source.spellings, data_dir, download=False))


def is_path(name: str) -> bool:
    """Whether a data set's name is the path of a folder, such as ``./sites``; a bare name is a built-in set's."""
    separators = {"/", os.sep, os.altsep or os.sep}
    return name in (".", "..") or any(separator in name for separator in separators)


def brings_clients(name: str) -> bool:
    """Whether a data set comes dealt to its clients, so that no partition rule has a say: folders and generated sets.

    Names that no set has count as folders, as they did for earlier versions.
    """
    return name not in SOURCES or bool(SOURCES[name].params)


GIVEN = "given"
"""In place of a name in the configuration of a run whose data were given to ``fedkeel.run`` as an object."""


SITES = "sites"
"""In place of a name where every site of a network holds data of its own."""


def check_name(name: str) -> None:
    """Refuse a name that is neither a built-in set's nor a path, nor says that sites have the data."""
    if is_path(name) or name in SOURCES or name == SITES:
        return
    if name == GIVEN:
        raise InputError(
            f"data.name is {GIVEN!r}: the data of this run were given in Python, and no file says where they are; go "
            "on there with fedkeel.run(…, federation=…, resume=True), or name a data set."
        )
    raise unknown("data set", name, sorted(SOURCES), f"The folder is written ./{name}." if os.path.isdir(name) else "")


FileSet = Literal[
    "mnist5k", "mnist", "mnist_even_odd", "fashion_mnist", "emnist_letters", "cifar10", "cifar100", "tiny_imagenet"
]
GeneratedSet = Literal["synthetic_feddyn", "synthetic_fedprox"]


@overload
def load(
    name: FileSet,
    data_dir: Folder = None,
    normalise: str = "standard",
    augment: str | None = None,
    subset_ok: bool = False,
    download: bool = True,
) -> Dataset: ...


@overload
def load(name: GeneratedSet, **params: Any) -> Federation: ...


@overload
def load(
    name: str,
    data_dir: Folder = None,
    normalise: str = "standard",
    augment: str | None = None,
    subset_ok: bool = False,
    download: bool = True,
    **params: Any,
) -> Dataset | Federation: ...


def load(
    name: str,
    data_dir: Folder = None,
    normalise: str = "standard",
    augment: str | None = None,
    subset_ok: bool = False,
    download: bool = True,
    **params: Any,
) -> Dataset | Federation:
    """Load a data set by name; a generated one comes as a :class:`Federation`, because its clients come with it.

    Files are looked for in ``data_dir`` (else the folder in $FEDKEEL_DATA), then in the user's cache, and are
    downloaded into the cache if they are nowhere. ``normalise`` is "standard" (the papers' constants), "unit"
    (pixels / 255) or another name of the source. An incomplete set is refused unless ``subset_ok``; its ``note`` then
    says what is there. ``params`` are those of a generated set.
    """
    name = arguments.text("the name of a data set", name)
    if name not in SOURCES:
        check_name(name)
        raise InputError(f"{name} is a path, not the name of a data set; fedkeel.data.from_npz_folder reads folders.")
    source = SOURCES[name]
    for key in params:
        if key not in source.params:
            raise unknown(f"parameter of data set {name!r}", key, sorted(source.params) or ["(it takes none)"])
    transform = source.transform(normalise, augment)
    if source.download:
        where = place(name, source.spellings, data_dir, download)
    else:  # embedded and generated sets must work whatever folders are named
        where = Place(name, (), cache_folder(), False)
    return source.load(Request(where, transform, subset_ok, params))


__all__ = ["SITES", "SOURCES", "Source", "brings_clients", "check_name", "is_path", "is_there", "load", "sources"]
