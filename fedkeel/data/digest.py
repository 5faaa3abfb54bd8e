"""A federation in a few short digests, so that a run can tell whether it goes on with the data that it began with.

One digest for each thing that a result depends on: an error can then say what has changed. SHA-256, because
processors have instructions for it: 47 MB of MNIST take 30 ms.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.data.dataset import Federation

WHAT = {
    "samples": "the training samples",
    "labels": "the training labels",
    "test samples": "the test samples",
    "test labels": "the test labels",
    "partition": "which samples each client holds",
    "client tests": "which test samples each client has of its own",
    "validation": "the samples held out for validation",
    "transform": "scale, normalisation or augmentation",
    "classes": "the number of classes",
}
"""What each digest stands for, in words."""
BESIDE = {
    "devices": "the devices (clock.devices)",
    "sessions": "the hours at which clients are online (clock.sessions)",
}
"""Files that decide a run's virtual time beside its data; runs with other ones may still be compared."""
_BLOCK = 64 << 20


def digests(federation: Federation) -> dict[str, str]:
    """One digest for each key of :data:`WHAT`; equal federations have equal ones on every machine."""
    data = federation.dataset
    transform = data.transform
    return {
        "samples": _digest(data.train.x),
        "labels": _digest(data.train.y),
        "test samples": _digest(data.test.x),
        "test labels": _digest(data.test.y),
        "partition": _digest(*_lists(federation.clients)),
        "client tests": _tests(federation),
        "validation": "none" if federation.validation is None else _digest(federation.validation),
        "transform": repr((transform.scale, transform.mean, transform.std, transform.augment)),
        "classes": str(data.classes),
    }


def digest(*arrays: npt.NDArray[Any], words: str = "") -> str:
    """Of arrays and of words beside them: 32 hexadecimal digits."""
    return hashlib.sha256(f"{_digest(*arrays)} {words}".encode()).hexdigest()[:32]


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs, in words and in the order of :data:`WHAT`; a digest that only one side has counts as a difference.

    Other keys are those of clients whose samples are at sites of their own (``client 3``).

    A reordered or renewed data set changes many digests at once, so that all of them are named.
    """
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    words = WHAT | BESIDE
    return [words[key] for key in words if key in changed] + [
        f"the samples of {key}" for key in changed if key not in words
    ]


def _tests(federation: Federation) -> str:
    if federation.held_tests is not None:
        return f"held out {_digest(*_lists(federation.held_tests))}"
    return "none" if federation.client_tests is None else _digest(*_lists(federation.client_tests))


def _lists(parts: tuple[npt.NDArray[np.int64], ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Many index lists as two arrays: there may be a million of them."""
    sizes = np.fromiter((part.size for part in parts), dtype=np.int64, count=len(parts))
    return sizes, np.concatenate(parts)


def _digest(*arrays: npt.NDArray[Any]) -> str:
    """Of type, shape and values as stored, little-endian."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.newbyteorder('<').str} {list(array.shape)};".encode())
        rows = max(1, _BLOCK // max(1, array[:1].nbytes))  # of a view or a mapped file, only a block is copied
        for start in range(0, len(array), rows):
            block = np.ascontiguousarray(array[start : start + rows])
            found.update(block.astype(block.dtype.newbyteorder("<"), copy=False).data.cast("B"))
    return found.hexdigest()[:32]
