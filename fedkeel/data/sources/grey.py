"""28 × 28 grey images in idx files: MNIST, its embedded sample and even/odd task, Fashion-MNIST, EMNIST letters."""

from __future__ import annotations

import gzip
import struct
import zipfile
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.data.dataset import Dataset, Split
from fedkeel.data.sources.files import DAMAGE, Place, Remote, check_md5, incomplete, read_whole, regular
from fedkeel.data.sources.source import UNIT, Constants, Request, Source, part_generator
from fedkeel.errors import DataError

Bytes = npt.NDArray[np.uint8]
SIDE = 28
MNIST_CITATION = (
    "LeCun, Bottou, Bengio, Haffner, 'Gradient-based learning applied to document recognition', Proc. IEEE 86(11), 1998"
)
MNIST_LICENCE = "CC BY-SA 3.0 (Y. LeCun, C. Cortes)"
DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

# stem of the file: samples, md5 of the canonical .gz (for downloads), md5 of its content (for whatever is found)
FILES = {
    "mnist": {
        "train-images-idx3-ubyte": (60000, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte": (60000, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        "t10k-images-idx3-ubyte": (10000, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte": (10000, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": (60000, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        "train-labels-idx1-ubyte": (60000, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        "t10k-images-idx3-ubyte": (10000, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        "t10k-labels-idx1-ubyte": (10000, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
}
URLS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion_mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
}
EMNIST_ARCHIVE = Remote(
    "gzip.zip", ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",), "58c8d27c78d21e728a6bc7b3cc06412e"
)
EMNIST_FILES = {
    "emnist-letters-train-images-idx3-ubyte": 124800,
    "emnist-letters-train-labels-idx1-ubyte": 124800,
    "emnist-letters-test-images-idx3-ubyte": 20800,
    "emnist-letters-test-labels-idx1-ubyte": 20800,
}
EMNIST_SUBSET = ("emnist-letters-test-first10000-images-idx3-ubyte", "emnist-letters-test-first10000-labels-idx1-ubyte")
EMNIST_CLASSES = 10
EMNIST_SPLIT_KEY = (2026, 10000)


def parse_idx(content: bytes, images: bool, samples: int, path: object) -> Bytes:
    """The array in an idx file of uint8: [samples, 28, 28] for images, [samples] for labels; the header is checked."""
    shape = (samples, SIDE, SIDE) if images else (samples,)
    head = 4 + 4 * len(shape)
    magic = 0x00000800 + len(shape)
    if len(content) < head:
        raise DataError(f"{path} is cut short: an idx file has a header of {head} bytes, got {len(content)}.")
    got_magic, *got_shape = struct.unpack(f">{1 + len(shape)}I", content[:head])
    if got_magic != magic:
        raise DataError(f"{path} is no idx file of this kind: it must begin with {magic:#010x}, got {got_magic:#010x}.")
    if tuple(got_shape) != shape:
        raise DataError(f"{path} must hold {list(shape)} values, its header says {got_shape}: it is another file.")
    if len(content) - head != np.prod(shape):
        raise DataError(f"{path} must hold {np.prod(shape):,} values, got {len(content) - head:,}: it is cut short.")
    return (
        np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()
    )  # a copy can be written, as torch expects


def read_idx(path: Path, samples: int, md5: str | None = None) -> Bytes:
    """Read an idx file, plain or ``.gz``; ``md5`` is that of its decompressed content."""
    images = "images" in path.name
    content = read_whole(path, 4 + 4 * (3 if images else 1) + samples * (SIDE * SIDE if images else 1))
    values = parse_idx(content, images, samples, path)
    if md5 is not None:
        check_md5(content, md5, path)
    return values


def _spelled(stem: str) -> tuple[str, ...]:
    """The names a canonical idx file goes by."""
    plain = (stem, stem.replace("-idx", ".idx"))
    return (*(f"{name}.gz" for name in plain), *plain)


def _read_canonical(place: Place, name: str) -> dict[str, Bytes]:
    """The four files of MNIST or Fashion-MNIST, downloaded if none is there."""
    table = FILES[name]
    found = {stem: place.find(_spelled(stem)) for stem in table}
    missing = [stem for stem, path in found.items() if path is None]
    if missing:
        remotes = [
            Remote(f"{stem}.gz", tuple(f"{base}{stem}.gz" for base in URLS[name]), table[stem][1]) for stem in missing
        ]
        place.fetch(remotes)
        found = {stem: place.find(_spelled(stem)) for stem in table}
    return {stem: read_idx(path, table[stem][0], table[stem][2]) for stem, path in found.items() if path is not None}


def _canonical_there(place: Place, name: str) -> bool:
    return all(place.find(_spelled(stem)) is not None for stem in FILES[name])


def _emnist_there(place: Place) -> bool:
    whole = all(place.find(_spelled(stem)) is not None for stem in EMNIST_FILES)
    part = all(place.find(_spelled(stem)) is not None for stem in EMNIST_SUBSET)
    return whole or part or place.find([EMNIST_ARCHIVE.name]) is not None


def _split(x: Bytes, y: Bytes) -> Split:
    return Split(x[:, None], y.astype(np.int64))


def load_mnist(request: Request) -> Dataset:
    """MNIST, 60,000 + 10,000 digits."""
    return _canonical(request, "mnist", DIGITS, MNIST_CITATION, MNIST_LICENCE)


def load_fashion(request: Request) -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 pieces of clothing."""
    citation = "Xiao, Rasul, Vollgraf, 'Fashion-MNIST', arXiv:1708.07747, 2017"
    return _canonical(request, "fashion_mnist", CLOTHES, citation, "MIT, Copyright 2017 Zalando SE")


def _canonical(request: Request, name: str, classes: tuple[str, ...], citation: str, licence: str) -> Dataset:
    table = _read_canonical(request.place, name)
    train = _split(table["train-images-idx3-ubyte"], table["train-labels-idx1-ubyte"])
    test = _split(table["t10k-images-idx3-ubyte"], table["t10k-labels-idx1-ubyte"])
    return Dataset(name, train, test, len(classes), classes, request.transform, citation, licence)


def load_mnist5k(request: Request) -> Dataset:
    """The embedded sample of MNIST: 4,000 + 1,000 digits, equally many of each."""
    with as_file(files("fedkeel.data.embedded") / "mnist5k.npz") as path, np.load(path, allow_pickle=False) as stored:
        train, test = (_split(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    note = "embedded sample: 5,000 of MNIST's 60,000 training images, split 4,000 / 1,000"
    return Dataset("mnist5k", train, test, 10, DIGITS, request.transform, MNIST_CITATION, MNIST_LICENCE, note)


def load_even_odd(request: Request) -> Dataset:
    """MNIST as a task with two classes, even and odd digits; partition rules still see the digits."""
    mnist = load_mnist(request)
    return replace(
        mnist,
        name="mnist_even_odd",
        train=Split(mnist.train.x, mnist.train.y % 2),
        test=Split(mnist.test.x, mnist.test.y % 2),
        classes=2,
        class_names=("even", "odd"),
        partition_labels=mnist.train.y,
    )


def load_emnist(request: Request) -> Dataset:
    """The letters A to J of EMNIST letters, 48,000 + 8,000; a known 10,000-image piece of its test set as a subset."""
    place, note = request.place, ""
    found = {stem: place.find(_spelled(stem)) for stem in EMNIST_FILES}
    subset = [place.find(_spelled(stem)) for stem in EMNIST_SUBSET]
    if all(path is not None for path in found.values()):
        table: dict[str, Any] = {stem: read_idx(path, EMNIST_FILES[stem]) for stem, path in found.items() if path}
        train = _letters(*(table[f"emnist-letters-train-{kind}-ubyte"] for kind in ("images-idx3", "labels-idx1")))
        test = _letters(*(table[f"emnist-letters-test-{kind}-ubyte"] for kind in ("images-idx3", "labels-idx1")))
    elif place.find([EMNIST_ARCHIVE.name]) is None and subset[0] is not None and subset[1] is not None:
        if not request.subset_ok:
            where = subset[0].parent
            raise incomplete(
                f"emnist_letters in {where} is incomplete (10,000 of its test images): add the four canonical files"
            )
        both = _letters(read_idx(subset[0], 10000), read_idx(subset[1], 10000))
        order = part_generator(*EMNIST_SPLIT_KEY).permutation(len(both))
        kept = len(both) * 4 // 5
        train, test = (Split(both.x[part], both.y[part]) for part in (order[:kept], order[kept:]))
        note = f"subset: letters A to J of the first 10,000 test images, split {kept:,} / {len(both) - kept:,}"
    else:
        train, test = _from_archive(place)
    return Dataset(
        "emnist_letters",
        train,
        test,
        EMNIST_CLASSES,
        tuple("ABCDEFGHIJ"),
        request.transform,
        "Cohen, Afshar, Tapson, van Schaik, 'EMNIST', arXiv:1702.05373, 2017",
        "NIST Special Database 19, no explicit licence",
        note,
    )


def _letters(images: Bytes, labels: Bytes) -> Split:
    """The first ten letters; EMNIST stores images transposed and counts labels from 1."""
    if labels.min() < 1 or labels.max() > 26:
        raise DataError(
            f"EMNIST letters must have labels 1 to 26, got {labels.min()} to {labels.max()}: another split?"
        )
    keep = labels <= EMNIST_CLASSES
    return _split(np.ascontiguousarray(images[keep].transpose(0, 2, 1)), labels[keep] - 1)


def _from_archive(place: Place) -> tuple[Split, Split]:
    """Training and test part out of NIST's ``gzip.zip``; members are read in place, nothing is extracted."""
    if place.find([EMNIST_ARCHIVE.name]) is None:
        place.fetch([EMNIST_ARCHIVE])
    path = place.find([EMNIST_ARCHIVE.name])
    assert path is not None
    regular(path)
    table = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for stem, samples in EMNIST_FILES.items():
                images = "images" in stem
                limit = 16 + samples * (SIDE * SIDE if images else 1)
                with archive.open(f"gzip/{stem}.gz") as member, gzip.open(member) as unpacked:
                    table[stem] = parse_idx(unpacked.read(limit), images, samples, f"{path}:{stem}.gz")
    except DAMAGE as error:
        raise DataError(f"{path} is not NIST's EMNIST archive ({error}): fetch it again.") from error
    parts = [
        _letters(table[f"emnist-letters-{part}-images-idx3-ubyte"], table[f"emnist-letters-{part}-labels-idx1-ubyte"])
        for part in ("train", "test")
    ]
    return parts[0], parts[1]


MNIST_CONSTANTS: dict[str, Constants] = {"standard": ((0.1307,), (0.3081,))}
MNIST_SPELLINGS = ("mnist", "MNIST/raw", "MNIST")
SOURCES = (
    Source(
        "mnist5k",
        "handwritten digits 28 × 28, embedded sample",
        4000,
        1000,
        10,
        False,
        load_mnist5k,
        MNIST_CONSTANTS,
    ),
    Source(
        "mnist",
        "handwritten digits 28 × 28",
        60000,
        10000,
        10,
        True,
        load_mnist,
        MNIST_CONSTANTS,
        MNIST_SPELLINGS,
        there=lambda place: _canonical_there(place, "mnist"),
    ),
    Source(
        "mnist_even_odd",
        "handwritten digits, even against odd (FedVeca's SVM), pixels / 255",
        60000,
        10000,
        2,
        True,
        load_even_odd,
        {"standard": UNIT},
        MNIST_SPELLINGS,
        there=lambda place: _canonical_there(place, "mnist"),
    ),
    Source(
        "fashion_mnist",
        "clothing 28 × 28",
        60000,
        10000,
        10,
        True,
        load_fashion,
        {"standard": ((0.2860,), (0.3530,))},
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
        there=lambda place: _canonical_there(place, "fashion_mnist"),
    ),
    Source(
        "emnist_letters",
        "handwritten letters A to J 28 × 28",
        48000,
        8000,
        10,
        True,
        load_emnist,
        {"standard": ((0.1722,), (0.3309,))},
        ("emnist-letters", "emnist_letters", "emnist-letters-subset", "EMNIST/raw", "emnist", "EMNIST"),
        there=_emnist_there,
    ),
)
