"""Files and numbers that nobody vouches for: refused in a sentence, before they cost time or memory, never changed."""

import math
import os
import resource
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.data import from_arrays, from_clients, from_npz_folder, load
from fedkeel.data.npz import read_npz
from fedkeel.errors import DataError, FedkeelError, InputError

ROOT = Path(__file__).parents[2]
Y = np.array([0, 1])


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "dangling": lambda path: os.symlink(path.parent / "nowhere", path),
    "loop": lambda path: os.symlink(path, path),
    "device": lambda path: os.symlink("/dev/zero", path),
    "socket": unix_socket,
    "empty": Path.touch,
}
FILES = {
    "mnist": "train-images-idx3-ubyte.gz",
    "emnist_letters": "gzip.zip",
    "cifar10": "cifar-10-binary.tar.gz",
    "cifar100": "cifar-100-binary.tar.gz",
    "tiny_imagenet": "tiny-imagenet-200.zip",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[kind](tmp_path / "0.npz")
    with pytest.raises(DataError, match=r"0\.npz"):
        from_npz_folder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_no_source_opens_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    KINDS[kind](tmp_path / FILES[name])
    if name == "mnist":  # all four of its files are needed
        for other in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            (tmp_path / f"{other}-ubyte.gz").touch()
    with pytest.raises(DataError):
        load(name, tmp_path, download=False, subset_ok=True)


def test_an_archive_that_swells_is_not_unpacked(tmp_path: Path) -> None:
    """Two arrays of 2 GB in 4 MB of file; a process that may take 1.5 GB says no without taking them."""
    header = (
        b"\x93NUMPY\x01\x00\x76\x00" + str({"descr": "|u1", "fortran_order": False, "shape": (2, 1 << 30)}).encode()
    )
    header = header.ljust(127) + b"\n"
    with zipfile.ZipFile(tmp_path / "0.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("x", "y"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(header)
                for _ in range(24):  # the header promises more, which is another lie
                    member.write(bytes(1 << 24))
    code = "from fedkeel.data import from_npz_folder as f\nf('.')"
    limit = 3 << 29
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert "DataError" in result.stderr
    assert "x would grow from" in result.stderr
    assert "save them with np.savez" in result.stderr


def test_compressed_data_are_read(tmp_path: Path) -> None:
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((40, 7)).astype(">f8"))
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(40))
    read, labels = read_npz(tmp_path / "a.npz", ("x", "y"))
    assert (read == x).all()
    assert read.dtype == np.float64
    assert labels.tolist() == list(range(40))


WHOLE = [np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@settings(deadline=None)
@given(data=st.data())
def test_whole_numbers_stay_what_they_are_or_are_refused(data: st.DataObject) -> None:
    """Whatever the type: float32 holds exactly what was given, or one sentence names a number that it cannot hold."""
    limits = np.iinfo(data.draw(st.sampled_from(WHOLE)))
    near = st.integers(20, 64).flatmap(lambda k: st.integers(2**k - 3, 2**k + 3)).map(lambda v: min(v, limits.max))
    values = data.draw(st.lists(st.integers(limits.min, limits.max) | near, min_size=2, max_size=2))
    x = np.array(values, dtype=limits.dtype)[:, None]
    inexact = [value for value in values if int(float(np.float32(value))) != value]
    if inexact:
        with pytest.raises(InputError, match=f"got {inexact[0]}\\."):
            from_arrays(x, Y, x, Y)
    else:
        assert [int(float(value)) for value in from_arrays(x, Y, x, Y).train.x.flat] == values


@settings(deadline=None)
@given(
    labels=st.lists(
        st.integers(-(2**40), 2**62) | st.floats() | st.booleans() | st.integers(0, 9), min_size=2, max_size=2
    )
)
def test_labels_are_whole_and_few_or_refused(labels: list[Any]) -> None:
    x = np.ones((2, 3))
    if all(math.isfinite(label) and label == int(label) and 0 <= label < 1 << 20 for label in labels):
        data = from_arrays(x, labels, x, labels)
        assert data.train.y.tolist() == labels
        assert data.classes == max(labels) + 1
    else:
        with pytest.raises(InputError, match=r"own\.train\.y must be whole numbers"):
            from_arrays(x, labels, x, labels)


@pytest.mark.parametrize("classes", [0, -1, 10**9, 2.0, True])
def test_classes_are_a_sensible_number(classes: Any) -> None:
    with pytest.raises(InputError, match=r"own\.classes must be a whole number from 1"):
        from_arrays(np.ones((2, 3)), Y, np.ones((2, 3)), Y, classes=classes)


def test_numbers_beyond_float32_are_named() -> None:
    x = np.array([[1.0], [1e300]])
    with pytest.raises(InputError, match=r"finite numbers of float32, up to 3\.4e38, got '1e\+300 in sample 1'"):
        from_arrays(x, Y, x, Y)


@pytest.mark.parametrize("seed", [1.5, 2**63, -1, True, "1", None, np.float64(2)])
def test_seeds_of_data_are_whole_numbers(seed: Any) -> None:
    pair = (np.ones((4, 2)), np.array([0, 1, 0, 1]))
    for use in (
        lambda: from_clients([pair], seed=seed),
        lambda: from_clients([pair]).hold_out(0.5, seed),
        lambda: from_arrays(*pair, *pair).partition("iid", 2, seed),
        lambda: load("synthetic_feddyn", seed=seed),
    ):
        with pytest.raises(InputError, match=r"seed must be a whole number from 0 to 2\^63 - 1"):
            use()
    assert from_clients([pair], seed=np.int64(3)).rule["seed"] == 3  # numpy's whole numbers are whole numbers


def test_a_generated_set_larger_than_memory_is_refused() -> None:
    for setting in ({"clients": 10**9}, {"samples": 10**12}, {"features": 10**9}, {"classes": 10**9}):
        with pytest.raises(FedkeelError, match="Generate less"):
            load("synthetic_feddyn", **setting)
