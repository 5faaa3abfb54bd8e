"""A run whose clients are sites: built from an experiment and what they say of themselves, conducted like any other."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedkeel import __version__, build, session
from fedkeel.algorithms.contract import Problem
from fedkeel.algorithms.registry import algorithm_class
from fedkeel.config import Experiment
from fedkeel.data.dataset import Array, Dataset, Federation, Split
from fedkeel.data.digest import digest, digests
from fedkeel.data.npz import read_npz
from fedkeel.data.own import as_split
from fedkeel.data.sources import SITES, brings_clients
from fedkeel.data.transform import Transform
from fedkeel.effects import check_batches, check_effects
from fedkeel.engine.client import Equipment
from fedkeel.engine.description import Description, ModelDescription
from fedkeel.engine.fitting import check_on
from fedkeel.engine.randomness import Purpose, torch_seed
from fedkeel.engine.rounds import DataRecord, RunState
from fedkeel.engine.samples import ClientData, prepared
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.server import Server
from fedkeel.engine.sites import SiteRounds, Sites
from fedkeel.errors import DataError, InputError, invalid
from fedkeel.learning.losses import as_loss
from fedkeel.learning.metrics import as_metrics
from fedkeel.network.greeting import Carrier, Letters, greet
from fedkeel.network.letters import Facts
from fedkeel.network.site_data import SiteData
from fedkeel.runs.history import History
from fedkeel.runs.store import Store, holds_run

KEY = "network"
"""Name of the record of a run's sites among its store's texts."""
EXAMPLES = 8


@dataclass(frozen=True)
class Terms:
    """How a run deals with its sites."""

    wait: float = 300.0
    """Seconds for which sites that have not joined are waited for before the first round."""
    quorum: float = 0.5
    """Share of the called clients without whose answers a round is not closed."""
    largest: int = 1 << 30
    """Bytes of the longest answer that is read."""


@dataclass(frozen=True)
class NetworkRun:
    """A run over sites that has ended."""

    label: str
    simulation: SiteRounds
    state: RunState
    history: History
    directory: Path
    ended: session.Why


@dataclass(frozen=True)
class _Known:
    """What an earlier start of a run has kept of its sites."""

    run: str
    facts: dict[int, Facts]


def run(
    experiment: Experiment,
    directory: Path,
    carrier: Carrier,
    clients: int,
    terms: Terms,
    listeners: session.Listeners,
    resume: bool = False,
    data_dir: Path | None = None,
    allow_plugins: bool = False,
    built: Callable[[SiteRounds], None] | None = None,
    words: str = "sites",
    module: nn.Module | None = None,
) -> NetworkRun:
    """Run an experiment over so many sites; everything but who answers is as in ``fedkeel.run``.

    A ``module`` takes the place of the experiment's model; every site then brings the same one, with the same weights.
    """
    check_experiment(experiment, allow_plugins)
    with session.surroundings(experiment.run, directory):
        known = _known(directory) if resume and holds_run(directory) else None
        facts = _facts(carrier, clients, terms, listeners.stop, known)
        name = known.run if known else None
        rounds = make_rounds(experiment, facts, carrier, terms, name, data_dir, words, allow_plugins, module)
        if built is not None:
            built(rounds)
        end = session.conduct(experiment, rounds, directory, listeners, resume)
    return NetworkRun(experiment.label, rounds, end.state, end.history, directory, end.why)


def check_experiment(experiment: Experiment, allow_plugins: bool = False) -> None:
    """Refuse settings that have no effect over sites, or cannot have any."""
    faults, run = experiment.faults, experiment.run
    for name in ("dropout", "lost", "late", "duplicates", "stragglers"):
        if getattr(faults, name):
            hint = "It plans trouble for a simulation; a real network has its own."
            raise invalid(f"faults.{name}", "0 over sites", getattr(faults, name), hint)
    if experiment.clock.is_on:
        raise InputError("clock must be absent over sites: it is a virtual one, and real sites take their own time.")
    if experiment.measure.every:
        hint = "What it measures needs the gradients of all clients."
        raise invalid("measure.every", "0 over sites", experiment.measure.every, hint)
    if run.executor not in ("auto", "serial") or run.workers is not None:
        raise InputError("run.executor and run.workers must be absent over sites: each site computes its own client.")
    if run.device != "cpu":
        raise invalid("run.device", "absent over sites, which choose for themselves", run.device)
    algorithm = algorithm_class(experiment.algorithm.name, allow_plugins)
    check_effects(algorithm, experiment.training, faults, "serial", None)
    if "one_client" in algorithm.needs:
        raise InputError(f"{algorithm.title} pools all samples in one place, which sites do not allow.")


def make_rounds(
    experiment: Experiment,
    facts: dict[int, Facts],
    carrier: Carrier,
    terms: Terms,
    name: str | None = None,
    data_dir: Path | None = None,
    words: str = "sites",
    allow_plugins: bool = False,
    module: nn.Module | None = None,
) -> SiteRounds:
    """Everything that an experiment names, put together for sites, which remember the run under ``name``."""
    held = _held(experiment, facts, data_dir)
    dtype, seed, training = build.DTYPES[experiment.training.dtype], experiment.seed, experiment.training
    model = experiment.model
    weights = seed if model.seed is None else model.seed
    task = build.make_task(module or model.name, held.dataset, weights, dtype, as_loss(model.loss))
    task.metrics = as_metrics(experiment.evaluation.metrics)
    if module is not None:
        task.notices.append(f"the model is a {type(module).__name__} of the operator's own; model.name has no effect")
    algorithm = algorithm_class(experiment.algorithm.name, allow_plugins)(**experiment.algorithm_params())
    schedule = RandomSchedule(training, seed)
    sizes = torch.tensor([one.samples for one in facts.values()])
    check_batches(training, int(sizes.max()))
    average = -(-int(sizes.sum()) // len(sizes))
    problem = Problem(task.w0, task.layout, sizes, training.local_steps(average), task.b0)
    layout, robust, averaging = task.buffer_layout, experiment.robust, experiment.evaluation.averaging
    server = Server(algorithm, problem, training, schedule, seed, experiment.faults, layout, robust, averaging)
    equipment = Equipment(algorithm, task, training, schedule, seed, experiment.faults.max_update_norm)
    transform = held.dataset.transform
    check_on(task, *prepared(*held.example, transform, dtype, False), held.dataset.name, held.dataset.classes)
    example = ClientData(*prepared(*held.example, transform, dtype, task.channels_last), transform, dtype)
    test, validation = (
        None if split is None else prepared(split.x, split.y, transform, dtype, task.channels_last)
        for split in (held.test, held.validation)
    )
    task.notices += _versions(facts)
    name = name or f"{experiment.label}-{secrets.token_hex(8)}"
    shape, outputs = held.dataset.input_shape, held.dataset.outputs
    described = ModelDescription(name=model.name, seed=weights, input_shape=shape, classes=outputs)
    description = Description.of(name, equipment, None if module is not None else described).write()
    expected = {client: one.data for client, one in facts.items()}
    letters = Letters(carrier, description, expected, terms.largest)
    has_tests = all(one.has_test for one in facts.values())
    common = experiment.data.name != SITES
    sites = Sites(equipment, letters, example, test, validation, has_tests, terms.largest, terms.quorum, common)
    kept = json.dumps({"run": name, "sites": [one.model_dump(mode="json") for one in facts.values()]})
    return SiteRounds(server, sites, held.record, words, {KEY: kept})


def _versions(facts: dict[int, Facts]) -> list[str]:
    """What to tell about sites that compute with other software than the server: their bits may differ."""
    mine = {"fedkeel": __version__, "torch": torch.__version__}
    return [
        f"client {client} has {name} {getattr(one, name)}, the server {here}: bits may differ from a simulation's"
        for client, one in facts.items()
        for name, here in mine.items()
        if getattr(one, name) != here
    ]


@dataclass(frozen=True)
class _Held:
    """What the server itself holds, and what is on record of the data of all."""

    dataset: Dataset
    example: tuple[Array, Array]
    test: Split | None
    validation: Split | None
    record: DataRecord


def _held(experiment: Experiment, facts: dict[int, Facts], data_dir: Path | None) -> _Held:
    if experiment.data.name == SITES:
        return _held_by_sites(experiment, facts)
    federation = build.make_federation(experiment, data_dir)
    _check_shares(federation, facts)
    dataset = federation.dataset
    train, rows = dataset.train, federation.validation
    validation = None if rows is None else Split(train.x[rows], train.y[rows])
    record = DataRecord(dataset.name, federation.N, digests(federation))
    example = dataset.test.x[:EXAMPLES], dataset.test.y[:EXAMPLES]
    return _Held(dataset, example, dataset.test, validation, record)


def _check_shares(federation: Federation, facts: dict[int, Facts]) -> None:
    """Refuse sites that hold anything but their share of the data that the experiment names."""
    name = federation.dataset.name
    if len(facts) != federation.N and brings_clients(name):
        raise InputError(f"{name} comes with {federation.N} clients, but the network has {len(facts)} sites.")
    if len(facts) != federation.N:
        raise InputError(
            f"partition.clients must be the number of sites, {len(facts)}, got {federation.N}; where sites hold data "
            "of their own, data.name is 'sites'."
        )
    for client, one in facts.items():
        if SiteData.of(federation, client).digest != one.data:
            raise DataError(
                f"client {client} does not hold its share of {name} as the experiment deals it ({one.samples} samples "
                f"there); start its site with --data and this very experiment, or say data.name = 'sites'."
            )


def _held_by_sites(experiment: Experiment, facts: dict[int, Facts]) -> _Held:
    """Sites have data of their own; the server may have a test set, and knows of the rest what it was told."""
    first = facts[0]
    for client, one in facts.items():
        for field in ("input_shape", "inputs", "target_shape", "targets"):
            if getattr(one, field) != getattr(first, field):
                here, there = getattr(one, field), getattr(first, field)
                raise DataError(
                    f"the {field.replace('_', ' ')} of client {client} is {here}, that of client 0 {there}; all sites "
                    "need data of one kind."
                )
    path = (experiment.data.model_extra or {}).get("test")
    targets = "real" if first.targets == "float32" else "labels"
    test = None
    if path is not None:
        x, y = read_npz(Path(str(path)), ("x", "y"))
        test = as_split(x, y, "data.test", targets)
        _check_like(test, first)
    classes = max(one.classes for one in facts.values())
    if test is not None and classes:
        classes = max(classes, int(test.y.max()) + 1)
    example = (test.x[:EXAMPLES], test.y[:EXAMPLES]) if test is not None else _made_up(first, classes, experiment.seed)
    transform = Transform(255.0 if first.inputs == "uint8" else 1.0)
    split = Split(*example)
    names = tuple(map(str, range(classes)))
    dataset = Dataset(SITES, split, test or split, classes, names, transform, "", "")
    kept = {f"client {client}": one.data for client, one in facts.items()}
    if test is not None:
        kept["test samples"], kept["test labels"] = digest(test.x), digest(test.y)
    return _Held(dataset, example, test, None, DataRecord(SITES, len(facts), kept))


def _check_like(test: Split, facts: Facts) -> None:
    """Refuse a test set that is not of the kind that sites hold: it would be prepared as theirs are."""
    kinds = {
        "x": (test.x, facts.inputs, facts.input_shape),
        "y": (test.y, facts.targets, facts.target_shape),
    }
    for part, (found, dtype, shape) in kinds.items():
        if (str(found.dtype), found.shape[1:]) != (dtype, shape):
            allowed = f"{dtype} {list(shape)} a sample, as at the sites"
            raise invalid(f"data.test.{part}", allowed, f"{found.dtype} {list(found.shape[1:])}")


def _made_up(facts: Facts, classes: int, seed: int) -> tuple[Array, Array]:
    """Samples of the kind that sites have, to try the model on: no number of a result depends on them."""
    rng = np.random.default_rng(torch_seed(seed, Purpose.WEIGHTS) % 2**32)
    shape, targets = (EXAMPLES, *facts.input_shape), (EXAMPLES, *facts.target_shape)
    x: Array
    if facts.inputs == "uint8":
        x = rng.integers(0, 256, shape, dtype=np.uint8)
    elif facts.inputs == "int64":
        x = np.zeros(shape, dtype=np.int64)
    else:
        x = rng.standard_normal(shape, dtype=np.float32)
    if facts.targets == "float32":
        return x, rng.random(targets, dtype=np.float32)
    return x, np.resize(np.arange(classes, dtype=np.int64), targets)


def _known(directory: Path) -> _Known | None:
    """What the run in a directory has on record of its sites; nothing if it was not one over sites."""
    with closing(Store.reading(directory)) as store:
        text = store.meta(KEY)
    if text is None:
        return None
    try:
        table = json.loads(text)
        facts = [Facts.model_validate_json(json.dumps(one)) for one in table["sites"]]
        return _Known(str(table["run"]), {one.client: one for one in facts})
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"the record of its sites in the run in {directory} is damaged; restore the run from a copy."
        ) from None


def _facts(
    carrier: Carrier, clients: int, terms: Terms, stop: Callable[[], bool] | None, known: _Known | None
) -> dict[int, Facts]:
    """What all sites say of themselves. A run that goes on knows those that are away, and waits for nobody long."""
    patience = min(terms.wait, 10.0) if known is not None else terms.wait
    found = greet(carrier, range(clients), patience, stop)
    away = [client for client in range(clients) if client not in found]
    if known is not None:
        for client, one in found.items():
            before = known.facts.get(client)
            if before is None or before.data != one.data:
                raise DataError(
                    f"client {client} holds other data than when the run began; put the old data back, or start a new "
                    "run with --out."
                )
        return {client: found.get(client, one) for client, one in sorted(known.facts.items())}
    if away:
        raise DataError(
            f"client {', '.join(map(str, away))} did not answer within {terms.wait:.0f} s; a run begins when every "
            "site has said what it holds: start the missing ones, or wait longer with --wait."
        )
    return found
