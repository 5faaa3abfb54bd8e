"""Names and words of experiments, values as TOML, and the promise that what is read can be written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkeel import changes, config

NAMES = [
    f"{section}.{field}" if section else field
    for section, schema in (
        ("", config.Experiment),
        ("data", config.DataConfig),
        ("partition", config.PartitionConfig),
        ("model", config.ModelConfig),
        ("algorithm", config.AlgorithmConfig),
        ("training", config.Training),
        ("evaluation", config.Evaluation),
        ("run", config.RunConfig),
    )
    for field in schema.model_fields
] + [
    "algorithm.alpha",
    "partition.alpha",
    "sweep.seed",
    "sweep.algorithm",
    "algorithms.feddc.alpha",
    "data.own",
    "sweep",
]
WORDS = [
    "feddc",
    "mnist5k",
    "2nn",
    "dirichlet",
    "os:system",
    "a/b",
    "pool",
    "float64",
    "1979-05-27",
    "07:32:00",
    "nan",
]


def as_toml(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(str(key))} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value) + '"'
    return repr(value)


def comes_back(folder: Path, experiment: config.Experiment) -> None:
    """Whatever is accepted must survive being written into a run's directory."""
    text = config.dump(experiment)
    (folder / "written.toml").write_text(text, encoding="utf-8")
    (again,) = config.read(folder / "written.toml")
    assert config.dump(again) == text
    changes.allowed(changes.stored(text, folder), experiment, 0, folder)
