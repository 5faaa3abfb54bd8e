"""What the bits depend on beside the configuration is kept with a run, and another machine does not go unnoticed."""

import json
import os
import random
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkeel import api, config
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import CLASSES, FEATURES, tiny_federation, tiny_simulation
from fedkeel.engine import pool
from fedkeel.engine.executors import Serial
from fedkeel.engine.pool import Pool
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError, FedkeelError
from fedkeel.learning.task import Task
from fedkeel.notices import FedkeelWarning
from fedkeel.runs import machine
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from tests.runs.earlier import forget

ROOT = Path(__file__).parents[2]
SIZES = tuple(range(20, 32))


def experiment(rounds: int, executor: str = "stacked", **run: Any) -> config.Experiment:
    return config.Experiment(
        name="one",
        model=config.ModelConfig(name="mlp_2nn"),
        algorithm=config.AlgorithmConfig(name="scaffold"),
        training=Training(rounds=rounds, batch_size=8, epochs=1, participation=0.9),
        run=config.RunConfig(executor=executor, **run),
    )


def run(directory: Path, rounds: int, resume: bool = False, **settings: Any) -> bytes:
    """The bits of the model after some rounds."""
    done = api.run(experiment(rounds, **settings), directory, federation=tiny_federation(SIZES), resume=resume)
    return done.state.server.w.numpy().tobytes()


def events(directory: Path) -> list[str]:
    with closing(Store.reading(directory)) as store:
        return [event.text for event in store.events() if event.kind == "machine"]


def meta(directory: Path, key: str) -> str:
    with closing(Store.reading(directory)) as store:
        found = store.meta(key)
    assert found is not None
    return found


def put(directory: Path, key: str, value: str) -> None:
    with closing(Store.open(directory)) as store:
        store.put_meta(key, value)


@pytest.mark.parametrize("executor", ["serial", "stacked", "auto"])
def test_the_same_machine_is_not_worth_a_word(executor: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, 1, executor=executor, workers=1)
        run(tmp_path, 2, resume=True, executor=executor, workers=1)
    assert events(tmp_path) == []
    record = machine.recorded(meta(tmp_path, machine.KEY), tmp_path)
    assert record.torch == torch.__version__
    assert record.capability == torch.backends.cpu.get_cpu_capability()
    assert record.executor != "auto"


CHANGED = {
    "processor": "another",
    "capability": "AVX999",
    "architecture": "another",
    "torch": "1.0",
    "build": "another",
    "numpy": "1.0",
    "scipy": "1.0",
    "device": "another",
    "threads": 9,
    "dtype": "float64",
    "precision": "medium",
    "switches": "another",
    "variables": {"MKL_CBWR": "COMPATIBLE"},
}


def test_everything_that_can_change_a_bit_is_compared() -> None:
    assert CHANGED.keys() | {"executor", "lanes"} == machine.Machine.model_fields.keys()


@pytest.mark.parametrize("field", CHANGED)
def test_another_machine_is_noted_and_warned_of_once(field: str, tmp_path: Path) -> None:
    run(tmp_path, 1, executor="serial")
    put(tmp_path, machine.KEY, json.dumps(json.loads(meta(tmp_path, machine.KEY)) | {field: CHANGED[field]}))
    with pytest.warns(FedkeelWarning, match="rounds up to 1 were computed on another machine"):
        run(tmp_path, 2, resume=True, executor="serial")
    (said,) = events(tmp_path)
    assert "now" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, 3, resume=True, executor="serial")
    assert events(tmp_path) == [said]


def test_groups_are_those_of_the_start_however_many_cores_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun on three cores, resumed on one, on two and on eight: groups and bits of a run that stayed on three.

    Whether other groups give other bits depends on the processor: on some they do not with so small a model.
    """
    monkeypatch.setattr(pool, "cores", lambda: 3)
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "moved", 1)
    for rounds, cores in [(2, 1), (3, 8), (4, 2)]:
        monkeypatch.setattr(pool, "cores", lambda cores=cores: cores)
        moved = run(tmp_path / "moved", rounds, resume=True)
    assert moved == whole
    assert events(tmp_path / "moved") == []
    run(tmp_path / "elsewhere", 4)
    lanes = [json.loads(meta(tmp_path / name, machine.KEY))["lanes"] for name in ("whole", "moved", "elsewhere")]
    assert lanes == [3, 3, 2]


def test_workers_that_are_asked_for_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, free = Pool(2, stack=True), Pool(stack=True)
    for executor in (asked, free):
        executor.keep(5)
    assert (asked.lanes, free.lanes) == (2, 5)


def command(where: Path, *words: str, code: str = "pass", **environment: str) -> subprocess.CompletedProcess[str]:
    program = f"import os; {code}; from fedkeel.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, "run", "one.toml", *words],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "500"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


EXPERIMENT = """
name = "one"
data = { name = "mnist5k" }
partition = { rule = "dirichlet", clients = 12, alpha = 1.0 }
training = { rounds = 1, batch_size = 50, steps = 3, participation = 0.5 }
run = { executor = "stacked" }
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a list of cores")
def test_the_command_says_what_cannot_be_kept_and_keeps_the_rest(tmp_path: Path) -> None:
    """One core instead of all, and torch without vector instructions."""
    (tmp_path / "one.toml").write_text(EXPERIMENT, encoding="utf-8")
    first = command(tmp_path)
    assert first.returncode == 0, first.stderr
    record = json.loads(meta(tmp_path / "runs/one", machine.KEY))
    fewer = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    same = command(tmp_path, "--resume", "--set", "training.rounds=2", code=fewer)
    assert same.returncode == 0, same.stderr
    assert "warning" not in same.stderr
    assert json.loads(meta(tmp_path / "runs/one", machine.KEY)) == record
    other = command(tmp_path, "--resume", "--set", "training.rounds=3", ATEN_CPU_CAPABILITY="default")
    assert other.returncode == 0, other.stderr
    lines = [line for line in other.stderr.splitlines() if "warning" in line]
    assert len(lines) == 1
    assert lines[0].startswith("fedkeel: warning: the rounds up to 2 were computed on another machine")
    assert f"instructions {record['capability']}, now " in lines[0]
    assert len(events(tmp_path / "runs/one")) == 1


@pytest.mark.parametrize("key", ["executor", machine.KEY])
def test_damaged_records_are_one_sentence(key: str, tmp_path: Path) -> None:
    """Flipped, cut and nonsensical: it still means something that is allowed, or one sentence says what is wrong."""
    run(tmp_path, 1, executor="auto", workers=1)
    text = meta(tmp_path, key)
    read = machine.chosen if key == "executor" else machine.recorded
    rng = random.Random(0)
    damaged = ["", "null", "[]", "{}", "1e999", '"stacked"', text[:-1], text[1:], "[" * 5000, text.replace('"', "'")]
    for _ in range(300):
        where = rng.randrange(len(text))
        damaged.append(text[:where] + chr(ord(text[where]) ^ 1 << rng.randrange(7)) + text[where + 1 :])
    said = []
    for one in damaged:
        try:
            read(one, tmp_path)
        except DataError as error:
            said.append(str(error))
    assert len(said) >= 10
    assert all(f"record {key!r} of the run in {tmp_path} is damaged" in sentence for sentence in said)
    put(tmp_path, key, text.replace("executor", "executer"))
    with pytest.raises(FedkeelError, match="is damaged"):
        run(tmp_path, 2, resume=True, executor="auto", workers=1)


def test_a_run_without_a_record_gets_one(tmp_path: Path) -> None:
    """As an earlier version left it."""
    run(tmp_path, 1, executor="serial")
    forget(tmp_path, machine.KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, 2, resume=True, executor="serial")
    assert machine.recorded(meta(tmp_path, machine.KEY), tmp_path).executor == "serial"


class Asked(nn.Module):
    """Computes with one thread only."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert torch.get_num_threads() == 1, "not with the one thread of a worker"
        return self.last(x.flatten(1))


def test_what_a_pool_computes_itself_has_the_threads_of_its_workers() -> None:
    """A round of one client and its evaluation go without workers; their bits must be those of a worker."""
    simulation = Simulation(
        make_algorithm("fedavg"), Task(Asked()), tiny_federation((8, 8)), Training(rounds=2, participation=0.5)
    )
    simulation.executor = Pool(2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        execute(simulation, Evaluation())
        assert torch.get_num_threads() == 2
    finally:
        simulation.executor.close()
        torch.set_num_threads(before)


def test_serial_has_one_lane() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"))
    simulation.executor = executor = Serial()
    executor.keep(7)
    assert machine.here(executor, simulation.task.device).lanes == 1
