"""Experiments as files, ``--set``, and runs that are begun, resumed and forked with random settings."""

from __future__ import annotations

import contextlib
import io
import random
import re
from pathlib import Path
from typing import Any

import fedkeel as fk
from fedkeel import api, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.data import Federation
from fedkeel.data.partitions import RULES
from fedkeel.engine.settings import Faults, Training
from fedkeel.errors import FedkeelError
from fedkeel.runs.fork import Fork
from fedkeel.runs.runner import Evaluation
from tests.fuzz.settings import NAMES, as_toml, comes_back
from tests.hostile import values
from tests.hostile.given import Input, dataset, described, federation, replaced, shown, small, watch, write

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


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value if item is not None]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _toml_text(rng: random.Random, table: dict[str, Any]) -> str:
    """A table as a file: in sections, in dotted keys, or in one line; now and then damaged."""
    table = without_none(table)
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


def experiment_file(rng: random.Random, folder: Path) -> Input:
    """A file of settings; what is accepted must come back when it is written."""
    text = _toml_text(rng, _experiment_table(rng))

    def give() -> None:
        for experiment in config.read(write(folder, text)):
            comes_back(folder, experiment)

    return Input(shown(text), give)


_SETTABLE = [*NAMES, *(f"faults.{name}" for name in Faults.model_fields), "algorithm", "sweep.training.lr"]


def setting(rng: random.Random) -> str:
    """A word after ``--set``."""
    kind = rng.random()
    name = rng.choice(_SETTABLE)
    if kind < 0.5:
        return f"{name}={as_toml(without_none(values.plain(rng)) or 0)}"
    if kind < 0.8:
        return f"{name}={values.text(rng)}"
    if kind < 0.9:
        return f"{values.text(rng)}={values.text(rng)}"
    if kind < 0.92:
        return f"{'.'.join(['training'] * rng.choice((2, 3, 3000)))}=1"
    return values.text(rng)


def set_strings(rng: random.Random, folder: Path) -> Input:
    """Settings on top of a file."""
    chosen = [setting(rng) for _ in range(rng.randrange(1, 4))]
    text = rng.choice(
        ("", '[sweep]\nalgorithm = ["fedavg", "feddc"]\n', '[training]\nlr = 0.5\n\n[algorithm]\nname="feddc"\n')
    )

    def give() -> None:
        for experiment in config.read(write(folder, text), chosen):
            comes_back(folder, experiment)

    return Input(shown((chosen, text)), give)


def _tiny_experiment(rng: random.Random, **more: Any) -> dict[str, Any]:
    name = rng.choice(list(ALGORITHMS))
    needs = ALGORITHMS[name].needs
    training = {"rounds": rng.randrange(1, 4), "steps": rng.randrange(1, 4), "batch_size": rng.choice((1, 4, 50))}
    training |= small(values.fields(rng, Training, live=False)) if rng.random() < 0.5 else {}
    if training.get("epochs") is not None:
        training.pop("steps", None)
    if "full" not in needs and "participation" not in training:
        training["participation"] = rng.choice((0.1, 0.5, 1.0))
    table = {
        "model": {"name": rng.choice(("linear_synth", "logistic", "linear_synth", "svm", "lenet5", "emnist_nn"))},
        "algorithm": {"name": name} | small(values.fields(rng, ALGORITHMS[name].Params, live=False)),
        "training": training,
        "run": {"executor": "serial"} | ({"memory_mb": rng.choice((0, 1))} if rng.random() < 0.05 else {}),
    }
    if rng.random() < 0.3:
        table["evaluation"] = values.fields(rng, Evaluation, live=False)
    if rng.random() < 0.3:
        table["faults"] = values.fields(rng, Faults, live=False)
    return without_none(table | more)


def _executed(table: dict[str, Any], directory: Path, after: int = 2, **options: Any) -> None:
    (experiment,) = config.expand(table, [])
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= after

    api.run(experiment, directory, **{"federation": federation(), "stop": stop} | options)


def experiment_run(rng: random.Random, folder: Path) -> Input:
    """Two rounds of whatever settings are accepted."""
    table = _tiny_experiment(rng)
    return Input(shown(table), lambda: _executed(table, folder / "r"))


def resumed(rng: random.Random, folder: Path) -> Input:
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
        _executed(table, folder / "r", after)
        with contextlib.suppress(FedkeelError):
            _executed(changed, folder / "f", 9, fork=Fork(folder / "r", from_round))  # type: ignore[arg-type]
        _executed(changed, folder / "r", 9, resume=True)

    return Input(described(table=table, after=after, changed=changed, from_round=from_round), give)


def run_call(rng: random.Random, folder: Path) -> Input:
    """``fk.run`` with some arguments that are not what they should be."""
    (experiment,) = config.expand(
        {"model": {"name": "logistic"}, "training": {"rounds": 1, "steps": 1}, "run": {"executor": "serial"}}, []
    )
    base = {"experiment": experiment, "directory": folder / "r", "federation": federation()}
    others: dict[str, Any] = {
        "experiment": [str(folder / "e.toml"), {"training": {"rounds": 1}}, config.Experiment, Training()],
        "directory": [str(folder / "r"), folder, folder / "e.toml", "r[/x]", "/proc/nothing/here", folder / "\x1b[1m"],
        "federation": [dataset(), Federation, [federation()]],
        "data_dir": [str(folder), folder / "absent"],
        "resume": [True, 1, "yes"],
        "fork": ["r", "r@1", folder, Fork(folder), Fork("r", 1)],  # type: ignore[arg-type]
        "allow_plugins": [True, 1],
        "watch": [watch, print],
        "stop": [lambda: True, lambda: None],
    }
    call = replaced(rng, base, others)
    for name in ("watch", "stop"):  # what a person's own function raises is theirs
        if callable(call.get(name)) and call[name] not in others[name]:
            call[name] = others[name][0]

    def give() -> None:
        write(folder, "[training]\nrounds = 1\n")
        with contextlib.redirect_stdout(io.StringIO()):
            fk.run(**call)

    return Input(described(**call), give)
