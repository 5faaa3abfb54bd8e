"""Sources: the embedded sample, files that are sound, missing, damaged or cut, downloads, and generated data."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedkeel.data import Federation, load, sources
from fedkeel.data.sources import FileSet, GeneratedSet, cifar, files, grey, tiny_imagenet
from fedkeel.errors import DataError, FedkeelError, InputError

RNG = np.random.default_rng(0)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def idx(values: np.ndarray) -> bytes:
    """``values`` uint8 as an idx file."""
    head = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny "MNIST" of 20 + 10 images, which the loader takes for the canonical one."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    table = {}
    for part, n in (("train", 20), ("t10k", 10)):
        images = RNG.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        for stem, values in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", np.arange(n) % 10)):
            packed = gzip.compress(idx(values))
            (folder / f"{stem}.gz").write_bytes(packed)
            table[stem] = (n, md5(packed), md5(idx(values)))
    monkeypatch.setitem(grey.FILES, "mnist", table)
    return folder


def refused(message: str, name: str = "mnist", **kwargs: Any) -> str:
    with pytest.raises(FedkeelError) as caught:
        load(name, download=False, **kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The embedded sample


def test_the_embedded_sample_is_balanced_and_normalised() -> None:
    data = load("mnist5k")
    assert data.train.x.shape == (4000, 1, 28, 28)
    assert data.test.x.shape == (1000, 1, 28, 28)
    assert np.bincount(data.train.y).tolist() == [400] * 10
    assert np.bincount(data.test.y).tolist() == [100] * 10
    assert data.train.y[:20].tolist() != sorted(data.train.y[:20].tolist())
    x = data.transform.prepare(data.train.x)
    assert abs(x.mean().item()) < 0.05
    assert abs(x.std().item() - 1) < 0.05


def test_the_embedded_sample_holds_the_first_500_of_each_digit_of_mnist(real: Callable[[str], Path]) -> None:
    small, whole = load("mnist5k"), load("mnist", real("mnist"))
    both = np.concatenate([small.train.x, small.test.x]).reshape(5000, -1)
    labels = np.concatenate([small.train.y, small.test.y])
    for digit in range(10):
        expected = {row.tobytes() for row in whole.train.x[whole.train.y == digit][:500].reshape(500, -1)}
        assert {row.tobytes() for row in both[labels == digit]} == expected


# idx files


def test_mnist_is_found_in_a_named_folder_in_the_folder_itself_and_by_the_environment(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load("mnist", small_mnist.parent)
    assert data.train.x.shape == (20, 1, 28, 28)
    assert data.test.y.tolist() == list(range(10))
    assert load("mnist", small_mnist).train.x.sum() == data.train.x.sum()
    monkeypatch.setenv("FEDKEEL_DATA", str(small_mnist.parent))
    assert load("mnist").train.x.sum() == data.train.x.sum()


def test_raw_idx_files_are_as_good_as_packed_ones(small_mnist: Path) -> None:
    packed = small_mnist / "train-images-idx3-ubyte.gz"
    (small_mnist / "train-images.idx3-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert len(load("mnist", small_mnist).train) == 20


def test_even_and_odd_digits_keep_the_digits_for_partitions(small_mnist: Path) -> None:
    data = load("mnist_even_odd", small_mnist)
    assert data.class_names == ("even", "odd")
    assert data.train.y.tolist() == [0, 1] * 10
    assert data.partition_labels is not None
    assert data.partition_labels.tolist() == list(range(10)) * 2
    assert data.transform.prepare(data.train.x).max() <= 1
    assert data.partition("fedveca_case2", 10).clients[3].tolist() == [3, 13]


def test_damaged_files_are_named(small_mnist: Path) -> None:
    target = small_mnist / "train-images-idx3-ubyte.gz"
    whole = target.read_bytes()
    raw = gzip.decompress(whole)
    cases = {
        "cannot be read": whole[: len(whole) // 2],
        "must begin with 0x00000803, got 0x00000801": gzip.compress(struct.pack(">I", 0x801) + raw[4:]),
        "its header says [21, 28, 28]": gzip.compress(raw[:4] + struct.pack(">I", 21) + raw[8:]),
        "must hold 15,680 values, got 15,679": gzip.compress(raw[:-1]),
        "more than the 15,696 bytes": gzip.compress(raw + b"x"),
        "is cut short: an idx file has a header of 16 bytes, got 3": gzip.compress(raw[:3]),
        "is not the canonical file": gzip.compress(raw[:-1] + bytes([raw[-1] ^ 1])),
        "damaged": b"no gzip at all",
    }
    for message, content in cases.items():
        target.write_bytes(content)
        assert str(target) in refused(message, data_dir=small_mnist)


def test_a_file_that_unpacks_to_gigabytes_is_not_unpacked(small_mnist: Path) -> None:
    (small_mnist / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    refused("more than the 18 bytes", data_dir=small_mnist)


def test_missing_files_are_named_with_where_they_belong(tmp_path: Path) -> None:
    message = refused("mnist is not there: looked for train-images-idx3-ubyte.gz", data_dir=tmp_path)
    assert str(tmp_path) in message
    assert str(files.cache_folder() / "mnist") in message
    assert "FEDKEEL_DATA" in message


def test_a_data_folder_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("data_dir must be a folder that exists", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "nowhere"))
    refused("the environment variable FEDKEEL_DATA must be a folder that exists")
    assert len(load("mnist5k").train) == 4000  # needs no folder


def test_names_normalisations_and_parameters_are_checked() -> None:
    refused("no data set named 'minst'. Did you mean 'mnist'?", "minst")
    refused("no normalisation of mnist5k named 'gradma'", "mnist5k", normalise="gradma")
    refused("no parameter of data set 'mnist5k' named 'alpha'", "mnist5k", alpha=1)
    refused("no augmentation named 'crop'", "mnist5k", augment="crop")
    refused("must be None for data that are no images", "synthetic_feddyn", augment="crop_flip")
    assert load("mnist5k", normalise="unit").transform.mean == ()


# Downloads (from file addresses, which the same code serves)


def test_files_are_downloaded_once_into_the_cache(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grey.URLS, "mnist", ("file:///nowhere/", small_mnist.as_uri() + "/"))
    assert len(load("mnist").train) == 20
    cached = sorted(path.name for path in (files.cache_folder() / "mnist").iterdir())
    assert cached == sorted(path.name for path in small_mnist.iterdir())
    monkeypatch.setitem(grey.URLS, "mnist", ())
    assert len(load("mnist").train) == 20


def test_a_download_with_other_bytes_is_refused_and_leaves_nothing(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small_mnist / "train-labels-idx1-ubyte.gz").write_bytes(b"something else")
    monkeypatch.setitem(grey.URLS, "mnist", (small_mnist.as_uri() + "/",))
    with pytest.raises(DataError, match="sent other bytes than published"):
        load("mnist")
    assert [path.name for path in (files.cache_folder() / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz"]


# EMNIST


@pytest.fixture
def small_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """EMNIST letters with two images of each letter for training and one for test."""
    sizes = {}
    for part, n in (("train", 52), ("test", 26)):
        labels = np.arange(n) % 26 + 1
        images = RNG.integers(0, 256, (n, 28, 28))
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            stem = f"emnist-letters-{part}-{kind}-ubyte"
            (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(idx(values)))
            sizes[stem] = n
    monkeypatch.setattr(grey, "EMNIST_FILES", sizes)
    return tmp_path


def test_emnist_keeps_ten_letters_from_zero_and_turns_images(small_letters: Path) -> None:
    data = load("emnist_letters", small_letters)
    assert data.train.y.tolist() == list(range(10)) * 2
    stored = gzip.decompress((small_letters / "emnist-letters-train-images-idx3-ubyte.gz").read_bytes())
    first = np.frombuffer(stored, np.uint8, 784, 16).reshape(28, 28)
    assert np.array_equal(data.train.x[0, 0], first.T)


def test_emnist_is_read_out_of_its_archive(small_letters: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("archive")
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for file in small_letters.glob("*.gz"):
            archive.write(file, f"gzip/{file.name}")
    packed, single = load("emnist_letters", folder), load("emnist_letters", small_letters)
    assert np.array_equal(packed.train.x, single.train.x)
    (folder / "gzip.zip").write_bytes(b"PK no zip")
    refused("is not NIST's EMNIST archive", "emnist_letters", data_dir=folder)


def test_the_piece_of_emnist_is_used_only_on_request(real: Callable[[str], Path]) -> None:
    folder = real("emnist-letters-subset")
    refused("is incomplete", "emnist_letters", data_dir=folder)
    data = load("emnist_letters", folder, subset_ok=True)
    assert (len(data.train), len(data.test)) == (6400, 1600)
    assert data.note == "subset: letters A to J of the first 10,000 test images, split 6,400 / 1,600"
    assert set(data.test.y) == set(range(10))


# CIFAR


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 with three records in each of two batches and the test batch, one of them packed with xz."""
    table = {}
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        records = RNG.integers(0, 256, (3, 3073)).astype(np.uint8)
        records[:, 0] = [0, 9, 5]
        content = records.tobytes()
        packed = name == "data_batch_2.bin"
        (tmp_path / (f"{name}.xz" if packed else name)).write_bytes(lzma.compress(content) if packed else content)
        table[name] = (3, md5(content))
    test = {"test_batch.bin": table.pop("test_batch.bin")}
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, train=table, test=test))
    return tmp_path


def test_cifar_batches_are_joined_in_order(small_cifar: Path) -> None:
    data = load("cifar10", small_cifar, normalise="gradma", augment="crop_flip")
    assert data.train.x.shape == (6, 3, 32, 32)
    assert data.train.y.tolist() == [0, 9, 5, 0, 9, 5]
    assert data.note == ""
    assert data.transform.std == (0.2023, 0.1994, 0.2010)
    record = np.frombuffer((small_cifar / "data_batch_1.bin").read_bytes(), np.uint8)[1:3073]
    assert np.array_equal(data.train.x[0], record.reshape(3, 32, 32))


def test_incomplete_cifar_is_refused_unless_a_subset_will_do(small_cifar: Path) -> None:
    (small_cifar / "data_batch_2.bin.xz").unlink()
    refused(
        "is incomplete: add data_batch_2.bin, or accept the part: --set data.subset_ok=true",
        "cifar10",
        data_dir=small_cifar,
    )
    assert load("cifar10", small_cifar, subset_ok=True).note == "train subset: 3 of 6"
    (small_cifar / "test_batch.bin").unlink()
    refused("add data_batch_2.bin, test_batch.bin.", "cifar10", data_dir=small_cifar, subset_ok=True)


def test_cifar_is_read_out_of_its_archive(small_cifar: Path) -> None:
    contents = {path.name: path.read_bytes() for path in small_cifar.iterdir()}
    contents["data_batch_2.bin"] = lzma.decompress(contents.pop("data_batch_2.bin.xz"))
    folder = small_cifar / "archive"
    folder.mkdir()
    target = folder / "cifar-10-binary.tar.gz"

    def pack(names: list[str]) -> None:
        with tarfile.open(target, "w:gz") as archive:
            for name in names:
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(contents[name])
                archive.addfile(info, io.BytesIO(contents[name]))

    pack(sorted(contents))
    assert load("cifar10", folder).train.y.tolist() == [0, 9, 5, 0, 9, 5]
    pack(["test_batch.bin"])
    refused("must hold data_batch_1.bin, data_batch_2.bin", "cifar10", data_dir=folder)
    target.write_bytes(target.read_bytes()[:100])
    refused("damaged or cut short", "cifar10", data_dir=folder)


def test_damaged_cifar_batches_are_named(small_cifar: Path) -> None:
    target = small_cifar / "data_batch_1.bin"
    content = target.read_bytes()
    for message, damaged in {
        "must hold 9,219 bytes, got 9,218": content[:-1],
        "is not the canonical file": content[:-1] + bytes([content[-1] ^ 1]),
        "more than the 9,219 bytes": content + b"x",
    }.items():
        target.write_bytes(damaged)
        assert str(target) in refused(message, "cifar10", data_dir=small_cifar)


def test_cifar_100_takes_the_fine_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cifar, "CIFAR100", replace(cifar.CIFAR100, train={"train.bin": (2, None)}, test={"test.bin": (2, None)})
    )
    records = np.zeros((2, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = [3, 4], [99, 7]
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(records.tobytes())
    data = load("cifar100", tmp_path)
    assert data.train.y.tolist() == [99, 7]
    assert (data.class_names[99], data.class_names[0]) == ("worm", "apple")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "cifar-100-binary.tar.gz").write_bytes(b"other bytes")
    refused("its md5 must be 03b5dce0", "cifar100", data_dir=tmp_path / "packed")
    records[0, 1] = 100
    (tmp_path / "train.bin").write_bytes(records.tobytes())
    refused("cifar100 must have labels below 100, got 100", "cifar100", data_dir=tmp_path)


def test_real_cifar_batches_have_the_published_bytes(real: Callable[[str], Path]) -> None:
    """One batch only, since unpacking takes seconds; the usual means of CIFAR-10 are 0.491, 0.482, 0.447."""
    path = real("cifar-10-binary") / "cifar-10-binary" / "test_batch.bin.xz"
    content = files.read_whole(path, 30_730_000)
    files.check_md5(content, cifar.CIFAR10.test["test_batch.bin"][1] or "", path)
    split = cifar._records({"test_batch.bin": content}, cifar.CIFAR10, cifar.CIFAR10.test)
    assert np.bincount(split.y).tolist() == [1000] * 10
    assert np.allclose(split.x.mean(axis=(0, 2, 3)) / 255, [0.494, 0.485, 0.450], atol=0.002)


# Tiny-ImageNet


def jpeg(colour: tuple[int, ...], mode: str = "RGB", side: int = 64) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new(mode, (side, side), colour if mode == "RGB" else colour[0]).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.fixture
def small_tiny(tmp_path: Path) -> dict[str, bytes]:
    """A Tiny-ImageNet of three training and two validation images in the official layout."""
    wnids = [f"n{i:08d}" for i in range(200)]
    return {
        "wnids.txt": "\n".join(wnids).encode(),
        "words.txt": "\n".join(f"{w}\tthing {i}, object {i}" for i, w in enumerate(wnids)).encode(),
        "val/val_annotations.txt": f"val_0.JPEG\t{wnids[7]}\t0\t0\t9\t9\nval_1.JPEG\t{wnids[1]}\t0\t0\t9\t9\n".encode(),
        f"train/{wnids[1]}/images/{wnids[1]}_0.JPEG": jpeg((200, 0, 0)),
        f"train/{wnids[1]}/images/{wnids[1]}_1.JPEG": jpeg((90,), "L"),
        f"train/{wnids[5]}/images/{wnids[5]}_0.JPEG": jpeg((0, 0, 200)),
        f"train/{wnids[5]}/{wnids[5]}_boxes.txt": b"ignored",
        "val/images/val_0.JPEG": jpeg((0, 200, 0)),
        "val/images/val_1.JPEG": jpeg((0, 200, 0)),
        "test/images/test_0.JPEG": b"ignored",
    }


def pack_tiny(members: dict[str, bytes], folder: Path, kind: str) -> None:
    root = "tiny-imagenet-200"
    if kind == "zip":
        with zipfile.ZipFile(folder / f"{root}.zip", "w") as archive:
            for name, content in members.items():
                archive.writestr(f"{root}/{name}", content)
    elif kind == "tar.gz":
        with tarfile.open(folder / f"{root}.tar.gz", "w:gz") as tape:
            for name, content in members.items():
                info = tarfile.TarInfo(f"{root}/{name}")
                info.size = len(content)
                tape.addfile(info, io.BytesIO(content))
    else:
        for name, content in members.items():
            (folder / root / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / root / name).write_bytes(content)


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "folder"])
def test_tiny_imagenet_in_every_packing(
    small_tiny: dict[str, bytes], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_tiny(small_tiny, tmp_path, kind)
    note = "subset: 3 of 100,000 training and 2 of 10,000 validation images"
    refused(note, "tiny_imagenet", data_dir=tmp_path)
    monkeypatch.setattr(tiny_imagenet, "_decode", lambda path: pytest.fail("must come from the cache"))
    data = load("tiny_imagenet", tmp_path, subset_ok=True)
    assert data.note == note
    assert data.train.y.tolist() == [1, 1, 5]
    assert data.test.y.tolist() == [7, 1]
    assert data.train.x.shape == (3, 3, 64, 64)
    assert np.abs(data.train.x[:, :, 0, 0].astype(int) - [[200, 0, 0], [90, 90, 90], [0, 0, 200]]).max() < 6
    assert data.class_names[5] == "thing 5"


def test_a_damaged_cache_of_tiny_imagenet_is_made_anew(small_tiny: dict[str, bytes], tmp_path: Path) -> None:
    pack_tiny(small_tiny, tmp_path, "zip")
    load("tiny_imagenet", tmp_path, subset_ok=True)
    (kept,) = (files.cache_folder() / "tiny-imagenet").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert len(load("tiny_imagenet", tmp_path, subset_ok=True).train) == 3


def test_wrong_tiny_imagenet_archives_are_named(small_tiny: dict[str, bytes], tmp_path: Path) -> None:
    name = next(name for name in small_tiny if name.startswith("train"))
    for message, change in {
        "must be an image of 64 × 64 pixels, got 32 × 32": {name: jpeg((1, 2, 3), side=32)},
        "is not Tiny-ImageNet in its official layout": {name: b"no jpeg"},
        "must hold 200 classes": {"wnids.txt": b"\n".join(small_tiny["wnids.txt"].split()[:10])},
    }.items():
        pack_tiny({**small_tiny, **change}, tmp_path, "zip")
        refused(message, "tiny_imagenet", data_dir=tmp_path, subset_ok=True)


def test_pillow_is_asked_for_where_it_is_missing(
    small_tiny: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_tiny(small_tiny, tmp_path, "zip")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused("pip install 'fedkeel[images]'", "tiny_imagenet", data_dir=tmp_path)


def test_real_tiny_imagenet_subset(real: Callable[[str], Path]) -> None:
    pytest.importorskip("PIL")
    data = load("tiny_imagenet", real("tiny-imagenet"), subset_ok=True)
    assert np.bincount(data.train.y).tolist() == [50] * 200
    assert np.bincount(data.test.y).tolist() == [10] * 200


# Generated data


def test_synthetic_feddyn_has_twenty_clients_and_tests_on_its_training_data() -> None:
    federation = load("synthetic_feddyn")
    assert isinstance(federation, Federation)
    assert federation.sizes.tolist() == [200] * 20
    assert federation.dataset.input_shape == (30,)
    assert federation.dataset.test.x is federation.dataset.train.x
    assert federation.dataset.classes == 5


def test_synthetic_feddyn_beta_moves_inputs_and_alpha_moves_labels() -> None:
    """β = 0: all clients' inputs have mean about 0. α = 0: one labelling, so equal inputs would have equal labels."""

    def spread(federation: Federation) -> tuple[float, float]:
        x = federation.dataset.train.x
        means = np.stack([x[part].mean(axis=0) for part in federation.clients])
        return float(means.std(axis=0).mean()), federation.describe()["label_distance"]

    same, solution, inputs = (
        spread(load("synthetic_feddyn", alpha=a, beta=b)) for a, b in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    )
    assert same[0] < 0.1
    assert solution[0] < 0.1
    assert inputs[0] > 0.5
    assert same[1] < 0.1 < solution[1]


def test_synthetic_inputs_have_the_falling_variance() -> None:
    """Var x_j = j^−1.2: 1 for j = 1 and 0.063 for j = 10."""
    x = load("synthetic_feddyn", samples=1000).dataset.train.x
    assert np.allclose(x.var(axis=0)[[0, 9]], [1, 10**-1.2], rtol=0.1)


def test_synthetic_fedprox_splits_every_client_nine_to_one() -> None:
    federation = load("synthetic_fedprox", seed=4)
    assert isinstance(federation, Federation)
    assert federation.client_tests is not None
    whole = federation.sizes + [part.size for part in federation.client_tests]
    assert whole.min() >= 50
    assert (federation.sizes == whole * 9 // 10).all()
    assert len(federation) == 30
    other = load("synthetic_fedprox", seed=5)
    assert other.sizes.tolist() != federation.sizes.tolist()
    assert load("synthetic_fedprox", seed=4).dataset.train.x.tobytes() == federation.dataset.train.x.tobytes()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"alpha": -1}, "synthetic_feddyn.alpha must be a number of at least 0, got -1"),
        ({"clients": 0}, "synthetic_feddyn.clients must be a whole number of at least 1, got 0"),
        ({"iid": True}, "no parameter of data set 'synthetic_feddyn' named 'iid'"),
    ],
)
def test_synthetic_parameters_are_checked(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load("synthetic_feddyn", **params)
    assert sentence in str(caught.value)


def test_sources_are_listed_with_their_sizes() -> None:
    listed = {source.name: source for source in sources()}
    assert set(listed) == {*get_args(FileSet), *get_args(GeneratedSet)}
    assert (listed["mnist"].train, listed["mnist"].test, listed["mnist"].download) == (60000, 10000, True)
    assert not listed["mnist5k"].download


def test_real_fashion_mnist_is_whole_and_normalised(real: Callable[[str], Path]) -> None:
    fashion = load("fashion_mnist", real("fashion-mnist"))
    assert (len(fashion.train), len(fashion.test)) == (60000, 10000)
    assert abs(fashion.transform.prepare(fashion.train.x[::10]).mean().item()) < 0.02
