"""The Python interface as the README shows it, and own data and models in place of the built-in ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel import config
from fedkeel.algorithms.row_memory import current_memory
from fedkeel.errors import InputError


def test_ten_lines_of_python() -> None:
    fed = fk.data.load("mnist5k").partition("dirichlet", clients=20, alpha=0.3, seed=0)
    run = fk.train("feddc", model="2nn", data=fed, rounds=3, participation=0.2, epochs=2, lr=0.1)
    assert run.accuracy > 0.5
    assert run.rounds_to(0.99) is None
    assert len(run.history.rounds) == 3


def test_own_arrays_and_own_model(tmp_path: object) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    fed = fk.data.from_arrays(x, y, x, y).partition("shards", clients=5, seed=1)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = fk.train("scaffold", model=module, data=fed, rounds=10, epochs=5, batch_size=10, lr=0.2)
    assert run.accuracy > 0.9
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    module.load_state_dict(run.state_dict())


def test_the_same_call_gives_the_same_bits() -> None:
    fed = fk.data.load("mnist5k").partition("iid", clients=20, seed=0)
    ends = [fk.train("fedavg", data=fed, rounds=1, participation=0.1, seed=s).state.server.w for s in (0, 0, 1)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_faults_by_field_or_as_an_object() -> None:
    fed = fk.data.load("mnist5k").partition("iid", clients=20, seed=0)
    by_field, by_object, none = (
        fk.train("fedavg", data=fed, rounds=1, participation=0.5, faults=faults).state.server.w
        for faults in ({"dropout": 0.5}, fk.Faults(dropout=0.5), None)
    )
    assert torch.equal(by_field, by_object)
    assert not torch.equal(by_field, none)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"faults": {"lost": 2}}, "faults.lost must be a number below 1, got 2"),
        ({"faults": {"stragglers": 0.5}, "algorithm": "vrlsgd"}, "faults.stragglers must be 0 with vrlsgd"),
        ({"algorithm": "fedavgg"}, "no algorithm named 'fedavgg'. Did you mean 'fedavg'"),
        ({"rounds": 0}, "training.rounds must be a number of at least 1, got 0"),
        ({"round": 3}, "no field in training named 'round'. Did you mean 'rounds'"),
        ({"params": {"alpha": 1}}, "no field in fedavg named 'alpha'"),
        ({"model": "2nm"}, "no model named '2nm'. Did you mean '2nn'"),
        ({"executor": "gpu"}, "no executor named 'gpu'"),
        ({"data": [1, 2]}, "data must be a Federation, got 'list'"),
    ],
)
def test_mistakes(call: dict[str, object], sentence: str) -> None:
    fed = fk.data.load("mnist5k").partition("iid", clients=10)
    arguments = {"algorithm": "fedavg", "data": fed, "rounds": 1} | call
    with pytest.raises(InputError, match=sentence):
        fk.train(**arguments)  # type: ignore[arg-type]


def test_a_runs_budget_folder_and_threads_end_with_it(tmp_path: Path) -> None:
    """Neither a later training in memory nor what the caller does next has anything of it."""
    table = {
        "algorithm": {"name": "scaffold"},
        "partition": {"clients": 4},
        "model": {"name": "logistic"},
        "training": {"rounds": 1, "steps": 1},
        "run": {"memory_mb": 0, "threads": 1},
    }
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        run = fk.run(config.expand(table, [])[0], tmp_path / "r", watch=lambda _: seen.append(current_memory()))
        assert torch.get_num_threads() == 2
        assert (seen[0].budget, seen[0].directory, seen[0].on_disk > 0) == (0, tmp_path / "r", True)
        assert current_memory() is not seen[0]
        fk.train("scaffold", model="logistic", data=run.simulation.federation, rounds=1, steps=1, threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("field", ["threads", "workers"])
@pytest.mark.parametrize("count", [-3, 0, 1025, 100_000])
def test_absurd_numbers_of_threads_and_workers_are_refused(field: str, count: int) -> None:
    """A hundred thousand threads end in a segmentation fault, minus three workers never end."""
    with pytest.raises(InputError, match=rf"run\.{field} must be .*, got {count}"):
        config.expand({"run": {field: count}}, [])
    fed = fk.data.load("mnist5k").partition("iid", clients=4, seed=0)
    with pytest.raises(InputError, match=rf"{field} must be .*, got {count}"):
        fk.train("fedavg", data=fed, model="logistic", rounds=1, steps=1, **{field: count})  # type: ignore[arg-type]
