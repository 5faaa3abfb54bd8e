"""What a model is worth to clients: laws, and numbers that can be followed."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel import config
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.api import Run
from fedkeel.check import tiny_simulation
from fedkeel.cli.main import app
from fedkeel.data import Federation
from fedkeel.errors import InputError
from fedkeel.learning.losses import Loss
from fedkeel.measure.at_clients import OwnModels, newcomers, trained_alone
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.fairness import fairness
from fedkeel.runs.store import FILE
from tests.algorithms.quadratic import rounds as quadratic_rounds
from tests.algorithms.quadratic import simulation as quadratics
from tests.runs.test_exact_resume import everything


@pytest.fixture(scope="module")
def clients() -> Federation:
    dealt = fk.data.load("mnist5k").take(800).partition("dirichlet", clients=8, alpha=0.3, seed=0)
    return dealt.hold_out_tests(0.3)


def train(data: Federation, algorithm: str = "fedavg", **more: Any) -> Run:
    settings: dict[str, Any] = {"model": "logistic", "rounds": 3, "participation": 0.5, "batch_size": 20, "lr": 0.05}
    return fk.train(algorithm, data=data, executor="serial", **(settings | more))


# -- Laws


def test_alone_with_one_client_is_fedavg() -> None:
    """Nobody else is averaged in: two rounds alone are two rounds of FedAvg, the next round is the third."""
    simulation = quadratics(FedAvg(), [(2.0, 3.0)], sizes=[6], batch_size=2, lr=0.1, epochs=2, rounds=3)
    states, _ = quadratic_rounds(simulation, 3)
    task, training = simulation.task, simulation.training
    alone, _ = trained_alone(simulation, 0, (task.w0, task.b0), training, [(0, 0.1), (1, 0.1)])
    assert torch.equal(alone, states[2].server.w)
    tuned, _ = trained_alone(simulation, 0, (alone, task.b0), training, [(2, 0.1)])
    assert torch.equal(tuned, states[3].server.w)


def test_alone_by_hand() -> None:
    """F = 2 (x − 3)²/2 from 0: six steps of η = 0.1 leave 0.8⁶ of the way, x = 3 (1 − 0.262144) = 2.213568."""
    simulation = quadratics(FedAvg(), [(1.0, -9.0), (2.0, 3.0)], lr=0.1, steps=3)
    task = simulation.task
    w, _ = trained_alone(simulation, 1, (task.w0, task.b0), simulation.training, [(0, 0.1), (1, 0.1)])
    assert w.tolist() == pytest.approx([2.213568] * 2)


@pytest.mark.parametrize(("algorithm", "buffers"), [("feddc", "average"), ("fedbn", None), ("fedavg", "freeze")])
def test_the_model_before_is_the_one_that_clients_use(algorithm: str, buffers: str | None, clients: Federation) -> None:
    more = {} if buffers is None else {"buffers": buffers}
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(784), torch.nn.Linear(784, 10))
    run = train(clients, algorithm, model=net, drop_last=True, **more)
    before = everything(run.state)
    tuned = run.fine_tuned()
    assert tuned.shared == {client: score.accuracy for client, score in run.evaluate_clients().items()}
    assert tuned.own != tuned.shared
    assert run.local_only(1).shared == tuned.shared
    assert everything(run.state) == before
    assert run.fine_tuned() == tuned


def test_more_epochs_are_more_training(clients: Federation) -> None:
    """On labels as uneven as these, a client does better with a model of its own."""
    run = train(clients)
    assert run.fine_tuned(5).gain > run.fine_tuned(1).gain > 0
    assert run.fine_tuned(5).how == "after 5 epochs of fine-tuning"


def test_alone_as_long_as_clients_took_part(clients: Federation) -> None:
    """Six rounds at a half are three for each; as many as are said otherwise."""
    run = train(clients, rounds=6)
    assert run.local_only() == run.local_only(3)
    assert run.local_only(1).how == "trained alone for 1 round"


def test_numbers_by_hand() -> None:
    """+0.2, −0.1 and 0: a gain of 0.1/3; one of three is better off."""
    found = OwnModels("by hand", {0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.7, 1: 0.5, 2: 0.7})
    assert found.gain == pytest.approx(0.1 / 3)
    assert found.better_off == pytest.approx(1 / 3)


def test_newcomers_never_took_part() -> None:
    """Clients 0 and 2 are called, 1 and 3 never: the list of those that counted ends before the last client."""
    simulation = quadratics(FedAvg(), [(1, 1)] * 4, cohorts=[[0], [2]], rounds=2)
    states, _ = quadratic_rounds(simulation, 2)
    found = newcomers(simulation, states[2])
    assert (found.split, set(found.seen), set(found.unseen)) == ("train", {0, 2}, {1, 3})
    assert set(newcomers(simulation, states[0]).unseen) == {0, 1, 2, 3}


def test_fairness_is_that_of_the_clients_scores(clients: Federation) -> None:
    run = train(clients)
    assert run.fairness() == fairness([score.accuracy for score in run.evaluate_clients().values()])
    assert run.fairness().clients == 8


def test_models_are_not_judged_by_what_they_were_trained_on() -> None:
    dealt = fk.data.load("mnist5k").take(200).partition("iid", clients=4)
    run = train(dealt)
    for measured in (run.fine_tuned, run.local_only):
        with pytest.raises(InputError, match=r"data\.client_test = 0\.2"):
            measured()
    with pytest.raises(InputError, match="epochs must be"):
        run.fine_tuned(0)


def test_clients_with_an_empty_test_set_are_left_out(clients: Federation) -> None:
    first = np.arange(20)
    own = Federation(clients.dataset, clients.clients, {}, (first, first[:0], *[first] * 6))
    run = train(own)
    assert set(run.fine_tuned().own) == {0, 2, 3, 4, 5, 6, 7}
    with pytest.warns(FedkeelWarning, match=r"without 1 of 8: client 1 gave no score"):
        assert run.fairness().clients == 7


# -- The command


TABLE: dict[str, Any] = {
    "data": {"client_test": 0.3, "samples": 800},
    "partition": {"clients": 8, "alpha": 0.3},
    "model": {"name": "logistic"},
    "algorithm": {"name": "scaffold"},
    "training": {"rounds": 3, "participation": 0.25, "batch_size": 20, "lr": 0.05},
    "measure": {"every": 2},
    "run": {"executor": "serial"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (experiment,) = config.expand(TABLE, [])
    where = tmp_path_factory.mktemp("runs") / "r"
    fk.run(experiment, where)
    return where


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["measure", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_screen(folder: Path) -> None:
    before = (folder / FILE).read_bytes()
    text = said(str(folder), "--target", "0.1", "--fine-tune", "2", "--local-only")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("last round", "MB down", "mean of 5 evaluations: never", "training", "drift degree Γ"):
        assert part in text
    for part in ("at clients that never did", "after 2 epochs of fine-tuning", "trained alone for 1 round"):
        assert part in text
    assert (folder / FILE).read_bytes() == before


def test_json_is_what_python_gives(folder: Path) -> None:
    run = fk.read_run(folder)
    assert (run.label, run.ended, run.state.t) == ("r", "finished", 3)
    found = json.loads(said(str(folder), "--json", "--fine-tune", "1"))
    assert found["accuracy"]["last"] == run.accuracy
    assert found["drift"]["measure.gamma"] == run.history.values("measure.gamma")[2]
    assert found["clients"]["fairness"][0]["jain"] == run.fairness().jain
    tuned = run.fine_tuned()
    assert found["clients"]["own_models"] == [json.loads(json.dumps(tuned.as_dict()))]
    assert set(found["seconds"]) >= {"training", "aggregation", "evaluation", "commit", "measure"}


def test_a_run_of_a_program_shows_what_its_store_holds(clients: Federation, tmp_path: Path) -> None:
    train(clients, directory=tmp_path / "r")
    text = said(str(tmp_path / "r"))
    assert "test accuracy" in text
    assert "not measured: the run in" in text
    failed = CliRunner().invoke(app, ["measure", str(tmp_path / "r"), "--fine-tune", "1"])
    assert isinstance(failed.exception, InputError)


def test_no_accuracy_is_no_number() -> None:
    """A loss without right answers: nothing is 0 % by accident."""
    simulation = tiny_simulation(make_algorithm("fedavg"), rounds=1)
    simulation.task.loss = Loss("free", simulation.task.loss.per_sample, None)
    found = newcomers(simulation, simulation.start())
    assert math.isnan(fairness(list(found.unseen.values())).mean)
