"""CIFAR-10 and CIFAR-100 from the official binary version (no pickles): label bytes, then 3 × 32 × 32 pixels."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkeel.data.dataset import Dataset, Split
from fedkeel.data.sources.cifar_names import CIFAR10_NAMES, CIFAR100_NAMES
from fedkeel.data.sources.files import DAMAGE, Place, Remote, check_md5, file_md5, incomplete, read_whole, regular
from fedkeel.data.sources.source import Request, Source
from fedkeel.errors import DataError

PIXELS = 3 * 32 * 32
CITATION = "Krizhevsky, 'Learning Multiple Layers of Features from Tiny Images', technical report, 2009"
LICENCE = "none stated by the authors; research use with citation"


@dataclass(frozen=True)
class Layout:
    """The official files: name -> (records, md5 of the content or None where none is published)."""

    name: str
    class_names: tuple[str, ...]
    label_bytes: int  # CIFAR-100 puts the coarse label first; the last one is the class
    train: dict[str, tuple[int, str | None]]
    test: dict[str, tuple[int, str | None]]
    archive: Remote


CIFAR10 = Layout(
    "cifar10",
    CIFAR10_NAMES,
    1,
    {
        "data_batch_1.bin": (10000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
        "data_batch_2.bin": (10000, "5ea93a67294ea407fff1d09f752e9692"),
        "data_batch_3.bin": (10000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
        "data_batch_4.bin": (10000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
        "data_batch_5.bin": (10000, "53f37980c15c3d472c316c40844f3f0d"),
    },
    {"test_batch.bin": (10000, "803d5f7f4d78ea53de84dbe85f74fb6d")},
    Remote(
        "cifar-10-binary.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
)
CIFAR100 = Layout(
    "cifar100",
    CIFAR100_NAMES,
    2,
    {"train.bin": (50000, None)},
    {"test.bin": (10000, None)},
    Remote(
        "cifar-100-binary.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
)


def load_cifar(request: Request, layout: Layout) -> Dataset:
    """Both parts of a CIFAR set; with ``subset_ok`` whatever training batches are there."""
    contents = _collect(request.place, layout, request.subset_ok)
    train = _records(contents, layout, layout.train)
    test = _records(contents, layout, layout.test)
    whole = sum(records for records, _ in layout.train.values())
    note = "" if len(train) == whole else f"train subset: {len(train):,} of {whole:,}"
    classes = len(layout.class_names)
    return Dataset(layout.name, train, test, classes, layout.class_names, request.transform, CITATION, LICENCE, note)


def _collect(place: Place, layout: Layout, subset_ok: bool) -> dict[str, bytes]:
    """The content of every file that is there, from single files or the archive, each checked."""
    wanted = {**layout.train, **layout.test}
    found = {name: path for name in wanted if (path := place.find([name, f"{name}.xz"])) is not None}
    missing = [name for name in wanted if name not in found]
    if missing:
        archive = place.find([layout.archive.name])
        if archive is None and found:
            usable = any(name in found for name in layout.train) and all(name in found for name in layout.test)
            if not (subset_ok and usable):
                folder = next(iter(found.values())).parent
                message = f"{layout.name} in {folder} is incomplete: add {', '.join(missing)}"
                raise incomplete(message) if usable else DataError(f"{message}.")
        else:
            if archive is None:
                place.fetch([layout.archive])
                archive = place.cache / layout.archive.name
            return _read_archive(archive, layout)
    contents = {}
    for name, path in found.items():
        records, md5 = wanted[name]
        contents[name] = read_whole(path, records * (layout.label_bytes + PIXELS))
        _check(contents[name], records, md5, layout, path)
    return contents


def _there(place: Place, layout: Layout) -> bool:
    files = all(place.find([name, f"{name}.xz"]) is not None for name in (*layout.train, *layout.test))
    return files or place.find([layout.archive.name]) is not None


def _read_archive(path: Path, layout: Layout) -> dict[str, bytes]:
    """All files out of the official archive, read in place; nothing is extracted."""
    regular(path)
    wanted = {**layout.train, **layout.test}
    contents: dict[str, bytes] = {}
    if any(md5 is None for _, md5 in wanted.values()) and file_md5(path) != layout.archive.md5:
        # Of CIFAR-100 only the archive's md5 is published, not those of its members.
        raise DataError(f"{path} is not the canonical file (its md5 must be {layout.archive.md5}): fetch it again.")
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if member.isfile() and name in wanted:
                    records, md5 = wanted[name]
                    file = archive.extractfile(member)
                    assert file is not None
                    contents[name] = file.read(records * (layout.label_bytes + PIXELS) + 1)
                    _check(contents[name], records, md5, layout, f"{path}:{name}")
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged or cut short, fetch it again.") from error
    missing = [name for name in wanted if name not in contents]
    if missing:
        raise DataError(f"{path} must hold {', '.join(missing)}: it is not {layout.archive.name}, fetch it again.")
    return contents


def _check(content: bytes, records: int, md5: str | None, layout: Layout, path: object) -> None:
    expected = records * (layout.label_bytes + PIXELS)
    if len(content) != expected:
        raise DataError(f"{path} must hold {expected:,} bytes, got {len(content):,}: it is damaged, fetch it again.")
    if md5 is not None:
        check_md5(content, md5, path)


def _records(contents: dict[str, bytes], layout: Layout, names: dict[str, tuple[int, str | None]]) -> Split:
    present = [np.frombuffer(contents[name], np.uint8) for name in names if name in contents]
    table = np.concatenate(present).reshape(-1, layout.label_bytes + PIXELS)
    labels = table[:, layout.label_bytes - 1].astype(np.int64)
    if labels.max() >= len(layout.class_names):
        raise DataError(f"{layout.name} must have labels below {len(layout.class_names)}, got {labels.max()}: damaged.")
    pixels = np.ascontiguousarray(table[:, layout.label_bytes :])
    return Split(pixels.reshape(-1, 3, 32, 32), labels)


SOURCES = (
    Source(
        "cifar10",
        "photographs 32 × 32 of ten kinds of things",
        50000,
        10000,
        10,
        True,
        lambda request: load_cifar(request, CIFAR10),
        {
            "standard": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
            "gradma": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        },
        ("cifar-10-binary", "cifar-10-batches-bin", "cifar10", "cifar-10"),
        there=lambda place: _there(place, CIFAR10),
    ),
    Source(
        "cifar100",
        "photographs 32 × 32 of a hundred kinds of things",
        50000,
        10000,
        100,
        True,
        lambda request: load_cifar(request, CIFAR100),
        {"standard": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))},
        ("cifar-100-binary", "cifar100", "cifar-100"),
        there=lambda place: _there(place, CIFAR100),
    ),
)
