"""Prediction sets of runs, in memory and on disk."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel import config
from fedkeel.api import Run
from fedkeel.data.dataset import Federation
from fedkeel.errors import DataError, FedkeelError, InputError

TABLE: dict[str, Any] = {
    "data": {"name": "mnist5k"},
    "partition": {"rule": "dirichlet", "clients": 8, "alpha": 0.3},
    "model": {"name": "2nn"},
    "algorithm": {"name": "fedavg"},
    "training": {"rounds": 2, "lr": 0.1},
    "run": {"executor": "serial"},
}


@pytest.fixture(scope="module")
def clients() -> Federation:
    return fk.data.load("mnist5k").partition("dirichlet", clients=8, alpha=0.3, seed=0)


@pytest.fixture(scope="module")
def run(clients: Federation) -> Run:
    return fk.train("fedavg", model="2nn", data=clients, rounds=3, lr=0.1, executor="serial")


def test_a_run_has_prediction_sets(run: Run) -> None:
    """Half of the test set is judged; 90 % within five standard errors of both halves."""
    found = run.conformal()
    assert found.samples["evaluation"] == round(len(run.simulation.federation.dataset.test) / 2)
    n = found.samples["calibration"]
    assert abs(found.coverage - 0.9) < 5 * (0.09 * 2 / n) ** 0.5
    assert found == fk.conformal(run)
    assert len(found.by_class) == 10
    assert not found.by_client


@pytest.mark.parametrize("by", ["pooled", "federated", "client"])
def test_clients_calibrate_with_their_own_samples(clients: Federation, by: Any) -> None:
    held = fk.train("fedavg", model="2nn", data=clients.hold_out_tests(0.3), rounds=1, executor="serial")
    found = held.conformal("aps", by=by, on="clients")
    assert set(found.by_client) == set(range(8))
    assert sum(found.samples.values()) == sum(map(len, held.simulation.federation.held_tests or ()))


def test_what_cannot_be_measured_is_said(run: Run, clients: Federation) -> None:
    with pytest.raises(InputError, match="hold some out"):
        run.conformal(by="client")
    with pytest.raises(InputError, match="'clients' where the threshold is federated"):
        run.conformal(by="federated", on="test")
    with pytest.raises(InputError, match="option of conformal"):
        run.conformal(calibraton=0.5)
    with pytest.raises(InputError, match="candidate model"):
        run.conformal(model="best")
    with pytest.raises(InputError, match="'test' or 'clients'"):
        run.conformal(on="train")
    shared = Federation(
        clients.dataset, clients.clients, clients.rule, client_tests=(clients.clients[0][:5] % 500,) * 8
    )
    alike = fk.train("fedavg", model="2nn", data=shared, rounds=1, executor="serial")
    with pytest.raises(InputError, match="share test samples"):
        alike.conformal(by="client")


def test_a_directory_gives_what_the_run_gives(tmp_path: Path) -> None:
    (experiment,) = config.expand(TABLE, [])
    run = fk.run(experiment, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert fk.conformal(tmp_path / "run", "lac", 0.2) == run.conformal("lac", 0.2)
    assert {path: path.read_bytes() for path in before} == before


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run"):
        fk.conformal(tmp_path)


def test_a_run_of_a_program_is_refused_with_a_reason(tmp_path: Path, clients: Federation) -> None:
    fk.train("fedavg", model="2nn", data=clients, rounds=1, executor="serial", directory=tmp_path / "run")
    with pytest.raises(FedkeelError, match=r"made by fedkeel\.train"):
        fk.conformal(tmp_path / "run")


def test_the_command_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedkeel.cli.conformal import show_conformal

    (experiment,) = config.expand(TABLE, [])
    run = fk.run(experiment, tmp_path / "run")
    show_conformal(tmp_path / "run", "aps", 0.1, "pooled", 0, None, as_json=True)
    assert json.loads(capsys.readouterr().out)["at"]["size"] == run.conformal("aps").size
    show_conformal(tmp_path / "run", "aps", 0.1, "pooled", 0, None, as_json=False)
    assert "APS, randomised" in capsys.readouterr().out
