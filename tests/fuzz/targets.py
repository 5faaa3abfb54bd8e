"""Everything that reads what others wrote, with inputs for it; nothing but a ``FedkeelError`` may come out."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sqlite3
import struct
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedkeel import changes, config
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.data import from_npz_folder
from fedkeel.data.sources import cifar, grey
from fedkeel.data.sources.files import Place
from fedkeel.data.sources.source import Request
from fedkeel.data.transform import Transform
from fedkeel.errors import FedkeelError
from fedkeel.runs.directory import load_model
from fedkeel.runs.fit import check_fits
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store
from tests.fuzz.mutations import mutated
from tests.fuzz.settings import NAMES, WORDS, as_toml, comes_back

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Target:
    """A reader: where its inputs come from, and what is done with one in a folder of its own."""

    name: str
    inputs: st.SearchStrategy[Any]
    read: Callable[[Path, Any], None]


def attack(target: Target, count: int, repeatable: bool) -> int:
    """Give a reader ``count`` inputs; the number that it got."""
    tried = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=repeatable,
            suppress_health_check=list(HealthCheck),
        )
        @given(target.inputs)
        def once(value: Any) -> None:
            nonlocal tried
            tried += 1
            with suppress(FedkeelError):
                target.read(folder, value)

        once()
    return tried


# Configuration

_SCALARS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.text(max_size=8), st.sampled_from(WORDS)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
_TEXT = (EXAMPLES / "mnist5k.toml").read_text(encoding="utf-8").encode()


def _lines(fields: dict[str, Any]) -> bytes:
    text = "\n".join(f"{name} = {as_toml(value)}" for name, value in fields.items())
    return text.encode("utf-8", "surrogatepass")


def _read_configuration(folder: Path, content: bytes) -> None:
    path = folder / "e.toml"
    path.write_bytes(content)
    for experiment in config.read(path):
        comes_back(folder, experiment)


def _set(folder: Path, chosen: list[str]) -> None:
    (folder / "e.toml").write_bytes(_TEXT)
    for experiment in config.read(folder / "e.toml", chosen):
        comes_back(folder, experiment)


_SETTINGS = st.lists(
    st.one_of(
        st.builds(lambda name, value: f"{name}={as_toml(value)}", st.sampled_from(NAMES), _VALUES),
        st.builds(lambda name, text: f"{name}={text}", st.sampled_from(NAMES), st.text(max_size=12)),
        st.text(max_size=20),
    ),
    min_size=1,
    max_size=3,
)

# Data files


def _idx(values: np.ndarray) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()


_IMAGES = _idx(np.arange(3 * 28 * 28).astype(np.uint8).reshape(3, 28, 28))
_LABELS = _idx(np.array([1, 2, 3], np.uint8))


def _read_idx(folder: Path, chosen: tuple[str, bytes]) -> None:
    name, content = chosen
    (folder / name).write_bytes(content)
    grey.read_idx(folder / name, 3)


_LAYOUT = replace(cifar.CIFAR10, train={"train.bin": (2, None)}, test={"test.bin": (1, None)})
_RECORD = bytes([3]) + bytes(range(256)) * 12


def _cifar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in (("a/train.bin", _RECORD * 2), ("../test.bin", _RECORD)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _read_cifar(folder: Path, chosen: tuple[str, bytes]) -> None:
    name, content = chosen
    for old in folder.iterdir():
        old.unlink()
    layout = _LAYOUT
    if name == "archive":
        # The md5 of the published archive is what guards it; here every archive counts as published.
        layout = replace(layout, train={"train.bin": (2, "")}, test={"test.bin": (1, "")})
        (folder / layout.archive.name).write_bytes(content)
    else:
        (folder / "test.bin").write_bytes(_RECORD)
        (folder / name).write_bytes(content)
    place = Place("cifar10", (folder,), folder, False)
    cifar.load_cifar(Request(place, Transform(), True, {}), layout)


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def _npz_compressed() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.zeros((4, 3), np.float32), y=np.arange(4))
    return buffer.getvalue()


_NPZ = _npz(x=np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), y=np.arange(4) % 2)
_OBJECTS = _npz(x=np.array([os.getcwd, 1], dtype=object), y=np.arange(2))


def _read_npz(folder: Path, content: bytes) -> None:
    (folder / "0.npz").write_bytes(content)
    from_npz_folder(folder)


_MODULE = torch.nn.Linear(3, 2)
_WEIGHTS = save({name: tensor.detach() for name, tensor in _MODULE.state_dict().items()})


def _read_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    load_model(torch.nn.Linear(3, 2), folder / "model.safetensors")


# Runs


def _valid_run() -> bytes:
    """A small run in small pages, so that most bytes mean something."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / FILE
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA page_size = 512")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("VACUUM")
        simulation = _simulation()
        store = Store.create(Path(name), config.dump(config.Experiment()))
        execute(simulation, Evaluation(clients=True), store, keep_every=2)
        store.close()
        return path.read_bytes()


def _simulation() -> Any:
    return tiny_simulation(make_algorithm("scaffold"), rounds=3)


_SIMULATION = _simulation()
_RUN = _valid_run()


def _read_run(folder: Path, content: bytes) -> None:
    for old in folder.iterdir():
        old.unlink()
    (folder / FILE).write_bytes(content)
    with suppress(FedkeelError), closing(Store.reading(folder)) as reader:
        _everything(reader, folder)
    with closing(Store.open(folder)) as store:
        _everything(store, folder)
        store.event("resumed", "by a test")


def _everything(store: Store, folder: Path) -> None:
    calls: list[Callable[[], object]] = [store.events, store.kept_rounds, lambda: store.read_state(2)]
    calls.append(lambda: changes.stored(store.configuration(), folder))
    for call in calls:
        with suppress(FedkeelError):
            call()
    state = store.read_state()
    if state is not None:
        check_fits(_SIMULATION, state, store.history(), "the run")


def _files(**contents: bytes) -> st.SearchStrategy[tuple[str, bytes]]:
    made = [st.tuples(st.just(name.replace("__", ".")), mutated(content)) for name, content in contents.items()]
    return st.one_of(made)


TARGETS = (
    Target(
        "configuration",
        mutated(_TEXT) | st.dictionaries(st.sampled_from(NAMES), _VALUES, max_size=5).map(_lines) | st.binary(),
        _read_configuration,
    ),
    Target("settings", _SETTINGS, _set),
    Target(
        "idx",
        _files(images=_IMAGES, labels=_LABELS, images__gz=gzip.compress(_IMAGES), labels__xz=lzma.compress(_LABELS)),
        _read_idx,
    ),
    Target(
        "cifar",
        _files(train__bin=_RECORD * 2, train__bin__xz=lzma.compress(_RECORD * 2), archive=_cifar_archive()),
        _read_cifar,
    ),
    Target("npz", mutated(_NPZ) | mutated(_npz_compressed()) | mutated(_OBJECTS) | st.binary(), _read_npz),
    Target("safetensors", mutated(_WEIGHTS) | st.binary(), _read_weights),
    Target("run store", mutated(_RUN), _read_run),
)
