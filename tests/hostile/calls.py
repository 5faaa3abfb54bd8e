"""Calls of the Python interface with random arguments."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedkeel as fk
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.data import Dataset, Federation, Split, Transform
from fedkeel.data.partitions import RULES
from fedkeel.engine.settings import Faults, Training
from tests.hostile import values
from tests.hostile.given import Give, Input, dataset, described, federation, replaced, shown, small, watch


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x.long().clamp(0, 9)).flatten(1))


_MODELS: tuple[Callable[[], Any], ...] = (
    lambda: "logistic",
    lambda: "linear_synth",
    lambda: nn.Linear(6, 3),
    lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
    lambda: fk.Staged({"body": nn.Sequential(nn.Linear(6, 4), nn.Tanh()), "head": nn.Linear(4, 3)}),
    _Tied,
)
_TRAIN: dict[str, list[Any]] = {
    "algorithm": [*ALGORITHMS.values(), *ALGORITHMS, "mine:Class"],
    "model": ["2nn", "lenet5", "svm", nn.ReLU(), nn.Linear(5, 3), nn.Linear(6, 5), nn.Linear, nn.Module()],
    "data": [None, dataset, "mnist5k"],
    "seed": [1.5, 2**63, 2**64, -1, np.int64(3), "0"],
    "params": [{"alpha": 0.1}, {"mode": "code"}, {"mode": 3}, [("alpha", 1)], {1: 2}],
    "loss": [
        nn.CrossEntropyLoss(),
        nn.MSELoss(),
        nn.CrossEntropyLoss,
        "cross_entropy",
        torch.nn.functional.cross_entropy,
    ],
    "faults": [{"dropout": 0.5}, {"dropout": "x"}, Faults(), Faults, [], {1: 1}],
    "evaluate_every": [0, 10, 1.5, np.int32(2)],
    "executor": ["serial", "stacked", "gpu", "Serial", ""],
    "workers": [0, -3, 1, np.int64(1), 1.5],
    "threads": [0, -1, 1, 2, 1.5],
    "device": ["cuda", "cpu:0", "cpu:1", "cpu:x", "gpu", torch.device("cpu"), "mps:99"],
    "watch": [None, print, 3],
    "alpha": [0.1],
    "rounds": [True, 1.5, "1", np.int64(1), 0],
    "out": ["x"],
    "epochs": [1, 2, None],
}


def train_call(rng: random.Random, folder: Path) -> Input:
    """``fk.train`` with some arguments that are not what they should be."""
    name = rng.choice(list(ALGORITHMS))
    base: dict[str, Any] = {"algorithm": name, "model": rng.choice(_MODELS)(), "data": federation()}
    base |= {"rounds": rng.choice((1, 2)), "executor": "serial", "watch": watch, "batch_size": rng.choice((1, 5, 50))}
    if rng.random() < 0.5:
        base["params"] = small(values.fields(rng, ALGORITHMS[name].Params, live=True))
    if rng.random() < 0.5:
        base |= values.fields(rng, Training, live=True)
    if rng.random() < 0.2:
        base["faults"] = values.fields(rng, Faults, live=True)
    call = small(replaced(rng, base, _TRAIN))
    if call.get("data") is dataset:
        call["data"] = dataset()
    if isinstance(call.get("threads"), int) and call["threads"] > 2:
        call["threads"] = 2
    if callable(call.get("watch")) and call["watch"] is not print:  # what a person's own function raises is theirs
        call["watch"] = watch
    positional = call.pop("algorithm")

    def give() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            trained = fk.train(positional, **call)
        trained.rounds_to(0.5)
        trained.save_model(str(folder / "m.safetensors"))

    return Input(described(algorithm=positional, **call), give)


def algorithm_call(rng: random.Random, folder: Path) -> Input:
    """``make_algorithm`` and ``check_algorithm``."""
    name: Any = rng.choice(list(ALGORITHMS))
    params = values.fields(rng, ALGORITHMS[name].Params, live=True, at_most=5)
    if rng.random() < 0.15:
        name = values.anything(rng)
    call: Give = lambda: fk.make_algorithm(name, **params)  # noqa: E731
    if rng.random() < 0.2:
        wanted = values.anything(rng)
        return Input(f"check_algorithm({shown(wanted)})", lambda: fk.check_algorithm(wanted))
    return Input(described(name=name, **params), call)


def _arrays(rng: random.Random) -> dict[str, Any]:
    x = np.random.default_rng(rng.randrange(9)).normal(size=(rng.choice((1, 5, 20)), 4)).astype(np.float32)
    return {"x": x, "y": np.arange(len(x)) % 3, "x_test": x, "y_test": np.arange(len(x)) % 3}


def _odd_arrays(rng: random.Random) -> list[Any]:
    whole = np.arange(20).reshape(5, 4)
    return [
        *(
            whole.astype(kind)
            for kind in ("uint8", "int8", "int64", "float16", "float64", "bool", "complex64", "object", "U3")
        ),
        *(np.full((5, 4), number) for number in (np.nan, np.inf, 1e39, 2**24 + 1, -1)),
        *(np.zeros(shape) for shape in ((), (5,), (0, 4), (5, 0), (5, 1, 2, 3, 4), (5, 4, 4), (7, 4))),
        *(
            torch.zeros(5, 4),
            torch.zeros(5, 4, dtype=torch.bfloat16),
            torch.zeros(5, dtype=torch.long).requires_grad_(False),
        ),
        *([[1, 2], [3]], ["a", "b"], [[1, 2]] * 5, [0, 1, 2, 3, 4], [0.5] * 5, [-1] * 5, [10**30] * 5, [2**40] * 5),
        *(np.zeros((5, 8, 8, 3), np.uint8), np.zeros((5, 3, 8, 8), np.uint8), np.ma.masked_array([1, 2, 3, 4, 5])),
        *(np.array([0, 1, 2, 1, 0], kind) for kind in ("uint64", "float32", ">i4", "bool")),
        *(np.broadcast_to(np.float32(1), (5, 4)), whole.T[:, :4].astype("f4"), iter([1, 2]), {1: 2}),
    ]


_OPTIONS: dict[str, list[Any]] = {
    "classes": [3, 2, 10, 10**9, np.int64(3), 3.0],
    "name": ["own", "\x1b[2J", "[/x]", "", "a/b"],
    "mean": [(0.5,), [0.1] * 4, "ab", 0.5, np.zeros(4), torch.zeros(4)],
    "std": [(0.5,), [0.1] * 4, [0.0], 0.5, np.ones(4)],
    "class_names": [("a", "b", "c"), "abc", [1, 2, 3], ["\x1b", "b", "c"], ["a"] * 3],
}


def from_arrays(rng: random.Random, folder: Path) -> Input:
    """Arrays of every type and shape, and odd options."""
    odd = _odd_arrays(rng)
    call = replaced(rng, _arrays(rng), dict.fromkeys(("x", "y", "x_test", "y_test"), odd) | _OPTIONS)

    def give() -> None:
        made = fk.data.from_arrays(**call)
        if len(made.train) > 1:
            made.partition("iid", clients=2).describe()

    return Input(described(**call), give)


def from_clients(rng: random.Random, folder: Path) -> Input:
    """Pairs of arrays, of which one may be anything."""
    pairs: Any = [(np.full((4, 2), i, np.float32), np.arange(4) % 2) for i in range(3)]
    odd = rng.choice((*_odd_arrays(rng), values.anything(rng)))
    broken = [*pairs[:2], rng.choice(((odd, pairs[0][1]), (pairs[0][0], odd), odd, (odd, odd)))]
    others = {
        "clients": [broken, tuple(pairs), iter(pairs), dict(enumerate(pairs)), pairs[0], [[]]],
        "test": [pairs[0], odd, (odd, odd), pairs],
        "holdout": [0, 1, 0.5, 0.999, "0.2", np.float32(0.2)],
        "seed": [2**64, -1, 1.5, np.int64(1), None, 2**63],
    }
    call = replaced(rng, {"clients": pairs}, others | _OPTIONS)
    return Input(described(**call), lambda: fk.data.from_clients(**call).describe())


def from_elsewhere(rng: random.Random, folder: Path) -> Input:
    """Torch data sets, npz folders and Hugging Face, from things that are none."""
    pairs = [(np.zeros(3, np.float32), 1), (np.ones(3, np.float32), 0)]
    odd = rng.choice(
        (*_odd_arrays(rng), values.anything(rng), [(1, 2)], [(np.zeros(2), "a")], [3], [(np.zeros(2), 0.5)])
    )
    which = rng.randrange(4)
    if which == 0:
        given = rng.choice(((odd, pairs), (pairs, odd), (pairs, pairs)))
        return Input(f"from_torch{shown(given)}", lambda: fk.data.from_torch(*given))
    if which == 1:
        content = rng.choice(({}, {"x": odd}, {"x": odd, "y": [0, 1]}, {"x": np.zeros((4, 2)), "y": odd}))
        path = rng.choice((folder / "npz", str(folder / "npz"), folder, "", values.anything(rng)))

        def give() -> object:
            (folder / "npz").mkdir()
            with contextlib.suppress(Exception):  # not everything can be written
                np.savez(folder / "npz" / "0.npz", **content)
            return fk.data.from_npz_folder(path)

        return Input(f"from_npz_folder({shown(path)}) of {shown(content)}", give)
    if which == 2:
        part = {"image": [np.zeros(3, np.float32)] * 3, "label": [0, 1, 0]}
        data = rng.choice((odd, [part, part], [odd], {"train": part, "test": part}, {"train": odd, "test": part}, []))
        options = replaced(rng, {}, {"test": [part, odd], "image": ["x"], "label": ["y"]} | _OPTIONS)
        if isinstance(data, str):
            data = [data]
        return Input(described(data=data, **options), lambda: fk.data.from_hf(data, **options))
    return Input(f"from_flwr({shown(odd)})", lambda: fk.data.from_flwr(odd))


def load_call(rng: random.Random, folder: Path) -> Input:
    """Data sets by name with odd options; nothing is downloaded."""
    name = rng.choice(("mnist5k", "synthetic_feddyn", "synthetic_fedprox", values.anything(rng)))
    base: dict[str, Any] = {"download": False}
    if isinstance(name, str) and name.startswith("synthetic"):
        base |= {"clients": 2}
    others = {
        "data_dir": [folder, str(folder), "absent"],
        "normalise": ["unit", "standard", "none"],
        "augment": ["flip_crop_half", "flip", None],
        "subset_ok": [True],
        "seed": [0, 2**63, 2**64, -1, 1.5],
        "clients": [1, 3, 10**9, 2.5],
        "alpha": [0.5, -1, 1e308],
        "beta": [0.5, -1, 1e308],
        "classes": [2, 1, 10**9],
        "features": [2, 1, 10**9],
    }
    call = replaced(rng, base, others)
    return Input(described(name=name, **call), lambda: fk.data.load(name, **call))


def partition_call(rng: random.Random, folder: Path) -> Input:
    """Rules with parameters at and beyond their limits."""
    rule: Any = rng.choice(list(RULES))
    base: dict[str, Any] = {"rule": rule, "clients": rng.choice((1, 2, 5, 30, 56))}
    own = {param.name: [param.default, 0, 1, 2, 0.5, 1e-9, 1e9, [1, 2]] for param in RULES[rule].params}
    others = {
        "clients": [57, 10**9, 2.0, np.int64(3), True],
        "seed": [2**64, -1, 1.5, np.uint8(3)],
        "rule": ["IID", ""],
    }
    call = replaced(rng, base, own | others)
    share = rng.choice((None, None, 0.5, values.anything(rng)))

    def give() -> None:
        dealt = dataset().partition(**call)
        dealt.describe()
        if share is not None:
            dealt.hold_out(share)

    return Input(described(**call, share=share), give)


def constructed(rng: random.Random, folder: Path) -> Input:
    """Data classes from their own fields."""
    whole, dealt = dataset(), federation()
    built: tuple[tuple[Any, dict[str, Any]], ...] = (
        (Split, {"x": whole.train.x, "y": whole.train.y}),
        (Transform, {"scale": 1.0, "mean": (0.5,), "std": (0.5,), "augment": None}),
        (Dataset, {field: getattr(whole, field) for field in Dataset.__dataclass_fields__}),
        (Federation, {field: getattr(dealt, field) for field in Federation.__dataclass_fields__}),
    )
    kind, base = rng.choice(built)
    odd = [*_odd_arrays(rng), [[0, 1], [1]], [[0], []], (np.array([0]),), [np.array([0.5])], [[10**9]]]
    call = replaced(rng, base, dict.fromkeys(base, odd))
    return Input(f"{kind.__name__}({described(**call)})", lambda: kind(**call))


def load_model_call(rng: random.Random, folder: Path) -> Input:
    """Weights into what is no model, from what is no file."""
    module = rng.choice((nn.Linear(6, 3), nn.Linear(3, 2), nn.Linear, values.anything(rng)))
    path = rng.choice(("m.safetensors", folder / "m.safetensors", folder, "absent", values.anything(rng)))

    def give() -> None:
        from safetensors.torch import save_file

        save_file(nn.Linear(6, 3).state_dict(), folder / "m.safetensors")
        fk.load_model(module, path)

    return Input(described(module=module, path=path), give)
