"""Random settings and calls against the error contract: success, or a ``FedkeelError`` with a sentence to act on.

No traceback, no hang, no death, whatever is given: experiments, ``--set``, commands, and every argument of the Python
interface. Input ``number`` of a seed is always the same:

    python -m tests.hostile.inputs --seed 0 --only 1234
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from torch import nn

import fedkeel as fk
from fedkeel import api, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.check import tiny_federation
from fedkeel.cli.main import app
from fedkeel.cli.main import run as command
from fedkeel.data import Dataset, Federation, Split, Transform
from fedkeel.data.partitions import RULES
from fedkeel.engine.settings import Faults, Training
from fedkeel.errors import FedkeelError
from fedkeel.runs.fork import Fork
from fedkeel.runs.runner import Evaluation
from tests.fuzz.settings import NAMES, as_toml, comes_back
from tests.hostile import guarded, values

LONGEST = 2000
"""Characters of a sentence that somebody still reads."""
_SENSELESS = re.compile(
    r"Traceback|pydantic\.dev|object at 0x|\bNoneType\b|has no attribute|unhashable|not subscriptable"
)
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_MUCH = {"steps", "epochs", "P", "tau_0", "tau_min", "tau_max", "workers"}
"""Numbers that ask for work or processes: what is run has few of either, what is only read has any."""

Give = Callable[[], object]


@dataclass(frozen=True)
class Input:
    """What is given, for people, and the act of giving it."""

    what: str
    give: Give


def run(count: int, seed: int) -> dict[str, Any]:
    """Give ``count`` inputs; how many there were, how many gave tracebacks (or died) and hung, and examples."""
    tally = guarded.run_guarded("tests.hostile.inputs", count, seed)
    return {"inputs": count} | asdict(tally)


def trial(seed: int, number: int) -> tuple[str, Callable[[], str | None]]:
    """Input ``number`` of a seed, and how to give it."""
    rng = random.Random(f"{seed}/{number}")
    kinds = list(_KINDS)
    kind = rng.choices(kinds, [_KINDS[one] for one in kinds])[0]
    folder = _clean_folder()
    made = kind(rng, folder)
    what = f"{kind.__name__.strip('_')}: {made.what}"
    return what, lambda: _answered(made.give)


def _answered(give: Give) -> str | None:
    """What is wrong with the answer, apart from exceptions that are not ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            give()
    except FedkeelError as error:
        return senseless(str(error))
    return None


def senseless(sentence: str) -> str | None:
    """Why a person could do nothing with a sentence."""
    if not sentence.strip():
        return "an error without a word"
    if len(sentence) > LONGEST:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]}"
    if found := _SENSELESS.search(sentence):
        return f"a sentence that speaks of {found[0]!r}: {sentence}"
    return None


def _clean_folder() -> Path:
    folder = Path(_scratch())
    for old in folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    os.chdir(folder)
    return folder


@cache
def _scratch() -> str:
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.mkdtemp(prefix="fedkeel-inputs-", dir=base)


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except RecursionError:
        text = "deeply nested"
    return text if len(text) < 400 else text[:400] + "…"


def _described(**given: Any) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in given.items())


@cache
def _federation() -> Federation:
    return tiny_federation()


@cache
def _dataset() -> Dataset:
    return _federation().dataset


class _EnoughError(FedkeelError):
    """Two rounds are enough to see whether settings work."""


def _watch(progress: Any) -> None:
    if progress.round >= 2:
        raise _EnoughError("two rounds were enough")


def _small(given: dict[str, Any]) -> dict[str, Any]:
    """Without demands that are honest but take long."""
    return {
        name: 3 if name in _MUCH and isinstance(value, int | float) and value > 3 else value
        for name, value in given.items()
    }


def _replaced(rng: random.Random, given: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """A call with some arguments replaced or added."""
    changed = dict(given)
    for name in rng.sample(list(others), min(len(others), rng.choice((0, 1, 1, 1, 2, 3)))):
        changed[name] = values.anything(rng) if rng.random() < 0.7 else rng.choice(others[name])
    return changed


# Experiments in TOML


_SECTIONS: dict[str, Any] = {
    "data": config.DataConfig,
    "partition": config.PartitionConfig,
    "model": config.ModelConfig,
    "training": Training,
    "faults": Faults,
    "evaluation": Evaluation,
    "run": config.RunConfig,
}


def _experiment_table(rng: random.Random) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for section in rng.sample(list(_SECTIONS), rng.randrange(5)):
        table[section] = values.fields(rng, _SECTIONS[section], live=False)
    if rng.random() < 0.5:
        name = rng.choice(list(ALGORITHMS))
        table["algorithm"] = {"name": name} | values.fields(rng, ALGORITHMS[name].Params, live=False)
    if rng.random() < 0.3:
        rule = rng.choice(list(RULES))
        own = {param.name: rng.choice((param.default, values.plain(rng))) for param in RULES[rule].params}
        table["partition"] = table.get("partition", {}) | {"rule": rule} | own
    if rng.random() < 0.15:
        swept = rng.sample([*NAMES, "algorithm"], rng.randrange(3))
        table["sweep"] = {name: [values.plain(rng) for _ in range(rng.randrange(4))] for name in swept}
        if rng.random() < 0.3:
            table["sweep"]["algorithm"] = rng.sample(list(ALGORITHMS), 2)
    if rng.random() < 0.15:
        name = rng.choice([*ALGORITHMS, "fedc", ""])
        schema = ALGORITHMS[name].Params if name in ALGORITHMS else Training
        table["algorithms"] = {name: values.fields(rng, schema, live=False)}
    if rng.random() < 0.3:
        table |= values.fields(rng, config.Experiment, live=False, at_most=2)
    if rng.random() < 0.1:
        table[rng.choice([*_SECTIONS, "sweep", "algorithms", "algorithm"])] = values.plain(rng)
    return table


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _toml_text(rng: random.Random, table: dict[str, Any]) -> str:
    """A table as a file: in sections, in dotted keys, or in one line; now and then damaged."""
    table = _without_none(table)
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {as_toml(value)}" for key, value in table.items() if key not in tables]
    style = rng.random()
    for key, section in tables.items():
        if style < 0.6:
            lines += [f"[{_key(key)}]", *(f"{_key(name)} = {as_toml(value)}" for name, value in section.items())]
        elif style < 0.8:
            lines = [f"{_key(key)}.{_key(name)} = {as_toml(value)}" for name, value in section.items()] + lines
        else:
            lines = [f"{_key(key)} = {as_toml(section)}", *lines]
    text = "\n".join(lines) + "\n"
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + values.text(rng) + text[at + rng.randrange(3) :]
    if rng.random() < 0.01:
        text += ".".join(["a"] * 3000) + " = 1\n"
    return text


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else as_toml(name)


def _write(folder: Path, text: str) -> Path:
    path = folder / "e.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def _experiment_file(rng: random.Random, folder: Path) -> Input:
    text = _toml_text(rng, _experiment_table(rng))

    def give() -> None:
        for experiment in config.read(_write(folder, text)):
            comes_back(folder, experiment)

    return Input(_shown(text), give)


_SETTABLE = [*NAMES, *(f"faults.{name}" for name in Faults.model_fields), "algorithm", "sweep.training.lr"]


def _setting(rng: random.Random) -> str:
    kind = rng.random()
    name = rng.choice(_SETTABLE)
    if kind < 0.5:
        return f"{name}={as_toml(_without_none(values.plain(rng)) or 0)}"
    if kind < 0.8:
        return f"{name}={values.text(rng)}"
    if kind < 0.9:
        return f"{values.text(rng)}={values.text(rng)}"
    if kind < 0.92:
        return f"{'.'.join(['training'] * rng.choice((2, 3, 3000)))}=1"
    return values.text(rng)


def _set_strings(rng: random.Random, folder: Path) -> Input:
    chosen = [_setting(rng) for _ in range(rng.randrange(1, 4))]
    text = rng.choice(
        ("", '[sweep]\nalgorithm = ["fedavg", "feddc"]\n', '[training]\nlr = 0.5\n\n[algorithm]\nname="feddc"\n')
    )

    def give() -> None:
        for experiment in config.read(_write(folder, text), chosen):
            comes_back(folder, experiment)

    return Input(_shown((chosen, text)), give)


# Runs


def _tiny_experiment(rng: random.Random, **more: Any) -> dict[str, Any]:
    name = rng.choice(list(ALGORITHMS))
    needs = ALGORITHMS[name].needs
    training = {"rounds": rng.randrange(1, 4), "steps": rng.randrange(1, 4), "batch_size": rng.choice((1, 4, 50))}
    training |= _small(values.fields(rng, Training, live=False)) if rng.random() < 0.5 else {}
    if training.get("epochs") is not None:
        training.pop("steps", None)
    if "full" not in needs and "participation" not in training:
        training["participation"] = rng.choice((0.1, 0.5, 1.0))
    table = {
        "model": {"name": rng.choice(("linear_synth", "logistic", "linear_synth", "svm", "lenet5", "emnist_nn"))},
        "algorithm": {"name": name} | _small(values.fields(rng, ALGORITHMS[name].Params, live=False)),
        "training": training,
        "run": {"executor": "serial"} | ({"memory_mb": rng.choice((0, 1))} if rng.random() < 0.05 else {}),
    }
    if rng.random() < 0.3:
        table["evaluation"] = values.fields(rng, Evaluation, live=False)
    if rng.random() < 0.3:
        table["faults"] = values.fields(rng, Faults, live=False)
    return _without_none(table | more)


def _executed(table: dict[str, Any], directory: Path, after: int = 2, **options: Any) -> None:
    (experiment,) = config.expand(table, [])
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= after

    api.run(experiment, directory, **{"federation": _federation(), "stop": stop} | options)


def _experiment_run(rng: random.Random, folder: Path) -> Input:
    table = _tiny_experiment(rng)
    return Input(_shown(table), lambda: _executed(table, folder / "r"))


def _resumed(rng: random.Random, folder: Path) -> Input:
    """A run that is stopped or ends, then resumed and forked with other settings."""
    sound = {"rounds": rng.randrange(1, 4), "steps": 2, "batch_size": 4}
    table = {
        "model": {"name": "linear_synth"},
        "algorithm": {"name": rng.choice(list(ALGORITHMS))},
        "training": sound,
        "evaluation": {"every": rng.choice((1, 2, 10))},
        "run": {"executor": "serial", "checkpoint_every": rng.choice((0, 1, 2))},
    }
    changed = {section: dict(given) for section, given in table.items()}
    if rng.random() < 0.7:
        section = rng.choice(("training", "evaluation", "run", "algorithm", "faults", "model"))
        changed[section] = changed.get(section, {}) | (_tiny_experiment(rng).get(section) or {"every": 1})
    if rng.random() < 0.7:
        changed["training"] = changed["training"] | {"rounds": rng.randrange(1, 6)}
    after = rng.randrange(1, 4)
    from_round = rng.choice((None, 0, 1, 2, 3, -1, 10**9, "1", 1.5))

    def give() -> None:
        with contextlib.suppress(api.StoppedError):
            _executed(table, folder / "r", after)
        with contextlib.suppress(FedkeelError):
            _executed(changed, folder / "f", 9, fork=Fork(folder / "r", from_round))  # type: ignore[arg-type]
        _executed(changed, folder / "r", 9, resume=True)

    return Input(_described(table=table, after=after, changed=changed, from_round=from_round), give)


def _run_call(rng: random.Random, folder: Path) -> Input:
    (experiment,) = config.expand(
        {"model": {"name": "logistic"}, "training": {"rounds": 1, "steps": 1}, "run": {"executor": "serial"}}, []
    )
    base = {"experiment": experiment, "directory": folder / "r", "federation": _federation()}
    others: dict[str, Any] = {
        "experiment": [str(folder / "e.toml"), {"training": {"rounds": 1}}, config.Experiment, Training()],
        "directory": [str(folder / "r"), folder, folder / "e.toml", "r[/x]", "/proc/nothing/here", folder / "\x1b[1m"],
        "federation": [_dataset(), Federation, [_federation()]],
        "data_dir": [str(folder), folder / "absent"],
        "resume": [True, 1, "yes"],
        "fork": ["r", "r@1", folder, Fork(folder), Fork("r", 1)],  # type: ignore[arg-type]
        "allow_plugins": [True, 1],
        "watch": [_watch, print],
        "stop": [lambda: True, lambda: None],
    }
    call = _replaced(rng, base, others)
    for name in ("watch", "stop"):  # what a person's own function raises is theirs
        if callable(call.get(name)) and call[name] not in others[name]:
            call[name] = others[name][0]

    def give() -> None:
        _write(folder, "[training]\nrounds = 1\n")
        with contextlib.redirect_stdout(io.StringIO()):
            fk.run(**call)

    return Input(_described(**call), give)


# Training from Python


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
    "data": [None, _dataset, "mnist5k"],
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


def _train_call(rng: random.Random, folder: Path) -> Input:
    name = rng.choice(list(ALGORITHMS))
    base: dict[str, Any] = {"algorithm": name, "model": rng.choice(_MODELS)(), "data": _federation()}
    base |= {"rounds": rng.choice((1, 2)), "executor": "serial", "watch": _watch, "batch_size": rng.choice((1, 5, 50))}
    if rng.random() < 0.5:
        base["params"] = _small(values.fields(rng, ALGORITHMS[name].Params, live=True))
    if rng.random() < 0.5:
        base |= values.fields(rng, Training, live=True)
    if rng.random() < 0.2:
        base["faults"] = values.fields(rng, Faults, live=True)
    call = _small(_replaced(rng, base, _TRAIN))
    if call.get("data") is _dataset:
        call["data"] = _dataset()
    if isinstance(call.get("threads"), int) and call["threads"] > 2:
        call["threads"] = 2
    if callable(call.get("watch")) and call["watch"] is not print:  # what a person's own function raises is theirs
        call["watch"] = _watch
    positional = call.pop("algorithm")

    def give() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            trained = fk.train(positional, **call)
        trained.rounds_to(0.5)
        trained.save_model(str(folder / "m.safetensors"))

    return Input(_described(algorithm=positional, **call), give)


def _algorithm_call(rng: random.Random, folder: Path) -> Input:
    name: Any = rng.choice(list(ALGORITHMS))
    params = values.fields(rng, ALGORITHMS[name].Params, live=True, at_most=5)
    if rng.random() < 0.15:
        name = values.anything(rng)
    call: Give = lambda: fk.make_algorithm(name, **params)  # noqa: E731
    if rng.random() < 0.2:
        wanted = values.anything(rng)
        return Input(f"check_algorithm({_shown(wanted)})", lambda: fk.check_algorithm(wanted))
    return Input(_described(name=name, **params), call)


# Data from Python


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


def _from_arrays(rng: random.Random, folder: Path) -> Input:
    odd = _odd_arrays(rng)
    call = _replaced(rng, _arrays(rng), dict.fromkeys(("x", "y", "x_test", "y_test"), odd) | _OPTIONS)

    def give() -> None:
        made = fk.data.from_arrays(**call)
        if len(made.train) > 1:
            made.partition("iid", clients=2).describe()

    return Input(_described(**call), give)


def _from_clients(rng: random.Random, folder: Path) -> Input:
    pairs: Any = [(np.full((4, 2), i, np.float32), np.arange(4) % 2) for i in range(3)]
    odd = rng.choice((*_odd_arrays(rng), values.anything(rng)))
    broken = [*pairs[:2], rng.choice(((odd, pairs[0][1]), (pairs[0][0], odd), odd, (odd, odd)))]
    others = {
        "clients": [broken, tuple(pairs), iter(pairs), dict(enumerate(pairs)), pairs[0], [[]]],
        "test": [pairs[0], odd, (odd, odd), pairs],
        "holdout": [0, 1, 0.5, 0.999, "0.2", np.float32(0.2)],
        "seed": [2**64, -1, 1.5, np.int64(1), None, 2**63],
    }
    call = _replaced(rng, {"clients": pairs}, others | _OPTIONS)
    return Input(_described(**call), lambda: fk.data.from_clients(**call).describe())


def _from_elsewhere(rng: random.Random, folder: Path) -> Input:
    """Torch data sets, npz folders and Hugging Face, from things that are none."""
    pairs = [(np.zeros(3, np.float32), 1), (np.ones(3, np.float32), 0)]
    odd = rng.choice(
        (*_odd_arrays(rng), values.anything(rng), [(1, 2)], [(np.zeros(2), "a")], [3], [(np.zeros(2), 0.5)])
    )
    which = rng.randrange(4)
    if which == 0:
        given = rng.choice(((odd, pairs), (pairs, odd), (pairs, pairs)))
        return Input(f"from_torch{_shown(given)}", lambda: fk.data.from_torch(*given))
    if which == 1:
        content = rng.choice(({}, {"x": odd}, {"x": odd, "y": [0, 1]}, {"x": np.zeros((4, 2)), "y": odd}))
        path = rng.choice((folder / "npz", str(folder / "npz"), folder, "", values.anything(rng)))

        def give() -> object:
            (folder / "npz").mkdir()
            with contextlib.suppress(Exception):  # not everything can be written
                np.savez(folder / "npz" / "0.npz", **content)
            return fk.data.from_npz_folder(path)

        return Input(f"from_npz_folder({_shown(path)}) of {_shown(content)}", give)
    if which == 2:
        part = {"image": [np.zeros(3, np.float32)] * 3, "label": [0, 1, 0]}
        data = rng.choice((odd, [part, part], [odd], {"train": part, "test": part}, {"train": odd, "test": part}, []))
        options = _replaced(rng, {}, {"test": [part, odd], "image": ["x"], "label": ["y"]} | _OPTIONS)
        if isinstance(data, str):
            data = [data]
        return Input(_described(data=data, **options), lambda: fk.data.from_hf(data, **options))
    return Input(f"from_flwr({_shown(odd)})", lambda: fk.data.from_flwr(odd))


def _load_call(rng: random.Random, folder: Path) -> Input:
    name = rng.choice(("mnist5k", "synthetic_feddyn", "synthetic_fedprox", values.anything(rng)))
    base: dict[str, Any] = {"download": False}
    if name == "synthetic_feddyn" or name == "synthetic_fedprox":
        base |= {"clients": 2}
    others = {
        "data_dir": [folder, str(folder), "absent"],
        "normalise": ["unit", "standard", "none"],
        "augment": ["flip_crop_half", "flip", None],
        "subset_ok": [True],
        "seed": [0, 2**63, 2**64, -1, 1.5],
        "clients": [1, 3, 10**9, 10**5, 2.5],
        "alpha": [0.5, -1, 1e308],
        "beta": [0.5, -1, 1e308],
        "classes": [2, 1, 10**9],
        "features": [2, 1, 10**9],
    }
    call = _replaced(rng, base, others)
    return Input(_described(name=name, **call), lambda: fk.data.load(name, **call))


def _partition_call(rng: random.Random, folder: Path) -> Input:
    rule: Any = rng.choice(list(RULES))
    base: dict[str, Any] = {"rule": rule, "clients": rng.choice((1, 2, 5, 30, 56))}
    own = {param.name: [param.default, 0, 1, 2, 0.5, 1e-9, 1e9, [1, 2]] for param in RULES[rule].params}
    others = {
        "clients": [57, 10**9, 2.0, np.int64(3), True],
        "seed": [2**64, -1, 1.5, np.uint8(3)],
        "rule": ["IID", ""],
    }
    call = _replaced(rng, base, own | others)
    share = rng.choice((None, None, 0.5, values.anything(rng)))

    def give() -> None:
        federation = _dataset().partition(**call)
        federation.describe()
        if share is not None:
            federation.hold_out(share)

    return Input(_described(**call, share=share), give)


def _constructed(rng: random.Random, folder: Path) -> Input:
    """Data classes from their own fields."""
    whole, federation = _dataset(), _federation()
    built: tuple[tuple[Any, dict[str, Any]], ...] = (
        (Split, {"x": whole.train.x, "y": whole.train.y}),
        (Transform, {"scale": 1.0, "mean": (0.5,), "std": (0.5,), "augment": None}),
        (Dataset, {field: getattr(whole, field) for field in Dataset.__dataclass_fields__}),
        (Federation, {field: getattr(federation, field) for field in Federation.__dataclass_fields__}),
    )
    kind, base = rng.choice(built)
    odd = [*_odd_arrays(rng), [[0, 1], [1]], [[0], []], (np.array([0]),), [np.array([0.5])], [[10**9]]]
    call = _replaced(rng, base, dict.fromkeys(base, odd))
    return Input(f"{kind.__name__}({_described(**call)})", lambda: kind(**call))


def _load_model_call(rng: random.Random, folder: Path) -> Input:
    module = rng.choice((nn.Linear(6, 3), nn.Linear(3, 2), nn.Linear, values.anything(rng)))
    path = rng.choice(("m.safetensors", folder / "m.safetensors", folder, "absent", values.anything(rng)))

    def give() -> None:
        from safetensors.torch import save_file

        save_file(nn.Linear(6, 3).state_dict(), folder / "m.safetensors")
        fk.load_model(module, path)

    return Input(_described(module=module, path=path), give)


# The command


_PROGRAM: Any = typer.main.get_command(app)
_COMMANDS: dict[str, dict[str, bool]] = {
    name: {spelt: bool(o.is_flag) for o in one.params if o.param_type_name == "option" for spelt in o.opts}
    for name, one in _PROGRAM.commands.items()
}
"""Every command with its options, and whether they stand alone."""
_HEAVY = ("demo", "bench")
"""Commands that take seconds, and so are only asked for nonsense or for help."""


def _word(rng: random.Random) -> str:
    word = rng.choice((values.text(rng), str(rng.choice(values.NUMBERS)), _setting(rng)))
    return word.replace("\x00", "")  # which no shell can hand over


def _command_line(rng: random.Random, folder: Path) -> Input:
    name = rng.choice([*_COMMANDS, "run", "run", "run", "partition"])
    words = [name]
    if name == "run":
        words.append(rng.choice(("e.toml", "e.toml", "e.toml", "absent.toml", ".", _word(rng))))
    elif name in ("algorithms", "partition") and rng.random() < 0.7:
        words.append(rng.choice(("feddc", "synthetic_feddyn", _word(rng))))
    elif name not in ("data", "models"):
        words.append(_word(rng))
    for option in rng.sample(list(_COMMANDS[name]), rng.randrange(min(4, len(_COMMANDS[name])) + 1)):
        words.append(option)
        if not _COMMANDS[name][option]:
            words.append(rng.choice(("o", "3", "alpha=0.5", _word(rng))) if option != "--clients" else "3")
    if name in _HEAVY:
        words.insert(1, rng.choice(("--no-such-option", "--help")))
    elif rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), _word(rng))
    return Input(_shown(words), lambda: _commanded(words, folder))


@cache
def _tiny_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    return buffer.getvalue()


_SMALL = """\
data.name = "./tiny"
model.name = "logistic"
training.rounds = 1
training.steps = 1
run.executor = "serial"
"""


def _commanded(words: list[str], folder: Path) -> None:
    _write(folder, _SMALL)
    (folder / "tiny").mkdir()
    for client in range(3):
        (folder / "tiny" / f"{client}.npz").write_bytes(_tiny_npz())
    out, err, path = io.StringIO(), io.StringIO(), list(sys.path)
    code: object = 0
    typed = mock.patch.object(sys, "argv", ["fedkeel", *words])
    with typed, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.path[:] = path
    said = err.getvalue()
    if code not in (None, 0, 1, 2):
        raise AssertionError(f"exit code {code!r}: {said}")
    if found := _RAW.search(out.getvalue() + said):
        raise AssertionError(f"{found[0]!r} reaches the terminal: {(out.getvalue() + said)[-300:]!r}")
    if code == 2:
        if not said.startswith("fedkeel: ") or said.count("\n") != 1:
            raise AssertionError(f"not one sentence of ours: {said!r}")
        raise FedkeelError(said.removeprefix("fedkeel: "))


_KINDS: dict[Callable[[random.Random, Path], Input], float] = {
    _experiment_file: 20,
    _set_strings: 10,
    _experiment_run: 8,
    _resumed: 2,
    _run_call: 3,
    _train_call: 14,
    _algorithm_call: 8,
    _from_arrays: 6,
    _from_clients: 5,
    _from_elsewhere: 5,
    _load_call: 2,
    _partition_call: 6,
    _constructed: 4,
    _load_model_call: 2,
    _command_line: 8,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        guarded.main(trial)
    finally:
        shutil.rmtree(_scratch(), ignore_errors=True)
