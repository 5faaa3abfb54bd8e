"""What algorithms note and metrics by name: kept by round, whoever computes it, and the same after a resume."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel import api, config
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import tiny_simulation
from fedkeel.cli.main import app
from fedkeel.data import Federation
from fedkeel.engine.noted import NotedError, as_noted
from fedkeel.errors import InputError
from fedkeel.learning.metrics import KNOWN
from fedkeel.runs.history import History
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store
from tests.algorithms.least_squares import simulation as quadratics
from tests.algorithms.quadratic import simulation as points
from tests.engine.far_side import CASES, near_and_far

NOTING = {
    "fedveca": {"tau", "beta", "delta", "A", "tau_bar", "L", "premise", "bound", "assumption_2"},
    "gradma": {"active", "active_local", "remembered"},
    "gradma_w": {"active_local"},
    "gradma_s": {"active", "remembered"},
    "keel": {"active", "remembered"},
    "fedgvr": {"eps"},
    "fedgvrgm": {"eps"},
}


@pytest.fixture(scope="module")
def federation() -> Federation:
    dealt = fk.data.load("mnist5k").partition("dirichlet", clients=6, alpha=0.3)
    assert isinstance(dealt, Federation)
    return dealt


def train(algorithm: str, federation: Federation, rounds: int = 3, **more: Any) -> api.Run:
    settings: dict[str, Any] = {"model": "logistic", "participation": 0.5, "batch_size": 50, "lr": 0.05}
    return fk.train(algorithm, data=federation, rounds=rounds, **(settings | {"executor": "serial"} | more))


@pytest.mark.parametrize("algorithm", sorted(NOTING))
def test_what_is_noted_is_kept_by_round_and_survives_a_resume(
    algorithm: str, federation: Federation, tmp_path: Path
) -> None:
    whole = train(algorithm, federation).history
    train(algorithm, federation, directory=tmp_path, stop=lambda: True)
    went_on = train(algorithm, federation, directory=tmp_path, resume=True).history
    with closing(Store.reading(tmp_path)) as store:
        stored = store.history()
    assert set(whole.names) == NOTING[algorithm]
    assert repr(went_on.noted) == repr(whole.noted) == repr(stored.noted)
    assert list(stored.values(whole.names[0])) == [1, 2, 3]


@pytest.mark.parametrize("algorithm", ["fedveca", "gradma", "gradma_w", "fedgvrgm"])
def test_pool_and_serial_note_the_same(algorithm: str, federation: Federation) -> None:
    serial, pool = (train(algorithm, federation, executor=e, rounds=2).history for e in ("serial", "pool"))
    assert repr(serial.noted) == repr(pool.noted)


def test_stacked_notes_the_same_up_to_round_off(federation: Federation) -> None:
    serial, stacked = (train("fedveca", federation, executor=e, rounds=2).history for e in ("serial", "stacked"))
    for name in serial.names:
        for round, expected in serial.values(name).items():
            assert stacked.values(name)[round] == pytest.approx(expected, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize("algorithm", ["fedveca", "gradma", "gradma_w", "fedgvrgm"])
def test_sites_note_the_same(algorithm: str, tmp_path: Path) -> None:
    near, far, _ = near_and_far(make_algorithm(algorithm), CASES["lost, late, twice"], tmp_path)
    here, there = near.start(), far.start()
    for _ in range(3):
        if near.algorithm.observes:
            here, there = near.observe(here, near.feedback(here)), far.observe(there, far.feedback(there))
        here, mine = near.step(here)
        there, theirs = far.step(there)
        assert repr(mine.noted) == repr(theirs.noted)


def test_fedveca_by_hand() -> None:
    """The numbers of tests/algorithms/test_fedveca.py: τ = 2, 2 and 20, 2; L = 2.5 and 0.1·11·2.5 in round 3."""
    _, history = execute(quadratics(make_algorithm("fedveca", tau_0=2), [[(1.0, 1)], [(2.0, 0)]], [0.5]), Evaluation())
    tau = history.values("tau")
    assert [tau[t] for t in (1, 2, 3)] == [{0: 2.0, 1: 2.0}, {0: 2.0, 1: 2.0}, {0: 20.0, 1: 2.0}]
    assert history.values("tau_bar")[3] == pytest.approx(11)
    assert history.values("L")[3] == pytest.approx(2.5)
    assert history.values("premise")[3] == pytest.approx(2.75)
    assert history.values("beta")[2] == pytest.approx({0: 1, 1: 4})
    first = history.values("A")[1]
    assert isinstance(first, dict)
    assert all(map(math.isnan, first.values()))


def test_an_unknown_name_is_told_what_there_is(federation: Federation) -> None:
    history = train("fedgvr", federation, rounds=1).history
    with pytest.raises(InputError, match="Did you mean 'eps'"):
        history.values("epsilon")
    with pytest.raises(InputError, match=r"Known: .*time\.training"):
        train("fedavg", federation, rounds=1).history.values("tau")
    with pytest.raises(InputError, match="the algorithm noted none"):
        History().values("tau")


class Nosy(FedAvg):
    """Notes once: what a round left out must not stand in the next."""

    name = "nosy"

    def aggregate(self, server: State, uploads: Any, round: Any) -> State:
        after = super().aggregate(server, uploads, round)
        return after if round.t else after.noting(sizes=uploads.clients.sizes, lr=round.lr).replace(w=after.w)


def test_notes_are_of_one_round_and_no_part_of_the_state() -> None:
    simulation = tiny_simulation(Nosy(), rounds=2)
    state, history = execute(simulation, Evaluation())
    assert list(history.noted) == [1]
    assert history.values("sizes")[1] == dict(enumerate(simulation.problem.sizes.double().tolist()))
    assert set(state.server) == {"w"}
    assert not state.server.noted


@pytest.mark.parametrize("value", [torch.zeros(2), torch.zeros(3, 1), "text", None, torch.zeros(3, dtype=torch.cfloat)])
def test_what_cannot_be_kept_is_refused(value: object) -> None:
    assert as_noted({"a": True, "b": torch.tensor(2), "c": torch.arange(3)}, (4, 5, 9), "x") == {
        "a": 1.0,
        "b": 2.0,
        "c": {4: 0.0, 5: 1.0, 9: 2.0},
    }
    with pytest.raises(NotedError, match=r"a that x notes must be a number or a tensor \[3\]"):
        as_noted({"a": value}, (4, 5, 9), "x")


@pytest.mark.parametrize("name", ["time.training", "measure.gamma"])
def test_names_of_the_run_itself_are_taken(name: str) -> None:
    with pytest.raises(NotedError, match="the run's own"):
        as_noted({name: 1.0}, (4,), "x")


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float()


def test_metrics_are_kept_with_a_run_and_go_on(federation: Federation, tmp_path: Path) -> None:
    """``hits`` is accuracy by another name."""
    whole = train("fedavg", federation, metrics={"hits": hits})
    train("fedavg", federation, metrics={"hits": hits}, directory=tmp_path, stop=lambda: True)
    went_on = train("fedavg", federation, metrics={"hits": hits}, directory=tmp_path, resume=True)
    with closing(Store.reading(tmp_path)) as store:
        stored = store.history()
    assert whole.history.measured == went_on.history.measured == stored.measured
    assert [m.metrics for m in stored.measured] == [{"hits": pytest.approx(m.accuracy)} for m in stored.measured]
    assert stored.metric_names == ["hits"]


def table(**evaluation: Any) -> dict[str, Any]:
    return {
        "partition": {"clients": 6},
        "model": {"name": "logistic"},
        "training": {"rounds": 2, "batch_size": 50, "participation": 0.5},
        "evaluation": evaluation,
        "run": {"executor": "serial"},
    }


def test_metrics_of_an_experiment_stand_beside_models_and_clients(tmp_path: Path) -> None:
    (experiment,) = config.expand(table(metrics=["f1"], clients=True, train=True), [])
    run = api.run(experiment, tmp_path / "r")
    with closing(sqlite3.connect(tmp_path / "r" / FILE)) as db:
        found = db.execute("SELECT model, split, count(*), min(client) FROM named_values GROUP BY 1, 2 ORDER BY 1, 2")
        noted, *of_models_and_clients = found.fetchall()
        assert noted[:2] == ("", "")
        assert of_models_and_clients == [("", "train", 12, 0), ("global", "test", 2, -1), ("global", "train", 2, -1)]
    assert 0 < run.metrics["f1"] < 1


def test_unknown_metrics_are_named_with_their_place() -> None:
    with pytest.raises(InputError, match=r"no metric named 'f2'\. Known: f1"):
        config.expand(table(metrics=["f2"]), [])


def test_the_command_shows_metrics(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(config.as_toml(table(metrics=["f1"])))
    shown = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "runs")])
    assert "final f1" in shown.output
    as_json = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "runs"), "--resume", "--json", "-q"])
    assert '"f1": 0.' in as_json.output


@pytest.mark.parametrize("parts", [1, 3])
def test_macro_f1_by_hand(parts: int) -> None:
    """Labels 0 0 1 1 2, answers 0 1 1 1 0, and one of NaN for label 2: F1 = 2/4, 4/5, 0; class 3 is nowhere."""
    outputs = torch.eye(4)[[0, 1, 1, 1, 0, 0]]
    outputs[5] = math.nan
    targets = torch.tensor([0, 0, 1, 1, 2, 2])
    f1 = KNOWN["f1"]
    sums = sum(f1.sums(o, t) for o, t in zip(outputs.chunk(parts), targets.chunk(parts), strict=True))
    assert isinstance(sums, Tensor)
    assert f1.value(sums.tolist()) == pytest.approx((0.5 + 0.8 + 0) / 3)


def test_f1_over_sequences_leaves_padding_out() -> None:
    outputs = torch.eye(3)[torch.tensor([[0, 1, 2], [1, 1, 1]])].transpose(1, 2)
    f1 = KNOWN["f1"]
    whole = f1.sums(outputs, torch.tensor([[0, 1, 2], [1, -100, -100]]))
    assert f1.value(whole.tolist()) == 1


@pytest.mark.parametrize(("outputs", "targets"), [((5, 1), (5,)), ((5,), (5,))])
def test_f1_needs_a_score_for_each_class(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a score for each class"):
        KNOWN["f1"].sums(torch.zeros(outputs), torch.zeros(targets, dtype=torch.long))


class Whispering(FedAvg):
    """Whose clients note their size, or what cannot be kept."""

    name = "whispering"

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def finish(self, local: Any, y: Tensor) -> tuple[State, State]:
        message, state = super().finish(local, y)
        return message.noting(size=local.clients.sizes if self.value is None else self.value), state


def test_clients_note_with_their_uploads_and_it_weighs_nothing() -> None:
    _, plain = execute(tiny_simulation(FedAvg(), rounds=2, participation=0.6), Evaluation())
    simulation = tiny_simulation(Whispering(), rounds=2, participation=0.6)
    _, history = execute(simulation, Evaluation())
    sizes = simulation.problem.sizes.tolist()
    for t, noted in history.values("size").items():
        assert isinstance(noted, dict)
        assert noted == {client: sizes[client] for client in noted}
        assert len(noted) == history.rounds[t - 1].clients
    assert [r.bytes_up for r in history.rounds] == [r.bytes_up for r in plain.rounds]


class Echoing(Whispering):
    name = "echoing"

    def aggregate(self, server: State, uploads: Any, round: Any) -> State:
        return super().aggregate(server, uploads, round).noting(size=1.0)


def test_clients_and_server_do_not_note_under_one_name() -> None:
    simulation = tiny_simulation(Echoing())
    with pytest.raises(NotedError, match="size is noted by the clients of echoing and by its server"):
        simulation.step(simulation.start())


@pytest.mark.parametrize("value", [1.0, torch.zeros(2), torch.zeros(1, 1), torch.zeros(1, dtype=torch.cfloat)])
def test_what_a_client_cannot_note_is_refused(value: object) -> None:
    with pytest.raises(NotedError, match=r"size that clients of whispering note must be a tensor \[1\]"):
        tiny_simulation(Whispering(value)).step(tiny_simulation(Whispering(value)).start())


@pytest.mark.parametrize("algorithm", ["gradma", "gradma_w"])
def test_active_conditions_of_workers_by_hand(algorithm: str) -> None:
    """F_i = h (x − b)²/2 from x = 0, two steps of η = ½/h. In the first step no row is against the gradient: those at
    x_{−1} = x_0 are the gradient itself, x − x_0 is 0. In the second, on half the way, x_τ − x_0 points to b and the
    gradient away from it: that row alone acts. One in two steps.
    """
    _, history = execute(points(make_algorithm(algorithm), [(1, 2), (1, -4)], rounds=1, steps=2, lr=0.5), Evaluation())
    assert history.values("active_local") == {1: {0: 0.5, 1: 0.5}}
