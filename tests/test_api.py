"""The Python interface as the README shows it, and own data and models in place of the built-in ones."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel import config
from fedkeel.errors import InputError
from fedkeel.learning import models
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.store import Store
from fedkeel.runs.verify import verify
from fedkeel.state.row_memory import current_memory


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
        ({"rounds": 0}, "^rounds must be a number of at least 1, got 0"),
        ({"round": 3}, "no argument of train named 'round'. Did you mean 'rounds'"),
        ({"params": {"alpha": 1}}, "no field in fedavg named 'alpha'"),
        ({"model": "2nm"}, "no model named '2nm'. Did you mean '2nn'"),
        ({"executor": "gpu"}, "no executor named 'gpu'"),
        ({"data": [1, 2]}, "data must be a Federation, got 'list'"),
        ({"data": None}, "data must be a Federation, got None"),
        ({"data": fk.data.Federation}, "data must be a Federation, got 'the class Federation'"),
        ({"rounds": True}, "^rounds must be a whole number, got True"),
        ({"lr": np.bool_(True)}, "^lr must be a number, got"),
        ({"algorithm": "feddc", "alpha": 0.1}, r"alpha is a parameter of feddc: give it as params={'alpha': 0.1}"),
        ({"algorithm": 3}, "algorithm must be the name of an algorithm"),
        ({"algorithm": fk.Algorithm}, "algorithm must be the name of an algorithm"),
        ({"params": [1]}, "params must be a dict of values by name"),
        ({"workers": 0}, "^workers must be a whole number of at least 1, got 0. None is one per core"),
        ({"evaluate_every": 0}, "^evaluate_every must be a whole number of at least 1, got 0"),
        ({"threads": 1.5}, "^threads must be a whole number of at least 1, got 1.5"),
        ({"executor": 3}, "^executor must be text, got 3"),
        ({"device": "gpu"}, "no device named 'gpu'"),
        ({"device": "cpu:1"}, "^device must be a device that torch"),
        ({"device": None}, "^device must be text, got None"),
        ({"watch": 3}, "^watch must be a function of a round's progress, got 3"),
        ({"model": nn.Linear}, r"model must be .* got 'the class Linear'. Make an object of it"),
        ({"model": None}, "model must be a name of `fedkeel models` or a torch.nn.Module, got None"),
        ({"loss": 3}, 'loss must be a name such as "mse", or a loss of torch.nn such as nn.MSELoss'),
        ({"loss": nn.MSELoss}, r"loss must be a loss, not its class, got 'MSELoss'. Make an object of it: MSELoss\(\)"),
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


def test_what_means_the_same_gives_the_same() -> None:
    """A class for its name, torch's loss for ours, numpy's numbers for Python's, a device for its name."""
    fed = fk.data.load("mnist5k").partition("iid", clients=np.int64(10))
    scaffold = type(fk.make_algorithm("scaffold"))
    plain = fk.train("scaffold", data=fed, rounds=1, participation=0.2, workers=1, seed=0)
    other = fk.train(
        scaffold,
        data=fed,
        rounds=np.int32(1),
        participation=np.float64(0.2),
        loss=nn.CrossEntropyLoss(),  # what the model is trained with anyway
        workers=np.int64(1),
        device=torch.device("cpu"),  # type: ignore[arg-type]
        evaluate_every=np.int8(1),  # type: ignore[arg-type]
    )
    assert torch.equal(plain.state.server.w, other.state.server.w)


def test_text_is_as_good_as_a_path(tmp_path: Path) -> None:
    folder = str(tmp_path)
    (experiment,) = config.expand({"model": {"name": "logistic"}, "training": {"rounds": 1}}, [])
    fed = fk.data.load("mnist5k").partition("iid", clients=2)
    run = fk.run(experiment, f"{folder}/r", federation=fed)
    run.save_model(f"{folder}/m.safetensors")
    module = models.build("logistic", fed.dataset.input_shape, fed.dataset.classes)
    fk.load_model(module, f"{folder}/m.safetensors")
    longer = experiment.model_copy(update={"training": fk.Training(rounds=2)})
    assert len(fk.run(longer, f"{folder}/f", federation=fed, fork=f"{folder}/r@1").history.rounds) == 2


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"experiment": "e.toml"}, r"experiment must be an Experiment, got 'e.toml'. fedkeel.config.read\(path\)"),
        ({"directory": 3}, "directory must be a path, as text or pathlib.Path, got 3"),
        ({"directory": "a\0b"}, "directory must be a path"),
        ({"federation": 3}, "federation must be a Federation, got 3"),
        ({"resume": "yes"}, "resume must be True or False, got 'yes'"),
        ({"fork": 3}, "fork must be a path"),
        ({"watch": 3}, "watch must be a function"),
        ({"stop": True}, "stop must be a function"),
    ],
)
def test_mistakes_in_runs(call: dict[str, object], sentence: str, tmp_path: Path) -> None:
    arguments = {"experiment": config.Experiment(), "directory": tmp_path / "r"} | call
    with pytest.raises(InputError, match=sentence):
        fk.run(**arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("seed", [1.5, -1, 2**63, 2**64, True, "1", None, float("nan")])
def test_seeds_are_whole_numbers_that_nothing_is_cut_off(seed: Any) -> None:
    data = fk.data.load("mnist5k").partition("iid", clients=4)
    with pytest.raises(InputError, match=r"^seed must be a whole number from 0 to 2\^63 - 1, got"):
        fk.train("fedavg", data=data, seed=seed, rounds=1)
    with pytest.raises(ValueError, match="seed"):
        config.Experiment(seed=seed)


def test_the_largest_seed_is_not_the_one_before(tmp_path: Path) -> None:
    data = fk.data.load("mnist5k").partition("iid", clients=4)
    runs = [
        fk.train("fedavg", model="logistic", data=data, seed=seed, rounds=1, executor="serial", batch_size=500)
        for seed in (2**63 - 1, 2**63 - 2, np.int64(2**63 - 1))
    ]
    first, other, again = (run.state.server.w for run in runs)
    assert first.equal(again)
    assert not first.equal(other)


def test_drop_last_is_refused_where_it_would_drop_nothing() -> None:
    data = fk.data.load("mnist5k").partition("iid", clients=4)
    with pytest.raises(InputError, match=r"training\.drop_last must be false where every client has a single batch"):
        fk.train("fedavg", data=data, rounds=1, batch_size=1000, drop_last=True)


class Net(nn.Module):
    """A model of one's own, whose code may change between two starts."""

    def __init__(self, seed: int = 0, scale: float = 1.0, drop: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scale, self.drop = scale, drop
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(self.first(x).relu(), self.drop, self.training)
        out: torch.Tensor = self.scale * self.last(hidden)
        return out


def own_data() -> fk.data.Federation:
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return fk.data.from_arrays(x, y, x, y).partition("shards", clients=5, seed=1)


class Own(type(fk.make_algorithm("scaffold"))):  # type: ignore[misc]
    """An algorithm that no registry knows."""

    name = "own"


def kept(folder: Path, rounds: int = 4, resume: bool = True, **changes: Any) -> fk.Run:
    call = {"algorithm": Own, "model": Net(), "data": own_data(), "lr": 0.2, "batch_size": 10} | changes
    return fk.train(**call, rounds=rounds, executor="serial", directory=str(folder), resume=resume)


def test_own_model_data_and_algorithm_go_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = kept(tmp_path / "whole", resume=False)
    asked = iter([False, True])
    half = kept(tmp_path / "r", resume=False, stop=lambda: next(asked))
    assert (half.ended, half.state.t) == ("stopped", 2)
    done = kept(tmp_path / "r")
    assert (done.ended, done.directory, done.accuracy) == ("finished", tmp_path / "r", whole.accuracy)
    assert torch.equal(done.state.server.w, whole.state.server.w)
    assert verify(tmp_path / "r").model
    assert len(kept(tmp_path / "r", rounds=6).history.rounds) == 6


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": Net(seed=1)}, "the initial weights are not .first in 'first.weight'.; .*torch.manual_seed"),
        ({"model": Net(scale=1.001)}, "its answers to the same samples are not; its forward pass has changed"),
        ({"model": Net(drop=0.4)}, "in training mode the gradient of its loss is not"),
        ({"model": nn.Linear(4, 2)}, "does not fit this model, algorithm and data"),
        ({"lr": 0.1}, "training.lr was 0.2, asked 0.1; resume it as it was, or start anew in another directory"),
        ({"seed": 1}, "seed was 0, asked 1"),
        ({"faults": {"lost": 0.5}}, "faults.lost was 0.0, asked 0.5"),
        ({"algorithm": "scaffold"}, "algorithm.name was .*:Own', asked 'scaffold'"),
        ({"data": fk.data.load("mnist5k").partition("iid", clients=5)}, "the model cannot take the inputs"),
        ({"resume": False}, "already holds a run; continue it with resume=True"),
    ],
)
def test_another_call_does_not_go_on(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    kept(tmp_path, rounds=1, resume=False)
    with pytest.raises(fk.FedkeelError, match=sentence):
        kept(tmp_path, **changes)
    assert kept(tmp_path, rounds=2).ended == "finished"


def test_other_samples_do_not_go_on(tmp_path: Path) -> None:
    kept(tmp_path, rounds=1, resume=False)
    other = own_data()
    other.dataset.train.x[3] += 1
    with pytest.raises(fk.FedkeelError, match=r"the training samples .* are not those that it began with"):
        kept(tmp_path, data=other)


def test_an_experiment_and_a_call_do_not_take_over_each_other(tmp_path: Path) -> None:
    kept(tmp_path / "call", rounds=1, resume=False)
    table = {"model": {"name": "logistic"}, "training": {"rounds": 1}, "partition": {"clients": 4}}
    (experiment,) = config.expand(table, [])
    with pytest.raises(InputError, match=r"was made by fedkeel.train.*; go on with it there"):
        fk.run(experiment, tmp_path / "call", federation=own_data(), resume=True)
    fed = fk.run(experiment, tmp_path / "run").simulation.federation
    with pytest.raises(InputError, match=r"is that of an experiment; go on with it by fedkeel.run"):
        kept(tmp_path / "run", rounds=1, model="logistic", data=fed)


@pytest.mark.parametrize("until", [{"accuracy": 0.6}, lambda progress: progress.measured[0].accuracy >= 0.6])
def test_a_run_ends_when_it_has_reached_its_target(until: Any, tmp_path: Path) -> None:
    """It is the beginning of the whole run; resumed, it has nothing to do and says so, until more is asked."""
    whole = kept(tmp_path / "whole", rounds=20, resume=False)
    reached = whole.rounds_to(0.6)
    assert reached is not None
    assert reached < 20
    early = kept(tmp_path / "r", rounds=20, until=until, resume=False)
    assert (early.ended, early.state.t, verify(tmp_path / "r").model) == ("until", reached, True)
    with pytest.warns(FedkeelWarning, match="no further rounds are run"):
        again = kept(tmp_path / "r", rounds=20, until=until)
    assert (again.ended, again.state.t) == ("until", reached)
    on = kept(tmp_path / "r", rounds=20)
    assert (on.ended, on.state.t) == ("finished", 20)
    assert torch.equal(on.state.server.w, whole.state.server.w)
    memory = fk.train(Own, model=Net(), data=own_data(), rounds=20, lr=0.2, batch_size=10, until=until)
    assert (memory.ended, memory.directory) == ("until", None)


def test_a_target_of_an_experiment(tmp_path: Path) -> None:
    table = {"model": {"name": "logistic"}, "partition": {"clients": 4}, "run": {"executor": "pool", "workers": 1}}
    (experiment,) = config.expand(table | {"training": {"rounds": 9, "until": {"accuracy": 0.3}}}, [])
    run = fk.run(experiment, tmp_path / "r")
    assert (run.ended, run.state.t) == ("until", run.rounds_to(0.3))
    assert "until = {accuracy = 0.3}" in (tmp_path / "r" / "experiment.toml").read_text()
    with closing(Store.reading(tmp_path / "r")) as store:
        assert f"round {run.state.t} reached an accuracy of 0.3" in [event.text for event in store.events()]
    with pytest.raises(InputError, match=r"training.until.accuracy must be a number of at most 1, got 98"):
        config.expand({"training": {"until": {"accuracy": 98}}}, [])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"resume": True}, "resume must go with directory"),
        ({"until": 0.9}, "until must be a table such as"),
        ({"until": {"acuracy": 0.9}}, "no field in until named 'acuracy'. Did you mean 'accuracy'"),
        ({"until": {}}, "until must be given an accuracy or a loss"),
        ({"directory": 3}, "directory must be a path"),
        ({"stop": 3}, "stop must be a function"),
    ],
)
def test_mistakes_in_how_a_run_is_kept_and_ended(call: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fk.train("fedavg", model=Net(), data=own_data(), rounds=1, **call)


def test_clients_are_scored_on_what_they_held_out(tmp_path: Path) -> None:
    """From TOML as from Python: the scores are those of the model on each client's held-out samples."""
    table = {
        "data": {"client_test": 0.25, "validation": 0.1},
        "partition": {"clients": 4},
        "model": {"name": "logistic"},
        "training": {"rounds": 1},
        "evaluation": {"clients": True},
        "run": {"executor": "serial"},
    }
    (experiment,) = config.expand(table, [])
    run = fk.run(experiment, tmp_path / "r")
    federation = run.simulation.federation
    dealt = fk.data.load("mnist5k").partition("dirichlet", clients=4, client_test=0.25).hold_out(0.1)
    assert federation.held_tests is not None
    assert dealt.held_tests is not None
    module = models.build("logistic", federation.dataset.input_shape, 10)
    module.load_state_dict(run.state_dict())
    scores = run.evaluate_clients()
    for i, rows in enumerate(federation.held_tests):
        np.testing.assert_array_equal(rows, dealt.held_tests[i])
        np.testing.assert_array_equal(federation.clients[i], dealt.clients[i])
        split = federation.dataset.train
        x = federation.dataset.transform.prepare(split.x[rows], torch.float32)
        right = module.eval()(x).argmax(1).numpy() == split.y[rows]
        assert (scores[i].samples, scores[i].accuracy) == (len(rows), pytest.approx(right.mean()))
    with closing(sqlite3.connect(tmp_path / "r" / "run.sqlite")) as db:
        assert db.execute("SELECT DISTINCT split FROM client_metrics").fetchall() == [("test",)]
