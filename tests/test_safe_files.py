"""Files made to harm: nothing in them is executed, nothing is allocated on their word, nothing is written elsewhere."""

import io
import json
import re
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

import fedkeel as fk
from fedkeel import config
from fedkeel.data import from_npz_folder
from fedkeel.data.sources import cifar
from fedkeel.data.sources.files import Place
from fedkeel.data.sources.source import Request
from fedkeel.data.transform import Transform
from fedkeel.errors import DataError, InputError, ModelError

PACKAGE = Path(__file__).parents[1] / "fedkeel"
EXECUTED: list[str] = []


def harm(text: str) -> None:
    EXECUTED.append(text)


class Harmful:
    """Says so when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return harm, ("unpickled",)


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": Harmful()}, buffer)
    return buffer.getvalue()


LABELS = npy(np.arange(4))
OBJECTS = npy(np.array([Harmful()] * 4, dtype=object))
TEXTS = npy(np.array(["a", "b", "c", "d"]))
HUGE = npy(np.zeros(4, np.float32)).replace(b"(4,), }                ", b"(4000000000000,), }    ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npz(x=OBJECTS, y=LABELS), "x holds object, not plain numbers"),
        (npz(x=TEXTS, y=LABELS), "x holds <U1, not plain numbers"),
        (npz(x=HUGE, y=LABELS), r"x says that it holds \[4000000000000\] numbers, which its bytes do not"),
        (npz(x=LABELS[:-3], y=LABELS), "x says that it holds|x should have 32 bytes of numbers, got 29"),
        (npz(x=LABELS), "There is no item named 'y.npy'"),
        (OBJECTS, "File is not a zip file"),
        (torch_file(), "There is no item named 'x.npy'"),
        (b"", "File is not a zip file"),
    ],
    ids=["objects", "texts", "huge", "short", "missing", "npy", "torch", "empty"],
)
def test_npz_files_that_are_not_what_they_say(tmp_path: Path, content: bytes, said: str) -> None:
    assert HUGE.count(b"4000000000000") == 1
    (tmp_path / "0.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"0\.npz must be an \.npz file with numeric arrays x and y, but .*({said})"):
        from_npz_folder(tmp_path)
    assert EXECUTED == []


def test_the_pickles_used_here_do_harm_when_loaded() -> None:
    """Otherwise the tests above would prove nothing."""
    np.load(io.BytesIO(OBJECTS), allow_pickle=True)
    torch.load(io.BytesIO(torch_file()), weights_only=False)
    assert len(EXECUTED) >= 2
    EXECUTED.clear()


def test_fortran_order_and_foreign_byte_order_are_read_right(tmp_path: Path) -> None:
    x = np.arange(12, dtype=">f8").reshape(4, 3)
    (tmp_path / "0.npz").write_bytes(npz(x=npy(np.asfortranarray(x)), y=LABELS))
    (tmp_path / "test.npz").write_bytes(npz(x=npy(x), y=LABELS))
    federation = from_npz_folder(tmp_path)
    assert federation.dataset.train.x.tolist() == x.tolist() == federation.dataset.test.x.tolist()


def weights(header: dict[str, object], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = save({name: tensor.detach() for name, tensor in nn.Linear(2, 1).state_dict().items()})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (torch_file(), r"is not a readable safetensors file .* pickles \(.pt\) are never read"),
        (GOOD[:-2], "is not a readable safetensors file"),
        (struct.pack("<Q", 1 << 60) + b"{}", "is not a readable safetensors file"),
        (
            weights({"weight": {"dtype": "F32", "shape": [1 << 40, 2], "data_offsets": [0, 8]}}, bytes(8)),
            "is not a readable safetensors file",
        ),
        (save({"weight": torch.zeros(1, 2)}), "lacks 'bias'"),
        (save({"weight": torch.zeros(1, 2), "bias": torch.zeros(1), "x": torch.zeros(1)}), "no place for 'x'"),
        (save({"weight": torch.zeros(2, 1), "bias": torch.zeros(1)}), r"shape \[1, 2\], got \[2, 1\]"),
        (
            save({"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1)}),
            "must be torch.float32, got torch.float64",
        ),
    ],
    ids=["torch", "short", "header", "shape", "lacks", "extra", "turned", "type"],
)
def test_weights_that_are_not_the_models(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    module = nn.Linear(2, 1)
    before = module.weight.clone()
    with pytest.raises((DataError, ModelError), match=said):
        fk.load_model(module, tmp_path / "m.safetensors")
    assert torch.equal(module.weight, before)
    assert EXECUTED == []


def test_weights_come_back(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(GOOD)
    module = nn.Linear(2, 1)
    fk.load_model(module, tmp_path / "m.safetensors")
    assert save({name: tensor.detach() for name, tensor in module.state_dict().items()}) == GOOD
    with pytest.raises(DataError, match=r"absent\.safetensors cannot be read"):
        fk.load_model(module, tmp_path / "absent.safetensors")


def test_an_archive_writes_nothing(tmp_path: Path) -> None:
    """Members that point outside, absolutely or through a link, are read in place or not at all."""
    record = bytes(1 + 3072)
    layout = replace(cifar.CIFAR10, train={"train.bin": (1, None)}, test={"test.bin": (1, None)})
    folder = tmp_path / "inner" / "data"
    folder.mkdir(parents=True)
    archive = folder / layout.archive.name
    with tarfile.open(archive, "w:gz") as tape:
        for name in ("../../train.bin", "/absolute/test.bin"):
            info = tarfile.TarInfo(name)
            info.size = len(record)
            tape.addfile(info, io.BytesIO(record))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tape.addfile(link)
    digest = cifar.file_md5(archive)
    layout = replace(layout, archive=replace(layout.archive, md5=digest))
    data = cifar.load_cifar(Request(Place("cifar10", (folder,), folder, False), Transform(), False, {}), layout)
    assert len(data.train) == len(data.test) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "/etc/x", "..", ".hidden", "a\nb", ""])
def test_a_run_stays_in_its_folder(name: str) -> None:
    with pytest.raises(InputError, match="name must be a name for a folder"):
        config.expand({"name": name}, [])


def test_nothing_that_executes_is_called_on_data() -> None:
    """Beside the tries above: no such call stands anywhere in the package."""
    forbidden = re.compile(
        r"\bpickle\b.*load|import (c?pickle|dill|joblib|shelve|marshal)\b|torch\.load\(|allow_pickle=True|yaml\.load"
        r"|(?<![\w.])(eval|exec)\(|extractall\(|\.extract\("
    )
    loads = re.compile(r"np\.load\((?!.*allow_pickle=False)")
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not forbidden.search(line), f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
            assert not loads.search(line), f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"


def test_two_values_for_one_tensor_are_refused(tmp_path: Path) -> None:
    """A file in which tied weights differ is not this model's; as saved, they are loaded."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    module[1].weight = module[0].weight
    state = {name: value.clone() for name, value in module.state_dict().items()}
    save_file(state, tmp_path / "m.safetensors")
    fk.load_model(module, tmp_path / "m.safetensors")
    save_file(state | {"1.weight": torch.zeros(3, 3)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match=r"'0.weight' and '1.weight' are one tensor"):
        fk.load_model(module, tmp_path / "m.safetensors")
