"""Tiny-ImageNet: 200 classes of 64 × 64 JPEGs in the official layout, as a zip, a tar.gz or a folder.

Decoded arrays are kept in the user's cache, because decoding 110,000 JPEGs takes minutes.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.data.dataset import Dataset, Split
from fedkeel.data.sources.files import DAMAGE, Place, Remote, atomic, file_md5, incomplete, regular
from fedkeel.data.sources.source import Request, Source
from fedkeel.errors import DataError

TRAIN, VAL, CLASSES, SIDE = 100_000, 10_000, 200, 64
LARGEST_MEMBER = 4 << 20  # words.txt, the largest file of the set, has 2.6 MB
ARCHIVE = Remote(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "90528d7ca1a48142e341f4ef8d21d0de",
)
NAMES = (ARCHIVE.name, "tiny-imagenet-200.tar.gz", "tiny-imagenet-200-subset.tar.gz", "tiny-imagenet-200", "wnids.txt")


def load_tiny_imagenet(request: Request) -> Dataset:
    """Training and validation part (the official test part has no labels); with ``subset_ok`` any part of them."""
    path = _find(request.place)
    stored = _decoded(path, request.place.cache)
    train, test = (Split(stored[f"x_{part}"], stored[f"y_{part}"].astype(np.int64)) for part in ("train", "val"))
    note = ""
    if (len(train), len(test)) != (TRAIN, VAL):
        note = f"subset: {len(train):,} of {TRAIN:,} training and {len(test):,} of {VAL:,} validation images"
        if not request.subset_ok:
            raise incomplete(f"tiny_imagenet in {path} is incomplete ({note}): add {ARCHIVE.name}")
    return Dataset(
        "tiny_imagenet",
        train,
        test,
        CLASSES,
        tuple(stored["names"].tolist()),
        request.transform,
        "Le, Yang, 'Tiny ImageNet Visual Recognition Challenge', CS231N, 2015; Deng et al., 'ImageNet', CVPR 2009",
        "ImageNet terms: non-commercial research and education only",
        note,
    )


def _find(place: Place) -> Path:
    path = place.find(NAMES)
    if path is None:
        place.fetch([ARCHIVE])
        path = place.cache / ARCHIVE.name
    if path.name == "wnids.txt":
        return path.parent
    return path if path.suffix not in (".zip", ".gz") and path.is_dir() else regular(path)


def _decoded(path: Path, cache: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the set, from the cache where this very archive or folder was decoded before."""
    kept = cache / f"decoded-{_fingerprint(path)}.npz"
    if kept.exists():
        try:
            with np.load(kept, allow_pickle=False) as stored:
                return {key: stored[key] for key in ("x_train", "y_train", "x_val", "y_val", "names")}
        except DAMAGE:
            kept.unlink()  # a damaged copy is made anew
    arrays = _decode(path)
    try:
        with atomic(kept) as temporary:
            np.savez(temporary, allow_pickle=False, **arrays)
    except OSError:
        pass  # a cache that cannot be written costs time at the next load, nothing else
    return arrays


def _fingerprint(path: Path) -> str:
    """Of an archive its content, of a folder the names and sizes of its files."""
    if not path.is_dir():
        return file_md5(path)
    digest = hashlib.md5(usedforsecurity=False)
    for file in sorted(path.rglob("*")):
        if file.is_file():  # a link may lead nowhere
            digest.update(f"{file.relative_to(path)}:{file.stat().st_size}\n".encode())
    return digest.hexdigest()


def _decode(path: Path) -> dict[str, npt.NDArray[Any]]:
    texts: dict[str, str] = {}
    # Pixels grow in one buffer per part: the whole set has 1.4 GB, which must not be held twice.
    pixels = {"train": bytearray(), "val": bytearray()}
    owners: dict[str, list[str]] = {"train": [], "val": []}
    try:
        for name, content in _members(path):
            parts = name.split("/")
            if name.endswith(".JPEG"):
                label = parts[1] if parts[0] == "train" else parts[-1]
                owners[parts[0]].append(label)
                pixels[parts[0]] += _pixels(content, f"{path}:{name}")
            else:
                texts[name] = content.decode()
        wnids = texts["wnids.txt"].split()
        of_val = dict(line.split("\t")[:2] for line in texts["val/val_annotations.txt"].splitlines())
        words = dict(line.split("\t")[:2] for line in texts["words.txt"].splitlines())
        number = {wnid: i for i, wnid in enumerate(wnids)}
        labels = {
            "train": [number[label] for label in owners["train"]],
            "val": [number[of_val[label]] for label in owners["val"]],
        }
    except DAMAGE as error:
        raise DataError(f"{path} is not Tiny-ImageNet in its official layout ({error}): fetch it again.") from error
    if len(wnids) != CLASSES or not labels["train"] or not labels["val"]:
        raise DataError(f"{path} must hold {CLASSES} classes with training and validation images: fetch it again.")
    arrays: dict[str, npt.NDArray[Any]] = {"names": np.array([words.get(w, w).split(",")[0] for w in wnids])}
    for part in ("train", "val"):
        arrays[f"x_{part}"] = np.frombuffer(pixels[part], np.uint8).reshape(-1, 3, SIDE, SIDE)
        arrays[f"y_{part}"] = np.array(labels[part], dtype=np.int64)
    return arrays


def _wanted(name: str) -> str | None:
    """A member's name from the set's root, or None if it is not needed (boxes, the unlabelled test part)."""
    parts = name.split("/")
    for start, part in enumerate(parts):
        inner = parts[start:]
        if part == "train" and len(inner) == 4 and inner[2] == "images" and inner[3].endswith(".JPEG"):
            return "/".join(inner)
        if part == "val" and (inner[1:] == ["val_annotations.txt"] or (len(inner) == 3 and inner[2].endswith(".JPEG"))):
            return "/".join(inner)
    return parts[-1] if parts[-1] in ("wnids.txt", "words.txt") else None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every needed file, in the order of names; archives are read in place."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            name = _wanted(file.relative_to(path).as_posix())
            if name and file.is_file():
                yield name, _bounded(file.stat().st_size, name, file.read_bytes)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                if name := _wanted(info.filename):
                    yield name, _bounded(info.file_size, name, lambda info=info: archive.read(info))
    else:
        with tarfile.open(path, "r:gz") as tape:
            found = {}
            for member in tape:  # a compressed tar can be read fast only in its own order
                if member.isfile() and (name := _wanted(member.name)):
                    stream = tape.extractfile(member)
                    assert stream is not None
                    found[name] = _bounded(member.size, name, stream.read)
                if len(found) > TRAIN + VAL + 3:
                    raise ValueError(f"more than {TRAIN + VAL:,} images")
        yield from sorted(found.items())


def _bounded(size: int, name: str, read: Any) -> bytes:
    if size > LARGEST_MEMBER:
        raise ValueError(f"{name} has {size:,} bytes")
    content: bytes = read()
    return content


def _pixels(content: bytes, name: str) -> bytes:
    """One image as the bytes of uint8 [3, 64, 64]; grey ones become RGB."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("tiny_imagenet needs Pillow to read JPEGs: pip install 'fedkeel[images]'.") from error
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        if image.size != (SIDE, SIDE):
            raise DataError(f"{name} must be an image of 64 × 64 pixels, got {image.size[0]} × {image.size[1]}.")
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1).tobytes()


SOURCES = (
    Source(
        "tiny_imagenet",
        "photographs 64 × 64 of 200 kinds of things",
        TRAIN,
        VAL,
        CLASSES,
        True,
        load_tiny_imagenet,
        {"standard": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))},
        ("tiny-imagenet", "tiny-imagenet-200", "tiny_imagenet"),
        there=lambda place: place.find(NAMES) is not None,
    ),
)
