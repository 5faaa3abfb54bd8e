"""An experiment as data: its schema, reading it from TOML, changing fields, and the runs that a sweep stands for."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from fedkeel import sweeps
from fedkeel.algorithms.registry import algorithm_class
from fedkeel.algorithms.validate import Settings, checked, sentence
from fedkeel.data.partitions import RULES
from fedkeel.data.sources import GIVEN, brings_clients
from fedkeel.effects import check_average, check_data, check_effects
from fedkeel.engine.choice import MOST_WORKERS, NAMES
from fedkeel.engine.clock import Clock, check_clock
from fedkeel.engine.faults import check_needs
from fedkeel.engine.robust import check_robust
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.engine.threads import MOST_THREADS
from fedkeel.errors import DataError, InputError, named, shown, unknown
from fedkeel.learning import models
from fedkeel.learning.losses import LossName
from fedkeel.learning.metrics import as_metrics
from fedkeel.measure.settings import Measuring
from fedkeel.runs.runner import Evaluation

DEEPEST = 20
"""Levels of tables in tables; an experiment has three."""
LARGEST_FILE = 1 << 20
"""Bytes of an experiment file."""
SEEDS = 2**63
"""Seeds are below this: the generators take no more without cutting something off."""


class DataConfig(Settings):
    """Which data; further fields go to the data set's own loader (``alpha`` of a synthetic set, …)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field(
        "mnist5k",
        description="a data set of `fedkeel data`, or the path of a folder (./sites) of one .npz per client; sites: "
        "each site of a network holds its own",
    )
    normalise: str = Field(
        "standard", description="how pixels are scaled: standard (the papers' constants), unit (/ 255), or another name"
    )
    augment: str | None = Field(None, description="random crops and flips, by name; absent: none")
    subset_ok: bool = Field(False, description="accept a data set of which only a part is there")
    targets: Literal["labels", "real"] | None = Field(
        None,
        description="what y holds in a folder of .npz files: labels, or real numbers (regression, several yes or no a "
        "sample), which need a model.loss; absent: labels",
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="keep only so many training samples, a random choice that is the same for every seed (for "
        "synthetic_feddyn: each client has so many); absent: all",
    )
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of the training samples kept by the server, for feedback"
    )
    evaluate_on: Literal["test", "validation"] = Field(
        "test",
        description="validation: what validation holds out takes the place of the test set, of which then nothing is "
        "seen, and is no feedback; for choosing settings",
    )
    client_test: float = Field(
        0.0, ge=0, lt=1, description="share of its samples that every client holds out to test on (evaluation.clients)"
    )


class PartitionConfig(Settings):
    """How samples are dealt to clients; further fields are the rule's own (``alpha``, ``sigma``, …)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    rule: str = Field("dirichlet", description="how samples are dealt; `fedkeel partition --rules` lists them")
    clients: int = Field(100, ge=1, description="number of clients")
    seed: int | None = Field(
        None, ge=0, lt=SEEDS, strict=True, description="seed of the partition; absent: the experiment's seed"
    )


class ModelConfig(Settings):
    name: str = Field("2nn", description="a model of `fedkeel models`")
    seed: int | None = Field(
        None, ge=0, lt=SEEDS, strict=True, description="seed of the initial weights; absent: the experiment's seed"
    )
    loss: LossName | None = Field(
        None, description="what is minimised; absent: the model's own, which is cross-entropy but for the svm"
    )


class AlgorithmConfig(Settings):
    """Which algorithm; further fields are its own parameters."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field("fedavg", description="a name of `fedkeel algorithms`, or your own as module:Class")


class RunConfig(Settings):
    executor: str = Field(
        "auto",
        description="how clients are computed: serial, pool (worker processes), stacked (groups of clients as one "
        "computation, in worker processes), ray (actors of a Ray cluster), or auto (whichever of the first three a "
        "short trial finds fastest)",
    )
    workers: int | None = Field(
        None, ge=1, le=MOST_WORKERS, description="worker processes, or actors of the cluster; absent: one per core"
    )
    address: str | None = Field(
        None,
        min_length=1,
        description="of the Ray cluster to join, as host:port, or auto for the one on this machine; absent: ray starts "
        "one of its own here",
    )
    threads: int = Field(1, ge=1, le=MOST_THREADS, description="threads of torch in this process")
    device: str = Field("cpu", description="where clients compute: cpu, cuda, cuda:1, …, or mps")
    memory_mb: int | None = Field(
        None, ge=0, description="MB of clients' vectors kept in memory, further ones on disk; absent: a quarter of it"
    )
    checkpoint_every: int = Field(
        0, ge=0, description="keep the state of every so many rounds, to start new runs from; 0: only the last"
    )


class Experiment(Settings):
    """One run, wholly specified."""

    name: str | None = Field(None, description="name of the run and of its folder")
    seed: int = Field(0, ge=0, lt=SEEDS, strict=True, description="decides every random draw of the run")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    training: Training = Training()
    faults: Faults = Faults()
    robust: Robust = Robust()
    clock: Clock = Clock()
    evaluation: Evaluation = Evaluation()
    measure: Measuring = Measuring()
    run: RunConfig = RunConfig()

    @field_validator("name")
    @classmethod
    def _stays_in_its_folder(cls, name: str | None) -> str | None:
        if name is not None and (
            not name.isprintable() or "/" in name or name.startswith(".") or not 0 < len(name) < 200
        ):
            raise ValueError("must be a name for a folder: printable, without '/' and not beginning with '.'")
        return name

    def of_given_data(self) -> Experiment:
        """The same of data that were given as an object: it claims nothing of them, nor of how they were dealt."""
        return self.model_copy(update={"data": DataConfig(name=GIVEN), "partition": PartitionConfig()})

    def algorithm_params(self) -> dict[str, Any]:
        """The parameters given for the algorithm."""
        return dict(self.algorithm.model_extra or {})

    @property
    def label(self) -> str:
        """A short name for tables and folders."""
        return (
            self.name or f"{self.algorithm.name.replace(':', '.')}-{self.data.name.replace('/', '_')}-seed{self.seed}"
        )


@dataclass(frozen=True)
class Planned:
    """One run of an experiment file."""

    experiment: Experiment
    swept: dict[str, Any]
    """The fields that the file's ``[sweep]`` goes over, with their values in this run."""
    earlier: str = ""
    """How the names of its run began in earlier versions, which numbered them."""


def read(path: Path, settings: list[str] | None = None, allow_plugins: bool = False) -> list[Experiment]:
    """All runs of an experiment file, with ``a.b=c`` settings applied before validation (``a.b=`` removes a key).

    Reading executes nothing, unless ``allow_plugins`` lets an algorithm named ``module:Class`` be imported.
    """
    return [run.experiment for run in plan(path, settings, allow_plugins)]


def plan(path: Path, settings: list[str] | None = None, allow_plugins: bool = False) -> list[Planned]:
    """The runs of an experiment file as ``read`` gives them, with what the sweep makes of each."""
    return plan_text(_text_of(path), path.name, settings, allow_plugins)


def plan_text(
    text: str, name: str = "experiment.toml", settings: list[str] | None = None, allow_plugins: bool = False
) -> list[Planned]:
    """The runs of an experiment given as the text of a file, which complaints call by ``name``."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, tables in tables in tables …
        raise InputError(f"{name} is not valid TOML: {error}.") from None
    return planned(table, settings or [], _Source(name, text), allow_plugins)


def _text_of(path: Path) -> str:
    try:
        if not path.exists():
            raise DataError(f"there is no experiment file {path}; check the path.")
        if not path.is_file():  # reading a pipe or a device would wait, or never end
            raise DataError(f"the experiment {path} must be a file, which it is not; check the path.")
        if path.stat().st_size > LARGEST_FILE:
            raise DataError(f"the experiment file {path} must have at most {LARGEST_FILE:,} bytes; check the path.")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"the experiment file {path} cannot be read: {error}.") from None


def expand(
    table: dict[str, Any], settings: list[str], source: _Source | None = None, allow_plugins: bool = False
) -> list[Experiment]:
    """The validated runs of a table: one, or one for every combination of its ``[sweep]`` lists."""
    return [run.experiment for run in planned(table, settings, source, allow_plugins)]


def planned(
    table: dict[str, Any], settings: list[str], source: _Source | None = None, allow_plugins: bool = False
) -> list[Planned]:
    """The runs of a table as ``expand`` gives them, with what the sweep makes of each."""
    _check_depth(table)
    table = _copied(table)
    table["sweep"] = sweeps.flat(table.get("sweep", {}))
    named = _algorithms_named(table)
    origin = _Origin(source, settings)
    for setting in settings:
        _apply(table, setting)
    _check_depth(table)
    table = _copied(table)
    sweep = sweeps.choices(table.pop("sweep", {}))
    per_algorithm = table.pop("algorithms", {})
    if not isinstance(per_algorithm, dict):
        raise InputError("algorithms must be a table: write [algorithms.feddc].")
    _check_settings(settings, sweep)
    if isinstance(table.get("algorithm"), str):
        table["algorithm"] = {"name": table["algorithm"]}
    experiments, swept = [], []
    for combination in itertools.product(*sweep.values()):
        one = _copied(table)
        swept.append(dict(zip(sweep, combination, strict=True)))
        for name, value in swept[-1].items():
            _put(one, name, value)
        chosen = one.setdefault("algorithm", {})
        if isinstance(chosen, dict):
            one["algorithm"] = _own_table(per_algorithm, chosen) | chosen
        experiments.append(_validated(one, origin, allow_plugins))
    _check_tables(per_algorithm, named | {experiment.algorithm.name for experiment in experiments}, origin)
    bases = [experiment.label for experiment in experiments]
    return [
        Planned(e if label == base else e.model_copy(update={"name": label}), values, "" if label == base else base)
        for e, base, label, values in zip(experiments, bases, sweeps.labels(bases, swept), swept, strict=True)
    ]


def _copied(table: dict[str, Any]) -> dict[str, Any]:
    """A private copy; TOML's dates become text and fail by type."""
    copy: dict[str, Any] = json.loads(json.dumps(table, default=str))
    return copy


def _check_depth(table: dict[str, Any]) -> None:
    """Tables in tables in tables would end in a recursion too deep for Python."""
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise InputError(f"an experiment must have at most {DEEPEST} tables or lists inside each other; it has more.")


def _algorithms_named(table: dict[str, Any]) -> set[str]:
    """The algorithms that a file itself names, whatever --set makes of it."""
    sweep, chosen = table.get("sweep"), table.get("algorithm")
    names = [chosen.get("name") if isinstance(chosen, dict) else chosen]
    if isinstance(sweep, dict):
        names += sweep["algorithm.name"] if isinstance(sweep.get("algorithm.name"), list) else []
    return {name for name in names if isinstance(name, str)}


def _own_table(per_algorithm: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """What ``[algorithms.NAME]`` says of the algorithm of a run."""
    name = chosen.get("name", "fedavg")
    found = per_algorithm.get(name, {}) if isinstance(name, str) else {}
    if not isinstance(found, dict):
        raise InputError(f"algorithms.{named(name)} must be a table of its parameters, got {shown(found)}.")
    for key in sorted(found.keys() & chosen.keys()):
        raise InputError(
            f"{key} of {name} is given twice, as algorithm.{key} and as algorithms.{name}.{key}; keep one of them."
        )
    return found


def _check_tables(per_algorithm: dict[str, Any], used: set[str], origin: _Origin) -> None:
    """Refuse parameters of an algorithm that is in none of the runs: they would be ignored."""
    for name in per_algorithm:
        if name not in used:
            near = get_close_matches(name, used, n=1)
            hint = f"Did you mean [algorithms.{near[0]}]?" if near else "Remove the table, or add it to the sweep."
            message = f"[algorithms.{named(name)}] has no effect, because no run uses {named(name)}. {hint}"
            raise origin.located(message, ["algorithms", name])


def _check_settings(settings: list[str], sweep: dict[str, Any]) -> None:
    """A field that is both set and swept would be swept in silence; so would a field of a table that is set whole."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        for swept in sweep:
            if f"{swept}.".startswith(f"{name}.") or f"{name}.".startswith(f"{swept}."):
                raise InputError(
                    f"{named(name)} is set although the file sweeps over it; set sweep.{swept} to a list instead, or "
                    f"take it out with sweep.{swept}=."
                )


def dump(experiment: Experiment) -> str:
    """The experiment as TOML that ``read`` gives back; it claims no partition where clients come with the data."""
    table = experiment.model_dump(exclude_none=True)
    if brings_clients(experiment.data.name):
        del table["partition"]
    return as_toml(table)


def as_toml(table: dict[str, Any]) -> str:
    """Values, then tables of values, as TOML."""
    lines = [f"{key} = {toml(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{key}]"]
            lines += [f"{_key(name)} = {toml(value)}" for name, value in section.items() if value is not None]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)
    # JSON's whole numbers, booleans and strings are TOML's too, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


class _Source:
    """The text of a file, to say in which line a bad field stands."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._lines = text.splitlines()

    def line_of(self, path: list[str]) -> int | None:
        section: list[str] = []
        for number, line in enumerate(self._lines, start=1):
            if match := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
                section = match[1].replace('"', "").split(".")
                if section == path:
                    return number
            elif (match := re.match(r"\s*([\w\-\".]+)\s*=", line)) and [
                *section,
                *match[1].replace('"', "").split("."),
            ] == path:
                return number
        return None


class _Origin:
    """Where values come from, to say so beside a complaint: a line of the file, or a setting of the command."""

    def __init__(self, source: _Source | None, settings: list[str]) -> None:
        self.source = source
        self._settings = {setting.partition("=")[0].strip(): setting for setting in settings}

    def located(self, message: str, path: list[str]) -> InputError:
        """The complaint about the field at a path, with its origin after the first sentence where that is known."""
        where = self._where(path)
        if not where:
            return InputError(message)
        head, dot, tail = message.partition(". ")
        return InputError(f"{head.removesuffix('.')} ({where}).{' ' + tail if dot else ''}")

    def _where(self, path: list[str]) -> str:
        for depth in range(len(path), 0, -1):
            name = ".".join(path[:depth])
            for spelling in (name, name.removesuffix(".name") if name == "algorithm.name" else name):
                if spelling in self._settings:
                    return f"--set {named(self._settings[spelling])}"
        line = self.source.line_of(path) if self.source else None
        return f"{self.source.name}, line {line}" if self.source and line else ""


def _validated(table: dict[str, Any], origin: _Origin, allow_plugins: bool) -> Experiment:
    try:
        experiment = Experiment(**table)
        algorithm = algorithm_class(experiment.algorithm.name, allow_plugins)
        checked(experiment.algorithm.name, algorithm.Params, experiment.algorithm_params())
        check_needs(algorithm, experiment.faults)
        check_robust(algorithm, experiment.robust, experiment.faults)
        check_clock(algorithm, experiment.clock, experiment.faults, experiment.training)
        _check_names(experiment)
        check_data(experiment)
        check_average(experiment.evaluation, experiment.training)
        run = experiment.run
        check_effects(algorithm, experiment.training, experiment.faults, run.executor, run.workers, run.address)
    except ValidationError as error:
        path = [str(part) for part in error.errors()[0]["loc"]]
        complaint = sentence("experiment", Experiment, error)
        raise origin.located(str(complaint).replace("experiment.", "", 1), path) from None
    except InputError as error:
        raise origin.located(str(error), _path_in(str(error))) from None
    except TypeError:
        raise InputError(
            f"an experiment has named tables such as [training], got the keys {shown(list(table))}."
        ) from None
    return experiment


def _check_names(experiment: Experiment) -> None:
    """Everything that can be refused without touching data."""
    if experiment.run.executor not in NAMES:
        raise unknown("executor", experiment.run.executor, list(NAMES))
    models.spec(experiment.model.name)
    if experiment.partition.rule not in RULES:
        raise unknown("partition rule", experiment.partition.rule, list(RULES))
    RULES[experiment.partition.rule].fill(dict(experiment.partition.model_extra or {}))
    as_metrics(experiment.evaluation.metrics)


def _path_in(message: str) -> list[str]:
    """Where the field that a message complains of stands: ``partition.alpha must …``, ``there is no model named …``."""
    if match := re.match(r"(\S+)\.(\w+) (must|is no field)", message):
        return [match[1] if match[1] in Experiment.model_fields else "algorithm", match[2]]
    if match := re.match(r"(\w+) must", message):
        return [match[1]]
    kinds = {"data set": ["data", "name"], "model": ["model", "name"], "partition rule": ["partition", "rule"]}
    kinds |= {"executor": ["run", "executor"], "metric": ["evaluation", "metrics"]}
    found = re.match(r"there is no (.+?) named '([^']*)'", message)
    if found and found[1].startswith(("field in", "parameter of")):
        owner = "partition" if found[1].startswith("parameter of partition") else "algorithm"
        return ["data" if found[1].startswith("parameter of data set") else owner, found[2]]
    return kinds.get(found[1] if found else "", ["algorithm", "name"])


def _apply(table: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--set takes name=value such as training.lr=0.05, got {shown(setting)}.")
    name = name.strip()
    if name == "sweep" or name.startswith("sweep."):
        _apply_to_sweep(table, name, text)
    elif text.strip():
        _put(table, name, _value(text))
    else:
        _remove(table, name)


def _apply_to_sweep(table: dict[str, Any], name: str, text: str) -> None:
    """A sweep is a table of whole dotted names."""
    field = sweeps.field_of(name.removeprefix("sweep").removeprefix("."))
    if not field:
        table["sweep"] = sweeps.flat(_value(text)) if text.strip() else {}
    elif text.strip():
        table["sweep"] |= sweeps.flat({field: _value(text)})
    elif field in table["sweep"]:
        del table["sweep"][field]
    else:
        raise _not_there(name, [f"sweep.{swept}" for swept in table["sweep"]])


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()  # bare words are text, so that algorithm.name=feddc needs no quotes


def _remove(table: dict[str, Any], name: str) -> None:
    """Take a key out of an experiment, which then has its default."""
    *path, last = name.split(".")
    inner: Any = table
    for part in path:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or last not in inner:
        raise _not_there(name, list(_names_in(table)))
    del inner[last]


def _names_in(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _names_in(value, f"{prefix}{key}.")


def _not_there(name: str, there: list[str]) -> InputError:
    near = get_close_matches(name, there, n=1)
    hint = f"Did you mean {named(near[0])}=?" if near else "Leave the setting out."
    return InputError(f"--set {named(name)}= removes a key that the experiment does not have. {hint}")


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        if isinstance(table.get(part), str) and part == "algorithm":
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{named(name)} cannot be set: {named(part)} is a value, not a table.")
    table[last] = value
