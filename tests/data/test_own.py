"""A user's own data: what is taken, and what is refused with which sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel.data import Federation, Split, from_arrays, from_clients, from_flwr, from_hf, from_npz_folder, from_torch
from fedkeel.errors import DataError, InputError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = [0, 1, 2, 0, 1, 2]
GREY = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)


def test_arrays_lists_and_tensors_become_a_data_set() -> None:
    data = from_arrays(X.tolist(), torch.tensor(Y), torch.tensor(X), np.array(Y, dtype=np.float32))
    assert data.train.x.dtype == np.float32
    assert (data.classes, data.class_names, data.transform.scale) == (3, ("0", "1", "2"), 1.0)
    assert data.test.y.tolist() == Y


def test_grey_images_get_a_channel_and_pixels_a_scale() -> None:
    data = from_arrays(GREY, Y, GREY, Y, mean=[0.5], std=[0.5])
    assert data.input_shape == (1, 4, 4)
    assert data.transform.scale == 255
    assert data.transform.prepare(data.train.x).min() == -1


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (X, Y[:5], "own.train.y must be one label for each of 6 samples, got [5]"),
        (X, [0, 1, 2, 0, 1, -1], "own.train.y must be whole numbers from 0, got -1"),
        (X, [0, 1, 2, 0, 1, 0.5], "own.train.y must be whole numbers from 0, got 0.5"),
        (np.where(X == 5, np.nan, X), Y, "own.train.x must be finite numbers, got 'NaN or infinity in sample 2'"),
        (X * 1e300, Y, "own.train.x must be finite numbers"),
        (X[:0], [], "own.train.x must be an array with at least one sample"),
        (X[:, 0], Y, "own.train.x must be an array [n, features] or [n, C, H, W], got [6]"),
        ([[1, 2], [3]], [0, 1], "own.train.x must be an array whose samples all have the same shape"),
        (np.array([["a"]] * 6), Y, "own.train.x must be an array of numbers"),
        (np.zeros((6, 8, 8, 3), dtype=np.uint8), Y, "must be images with channels first"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(x: Any, y: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        from_arrays(x, y, X, Y)
    assert sentence in str(caught.value)


def test_classes_bound_the_labels() -> None:
    with pytest.raises(InputError, match=r"own.train labels must be integers from 0 to 1, got 2. Renumber"):
        from_arrays(X, Y, X, Y, classes=2)
    assert from_arrays(X, Y, X, Y, classes=7).classes == 7


def test_clients_with_a_common_test_set() -> None:
    federation = from_clients([(X[:2], Y[:2]), (X[2:], Y[2:])], test=(X, Y))
    assert [part.tolist() for part in federation.clients] == [[0, 1], [2, 3, 4, 5]]
    assert federation.client_tests is None
    assert federation.rule == {"name": "own", "clients": 2}


def test_clients_without_one_hold_a_share_out() -> None:
    """Of 5 samples a share of 0.2 is 1, of 2 samples at least 1; together they are all samples again."""
    clients = [(X[:5], Y[:5]), (X[4:], Y[4:])]
    federation = from_clients(clients, seed=3)
    assert federation.sizes.tolist() == [4, 1]
    assert federation.client_tests is not None
    assert [part.tolist() for part in federation.client_tests] == [[0], [1]]
    data = federation.dataset
    first = np.concatenate([data.train.x[federation.clients[0]], data.test.x[:1]])
    assert sorted(first[:, 0]) == [0, 2, 4, 6, 8]
    assert from_clients(clients, seed=3).dataset.test.x.tolist() == data.test.x.tolist()


def test_clients_are_checked_one_by_one() -> None:
    for clients, options, sentence in [
        ([], {}, "own.clients must be at least one pair"),
        ([(X, Y), (X[:0], [])], {}, "own.clients[1].x must be an array with at least one sample"),
        ([(X, Y), (X[:, :1], Y)], {}, "own.clients[1] must be float32 samples of client 0's shape [2]"),
        ([(X, Y), X], {}, "own.clients[1] must be a pair (x, y), got 'ndarray'"),
        ([(X[:1], Y[:1])], {}, "own.clients[0] must be at least 2 samples"),
        ([(X, Y)], {"holdout": 1.0}, "own.holdout must be a share above 0 and below 1"),
    ]:
        with pytest.raises(InputError) as caught:
            from_clients(clients, **options)
        assert sentence in str(caught.value)


def test_torch_data_sets_are_read_once() -> None:
    stored = torch.utils.data.TensorDataset(torch.tensor(GREY)[:, None], torch.tensor(Y))
    data = from_torch(stored, stored, name="mine")
    assert data.train.x.dtype == np.uint8
    assert np.array_equal(data.train.x[:, 0], GREY)
    with pytest.raises(InputError, match="must have a length and items"):
        from_torch(iter([]), stored)


def test_a_folder_of_npz_files_is_a_federation(tmp_path: Path) -> None:
    for name, rows in (("b", slice(2, 6)), ("a", slice(0, 2))):
        np.savez(tmp_path / f"{name}.npz", x=X[rows], y=np.array(Y)[rows])
    held_out = from_npz_folder(tmp_path)
    assert held_out.sizes.tolist() == [1, 3]
    np.savez(tmp_path / "test.npz", x=X, y=Y)
    federation = from_npz_folder(tmp_path, classes=4)
    assert federation.sizes.tolist() == [2, 4]
    assert federation.dataset.classes == 4


def test_npz_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"from_npz_folder.path must be a folder"):
        from_npz_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no client"):
        from_npz_folder(tmp_path)
    for write in (
        lambda path: path.write_bytes(b"no npz"),
        lambda path: np.savez(path, x=X),
        lambda path: np.savez(path, x=np.array([{}], dtype=object), y=[0]),
    ):
        write(tmp_path / "a.npz")
        with pytest.raises(DataError, match=r"a\.npz must be an \.npz file with numeric arrays x and y"):
            from_npz_folder(tmp_path)


def test_columns_of_any_mapping_become_a_data_set_or_a_federation() -> None:
    image = pytest.importorskip("PIL.Image")
    part = {"img": [image.fromarray(grey) for grey in GREY], "label": Y}
    data = from_hf({"train": part, "test": part}, image="img")
    assert np.array_equal(data.train.x[:, 0], GREY)
    federation = from_hf([part, part], test=part, image="img", class_names=["a", "b", "c"])
    assert isinstance(federation, Federation)
    assert federation.sizes.tolist() == [6, 6]
    assert federation.dataset.class_names == ("a", "b", "c")
    colour = {"img": [image.new("RGB", (4, 4)), image.new("L", (4, 4))], "label": [0, 1]}
    assert from_hf([colour], test=colour, image="img").dataset.input_shape == (3, 4, 4)


def test_wrong_columns_are_named() -> None:
    with pytest.raises(InputError, match=r"hf.clients\[0\].image must be one of the columns x, label, got 'image'"):
        from_hf([{"x": [[0.0]], "label": [0]}])
    with pytest.raises(InputError, match="must be a mapping with the parts 'train' and 'test'"):
        from_hf({"train": {}})
    with pytest.raises(InputError, match="at least one partition"):
        from_hf([])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'fedkeel\[hf\]'"):
        from_hf("ylecun/mnist")


def test_partitions_of_a_hugging_face_data_set() -> None:
    datasets = pytest.importorskip("datasets", reason="the extra 'hf' is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    part = datasets.Dataset.from_dict({"image": list(GREY), "label": Y}, features=features)
    data = from_hf(datasets.DatasetDict({"train": part, "test": part}))
    assert np.array_equal(data.train.x[:, 0], GREY)
    assert data.class_names == ("a", "b", "c")


def test_a_federated_data_set_of_flower() -> None:
    """A stand-in with the three members that are used; the partitioner knows its data after the first load only."""
    partitioner = SimpleNamespace(num_partitions=0)

    def load_partition(i: int, split: str) -> dict[str, Any]:
        partitioner.num_partitions = 2
        return {"x": X[3 * i : 3 * i + 3], "label": Y[:3]}

    fds = SimpleNamespace(
        partitioners={"train": partitioner},
        load_partition=load_partition,
        load_split=lambda split: {"x": X, "label": Y},
    )
    federation = from_flwr(fds, image="x")
    assert federation.sizes.tolist() == [3, 3]
    assert federation.dataset.train.x.tolist() == X.tolist()
    with pytest.raises(InputError, match=r"flwr\.split must be a split with a partitioner"):
        from_flwr(fds, split="other")


def test_values_of_another_kind_are_told_by_their_names() -> None:
    whole = from_arrays(X, Y, X, Y)
    calls: list[tuple[Any, str]] = [
        (lambda: whole.partition("dirichlet", 2, alpha=10**400), "partition.alpha must be"),
        (lambda: whole.partition("dirichlet", 2, concentration=np.zeros(0)), "partition.concentration must be"),
        (lambda: whole.partition(["iid"], 2), "partition.rule must be text"),  # type: ignore[arg-type]
        (lambda: whole.partition("iid", 2).hold_out("half"), "data.validation must be a share"),  # type: ignore[arg-type]
        (lambda: from_arrays(X, Y, X, Y, mean="ab"), "own.mean must be a list of finite numbers, got 'ab'"),
        (lambda: from_arrays(X, Y, X, Y, class_names=3), "own.class_names must be a list of texts"),  # type: ignore[arg-type]
        (lambda: from_arrays(torch.zeros(len(Y), 2, dtype=torch.bfloat16), Y, X, Y), "numpy cannot hold it"),
        (lambda: from_clients(3), "own.clients must be a list of pairs"),  # type: ignore[arg-type]
        (lambda: from_torch({1: 2}, []), "own.train must have a length and items (x, y), but there is no item 0"),
        (lambda: Split([1], [2]), "split.x must be a numpy array, got 'list'"),  # type: ignore[arg-type]
        (lambda: Federation(whole, [[0]], {}), "federation.clients must be a tuple of index arrays"),  # type: ignore[arg-type]
    ]
    for call, sentence in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert sentence in str(caught.value)


def test_a_name_that_no_sentence_can_hold_is_refused_in_one() -> None:
    pair = (np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))
    with pytest.raises(InputError, match="name must be text of at most 200 characters") as complaint:
        from_clients([pair, pair], name="x" * 5000)
    assert len(str(complaint.value)) < 300
