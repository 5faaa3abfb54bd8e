"""Sites with data of their own: what they hold, what the server makes of it, and evaluation without a test set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel import build, config
from fedkeel.data.dataset import Split
from fedkeel.data.own import as_split, from_clients
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.network.letters import Facts
from fedkeel.network.run import NetworkRun
from fedkeel.network.site_data import SiteData, read
from tests.network.in_memory import Memory, apart, experiment, over_sites, own_data, shares, simulated, sites_experiment
from tests.network.test_in_process import after

pytestmark = pytest.mark.filterwarnings("ignore::fedkeel.notices.FedkeelWarning")
FIELDS: dict[str, Any] = {"model__name": "linear_synth", "training__lr": 0.1}
SIZES = (12, 7, 20)


def three(test: tuple[int, ...] = (0, 0, 0), **more: Any) -> list[SiteData]:
    return [own_data(client, SIZES[client], test=test[client], **more) for client in range(3)]


def run_three(tmp_path: Path, held: list[SiteData], algorithm: str = "fedavg", **fields: Any) -> NetworkRun:
    one = sites_experiment(algorithm, **FIELDS | fields)
    return over_sites(one, tmp_path / "far", Memory(held, tmp_path / "sites"), clients=3)


def npz(path: Path, split: Split) -> Path:
    np.savez(path, x=split.x, y=split.y)
    return path


def by_hand(run: NetworkRun, splits: list[Split]) -> tuple[float, float]:
    """Accuracy and loss of the final softmax regression over all samples of some splits together, in plain numpy."""
    w = run.state.server.w.double().numpy()
    classes = len(w) // 5
    weight, bias = w[: 4 * classes].reshape(classes, 4), w[4 * classes :]
    right, loss, n = 0, 0.0, 0
    for split in splits:
        scores = split.x.astype(np.float64) @ weight.T + bias
        loss += float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(split.y)), split.y]).sum())
        right += int((scores.argmax(1) == split.y).sum())
        n += len(split.y)
    return right / n, loss / n


def final(run: NetworkRun, model: str = "global") -> tuple[float, float]:
    last = run.history.series(model)[-1]
    assert last.round == 2
    return last.accuracy, last.loss


# --------------------------------------------------------------------------------------------------------- evaluation


def test_without_any_test_samples_the_training_samples_of_all_are_the_measure(tmp_path: Path) -> None:
    """Sites of 12, 7 and 20 samples count by their samples: the mean over sites would be another number."""
    data = three()
    run = run_three(tmp_path, data)
    accuracy, loss = by_hand(run, [one.train for one in data])
    assert final(run) == (pytest.approx(accuracy, abs=1e-9), pytest.approx(loss, rel=1e-5))
    by_site = np.mean([by_hand(run, [one.train])[1] for one in data])
    assert abs(by_site - loss) > 1e-4


def test_where_all_sites_have_test_samples_these_are(tmp_path: Path) -> None:
    data = three((5, 9, 4))
    run = run_three(tmp_path, data)
    accuracy, loss = by_hand(run, [one.test for one in data if one.test])
    assert final(run) == (pytest.approx(accuracy, abs=1e-9), pytest.approx(loss, rel=1e-5))


def test_where_only_some_have_test_samples_nobody_is_tested_on_them(tmp_path: Path) -> None:
    """A mean over test samples here and training samples there would be neither."""
    data = three((5, 0, 4))
    run = run_three(tmp_path, data)
    accuracy, loss = by_hand(run, [one.train for one in data])
    assert final(run) == (pytest.approx(accuracy, abs=1e-9), pytest.approx(loss, rel=1e-5))


def test_a_test_set_of_the_server_is_the_measure_where_it_has_one(tmp_path: Path) -> None:
    test = own_data(9, 30).train
    data = three((5, 9, 4))
    run = run_three(tmp_path, data, data={"name": "sites", "test": str(npz(tmp_path / "t.npz", test))})
    accuracy, loss = by_hand(run, [test])
    assert final(run) == (pytest.approx(accuracy, abs=1e-9), pytest.approx(loss, rel=1e-5))


@pytest.mark.parametrize("tests", [(0, 0, 0), (5, 9, 4)])
@pytest.mark.parametrize("at_server", [True, False])
def test_models_of_the_clients_own_are_scored_on_what_there_is(
    tests: tuple[int, ...], at_server: bool, tmp_path: Path
) -> None:
    """FedBN: no site has the server's test set, so that each scores its own model on samples of its own."""
    data = three(tests)
    fields: dict[str, Any] = {"model__name": "mlp_gradma", "evaluation__clients": True}
    if at_server:
        path = npz(tmp_path / "t.npz", own_data(9, 30).train)
        fields["data"] = {"name": "sites", "test": str(path)}
    run = run_three(tmp_path, data, "fedbn", **fields)
    state, rounds = run.state, run.simulation
    each = rounds.evaluate_clients(state)
    sizes = [5, 9, 4] if any(tests) else list(SIZES)
    assert [each[client].samples for client in range(3)] == sizes
    weighted = sum(each[client].loss * sizes[client] for client in range(3)) / sum(sizes)
    found = [one for one in run.history.measured if one.round == 2]
    assert [one.model for one in found] == ["client_mean", "global"]
    assert found[0].loss == pytest.approx(weighted, rel=1e-6)


def test_the_run_is_that_of_a_simulation_with_the_same_samples(tmp_path: Path) -> None:
    """The same three clients as a federation in memory: the bits of its model."""
    data, test = three(), own_data(9, 30).train
    path = npz(tmp_path / "t.npz", test)
    run = run_three(tmp_path, data, "scaffold", data={"name": "sites", "test": str(path)}, training__participation=0.7)
    federation = from_clients([(one.train.x, one.train.y) for one in data], (test.x, test.y), name="sites")
    one = sites_experiment("scaffold", **FIELDS, training__participation=0.7)
    near = build.make_simulation(one.of_given_data(), federation=federation)
    state = near.start()
    for _ in range(2):
        state, _ = near.step(state)
    assert isinstance(near, Simulation)
    assert torch.equal(run.state.server.w, state.server.w)
    assert torch.equal(run.state.server.c, state.server.c)
    assert near.evaluate(state)["global"].loss == final(run)[1]


def test_feedback_comes_from_the_sites(tmp_path: Path) -> None:
    assert run_three(tmp_path, three(), "fedgvrgm").state.t == 2


# --------------------------------------------------------------------------------------------- what does not fit, whose


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (own_data(1, features=5), r"the input shape of client 1 is \(5,\), that of client 0 \(4,\)"),
        (
            SiteData.of_arrays("pixels", as_split(np.zeros((6, 4), np.uint8), np.arange(6) % 3)),
            "the inputs of client 1 is uint8, that of client 0 float32",
        ),
        (
            SiteData.of_arrays("real", as_split(np.zeros((6, 4)), np.zeros(6), targets="real")),
            "the targets of client 1 is float32, that of client 0 int64",
        ),
        (
            SiteData.of_arrays("sequences", as_split(np.zeros((6, 4)), np.zeros((6, 2), np.int64))),
            r"the target shape of client 1 is \(2,\), that of client 0 \(\)",
        ),
    ],
)
def test_samples_of_another_kind_are_refused_with_the_client(odd: SiteData, sentence: str, tmp_path: Path) -> None:
    data = three()
    data[1] = odd
    with pytest.raises(DataError, match=sentence):
        run_three(tmp_path, data)
    assert not (tmp_path / "far" / "run.sqlite").exists()


def test_labels_that_only_some_sites_have_get_their_outputs(tmp_path: Path) -> None:
    """Labels up to 1, 4 and 2: the model has five outputs everywhere."""
    data = [own_data(client, classes=classes, features=6) for client, classes in enumerate((2, 5, 3))]
    run = run_three(tmp_path, data)
    assert run.simulation.task.d == 5 * 6 + 5
    assert [Facts.model_validate(one.facts(0)).classes for one in data] == [2, 5, 3]


def test_labels_that_only_a_test_set_has_get_their_outputs(tmp_path: Path) -> None:
    path = npz(tmp_path / "t.npz", own_data(9, classes=4).train)
    run = run_three(tmp_path, three(), data={"name": "sites", "test": str(path)})
    assert run.simulation.task.d == 4 * 4 + 4


def test_a_test_set_unlike_the_samples_of_sites_is_refused(tmp_path: Path) -> None:
    """Pixels where sites hold real numbers would not be divided by 255, or the other way round."""
    for odd, got in (
        (own_data(9, features=7).train, r"'float32 \[7\]'"),
        (Split(np.ones((5, 4), np.uint8), np.arange(5) % 3), r"'uint8 \[4\]'"),
    ):
        path = npz(tmp_path / "t.npz", odd)
        with pytest.raises(
            InputError, match=rf"data\.test\.x must be float32 \[4\] a sample, as at the sites, got {got}"
        ):
            run_three(tmp_path, three(), data={"name": "sites", "test": str(path)})
    with pytest.raises(FedkeelError, match="nothing"):
        run_three(tmp_path, three(), data={"name": "sites", "test": str(tmp_path / "nothing.npz")})


def test_pixels_are_divided_by_255_on_both_sides(tmp_path: Path) -> None:
    """The server's transform must be the sites': a test set of 0 and 255 is one of 0 and 1."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 1, 6, 6), dtype=np.uint8), np.arange(12) % 3
    data = [SiteData.of_arrays("pixels", as_split(x, y)) for _ in range(3)]
    path = npz(tmp_path / "t.npz", Split(x, y))
    with_test = run_three(tmp_path, data, data={"name": "sites", "test": str(path)})
    without = over_sites(sites_experiment(**FIELDS), tmp_path / "b", Memory(data, tmp_path / "others"), clients=3)
    assert final(with_test) == pytest.approx(final(without), rel=1e-6)


def test_real_targets_are_refused_in_a_sentence_that_says_why(tmp_path: Path) -> None:
    """A network has models of the zoo, which are classifiers: there is no loss to train them with."""
    real = [SiteData.of_arrays("real", as_split(np.ones((6, 4)), np.ones(6), targets="real")) for _ in range(3)]
    assert [(one.classes, one.facts(0).targets) for one in real] == [(0, "float32")] * 3
    with pytest.raises(InputError, match="whose targets are real numbers"):
        run_three(tmp_path, real)


# ------------------------------------------------------------------------------------------------- data that change


@pytest.mark.parametrize("part", ["x", "y", "test", "no test"])
def test_a_run_does_not_go_on_with_other_data(part: str, tmp_path: Path) -> None:
    """Nor with other test samples: the curve would go on with other ones without a word."""
    one = sites_experiment(**FIELDS)
    data = three((5, 5, 5))
    over_sites(one, tmp_path / "far", Memory(data, tmp_path / "sites"), stop=after(1), clients=3)
    old = data[1]
    assert old.test is not None
    x, y, test = old.train.x.copy(), old.train.y.copy(), Split(old.test.x.copy(), old.test.y)
    if part == "x":
        x[0, 0] += 1e-6
    elif part == "y":
        y[0] = (y[0] + 1) % 3
    elif part == "test":
        test.x[0, 0] += 1
    data[1] = SiteData.of_arrays(old.name, Split(x, y), None if part == "no test" else test)
    with pytest.raises(DataError, match="client 1 holds other data than when the run began"):
        over_sites(one, tmp_path / "far", Memory(data, tmp_path / "sites"), resume=True, clients=3)


def test_a_site_that_was_away_and_comes_back_with_other_data_is_refused_by_name(tmp_path: Path) -> None:
    one = sites_experiment(**FIELDS, training__rounds=4)
    carrier = Memory(three(), tmp_path / "sites")

    def lost(client: int, round: int) -> bool:
        if round == 2:
            carrier.halves[2].data = own_data(7)
        return client == 2 and round == 2

    carrier.lost = lost
    run = over_sites(one, tmp_path / "far", carrier, clients=3)
    assert [r.clients for r in run.history.rounds] == [3, 2, 2, 2]


# ------------------------------------------------------------------------------------------------- where data come from


def test_arrays_from_a_file(tmp_path: Path) -> None:
    own, test = own_data(0, 12).train, own_data(1, 5).train
    found = read(str(npz(tmp_path / "mine.npz", own)), 0, npz(tmp_path / "test.npz", test))
    assert (found.name, len(found.train), found.classes) == ("mine.npz", 12, 3)
    assert np.array_equal(found.train.x, own.x)
    assert found.test is not None
    assert np.array_equal(found.test.y, test.y)
    assert found.digest != read(str(tmp_path / "mine.npz"), 0).digest
    assert found.common is None


def test_real_targets_from_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2)), y=np.array([0.5, -1.5, 2.0, 7.25]))
    with pytest.raises(InputError, match=r"mine\.npz\.y must be whole numbers from 0"):
        read(str(tmp_path / "mine.npz"), 0)
    found = read(str(tmp_path / "mine.npz"), 0, targets="real")
    assert (found.classes, found.train.y.tolist()) == (0, [0.5, -1.5, 2.0, 7.25])
    with pytest.raises(InputError, match="targets must be 'labels' or 'real', got 'reals'"):
        read(str(tmp_path / "mine.npz"), 0, targets="reals")


def test_test_samples_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "mine.npz", own_data(0).train)
    with pytest.raises(DataError, match=r"the test inputs of mine\.npz are not like those that it trains on"):
        read(str(path), 0, npz(tmp_path / "test.npz", own_data(0, features=5).train))


FUNCTIONS = """\
import numpy as np
x, y = np.ones((6, 3)), np.arange(6) % 2
def two(): return x, y
def four(): return [x, y, x[:2], y[:2]]
def three(): return x, y, x
def none(): pass
def ragged(): return [[1, 2], [3]], y
def breaks(): raise KeyError("no such table")
number = 5
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "site_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "site_functions", raising=False)
    return "site_functions"


def test_arrays_from_a_function(own_module: str) -> None:
    assert read(f"{own_module}:two", 0).test is None
    found = read(f"{own_module}:four", 0)
    assert found.test is not None
    assert (len(found.train), len(found.test), found.classes) == (6, 2, 2)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{}:three", "must return x and y, or x, y, x_test and y_test, got"),
        ("{}:none", "must return x and y, or x, y, x_test and y_test, got None"),
        ("{}:ragged", "samples all have the same shape"),
        ("{}:missing", "cannot be imported: .*has no attribute 'missing'"),
        ("{}:number", "'site_functions:number' must be a function, got 5"),
        ("{}:breaks", "'site_functions:breaks' raised KeyError: 'no such table'"),
        ("no_such_module_at_all:f", "cannot be imported: No module named"),
        (":f", "cannot be imported"),
        ("..x:f", "cannot be imported"),
        ("nonsense", r"--data must be an experiment \(experiment.toml\), arrays"),
        ("", "--data must be"),
        ("missing.npz", "missing.npz"),
        ("missing.toml", "there is no experiment file missing.toml"),
    ],
)
def test_sources_that_cannot_be_used_are_told_of_in_a_sentence(source: str, sentence: str, own_module: str) -> None:
    with pytest.raises(FedkeelError, match=sentence):
        read(source.format(own_module), 0)


def test_test_samples_beside_what_has_its_own_are_refused(own_module: str, tmp_path: Path) -> None:
    for source in (f"{own_module}:two", "experiment.toml"):
        with pytest.raises(InputError, match="--test must be absent beside"):
            read(source, 0, tmp_path / "test.npz")


def test_the_share_of_an_experiment(tmp_path: Path) -> None:
    one = experiment(data__client_test=0.25, data__validation=0.2)
    path = tmp_path / "experiment.toml"
    path.write_text(config.dump(one))
    for client, share in enumerate(shares(one)):
        found = read(str(path), client)
        assert found.digest == share.digest
        assert found.test is not None
        assert found.common is not None
    assert len({share.digest for share in shares(one)}) == 5
    with pytest.raises(DataError, match=r"client 5 has no share: synthetic_feddyn is dealt to 5 clients, 0 to 4\."):
        read(str(path), 5)


def test_a_sweep_has_one_share_only_if_it_deals_once(tmp_path: Path) -> None:
    text = config.dump(experiment())
    path = tmp_path / "experiment.toml"
    path.write_text(text + '\n[sweep]\n"algorithm.name" = ["fedavg", "scaffold"]\n')
    assert read(str(path), 0).digest == shares(experiment())[0].digest
    path.write_text(text + "\n[sweep]\nseed = [0, 1]\n")
    with pytest.raises(InputError, match="is a sweep over data, partitions or seeds; a site has one share"):
        read(str(path), 0)


def test_shares_dealt_for_sites_that_hold_something_else(tmp_path: Path) -> None:
    """A share as data of its own: without the experiment's partition, sites say ``sites`` and bring what they have."""
    one = experiment("scaffold")
    data = shares(one)
    run = over_sites(sites_experiment("scaffold"), tmp_path / "far", Memory(data, tmp_path / "sites"))
    near = simulated(one, tmp_path / "near")
    assert set(apart(near, run)) <= {"evaluations"}
