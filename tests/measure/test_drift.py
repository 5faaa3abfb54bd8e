"""Drift while a run goes on: by hand on quadratics, and without a trace in the run itself."""

import math
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel import api, config
from fedkeel.algorithms.advanced import Controls
from fedkeel.algorithms.contract import Algorithm, Local
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.scaffold import Scaffold
from fedkeel.algorithms.state import State
from fedkeel.check import tiny_simulation
from fedkeel.data import Federation
from fedkeel.engine.exchange import Fault
from fedkeel.engine.names import Noted
from fedkeel.engine.rounds import Rounds
from fedkeel.engine.settings import Faults
from fedkeel.errors import InputError
from fedkeel.learning.correction import Correction
from fedkeel.learning.layout import Layout
from fedkeel.measure.drift import DriftWatch, MeasureError, angle, of_uploads
from fedkeel.measure.settings import Measuring
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.history import History
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from tests.algorithms.quadratic import Point
from tests.algorithms.quadratic import simulation as quadratics
from tests.engine.far_side import CASES, SIZES, near_and_far
from tests.runs.test_exact_resume import everything, timeless


def measured(simulation: Rounds, **settings: Any) -> tuple[Any, History]:
    """The run with drift measured in every round, or as asked."""
    return execute(simulation, Evaluation(), look=DriftWatch(simulation, Measuring(**({"every": 1} | settings))))


def noted_by_the_algorithm(history: History) -> dict[int, dict[str, Noted]]:
    own = {t: {k: v for k, v in noted.items() if not k.startswith("measure.")} for t, noted in history.noted.items()}
    return {t: noted for t, noted in own.items() if noted}


# -- By hand


def gammas(clients: Sequence[tuple[float, float]], sizes: Sequence[int] | None = None) -> tuple[float, ...]:
    """Γ with its numerator and denominator before round 1, at x = 0."""
    _, history = measured(quadratics(FedAvg(), clients, sizes, rounds=1, lr=0.1))
    names = ("measure.gamma", "measure.gamma_numerator", "measure.gamma_denominator")
    found = [history.values(name)[1] for name in names]
    return tuple(one for one in found if isinstance(one, float))


def test_equal_clients_do_not_drift() -> None:
    """g_i = (−2, −2) everywhere: Σ p‖g‖² = ‖Σ p g‖² = 8, Γ = 1."""
    assert gammas([(2, 1)] * 3) == pytest.approx((1, 8, 8))


def test_drift_degree_of_two_quadratics() -> None:
    """At 0 the gradients −h b are (−1, −1) and (2, 2): (2 + 8)/2 = 5; the mean (½, ½) has ½; Γ = √10."""
    assert gammas([(1, 1), (2, -1)]) == pytest.approx((math.sqrt(10), 5, 0.5))


def test_drift_degree_weighs_clients_by_samples() -> None:
    """The same with 3 samples and 1: (3·2 + 8)/4 = 3.5; the mean (−3 + 2)/4 twice has 2/16; Γ = √28."""
    assert gammas([(1, 1), (2, -1)], [3, 1]) == pytest.approx((math.sqrt(28), 3.5, 0.125))


def test_drift_degree_at_a_stationary_point_is_cut() -> None:
    """(−1, −1) and (1, 1) cancel: numerator 2, denominator 0; not ∞, but √(1/10⁻¹²)."""
    assert gammas([(1, 1), (1, -1)]) == pytest.approx((1e6, 2, 0))


def test_where_all_gradients_are_0_there_is_no_degree() -> None:
    gamma, numerator, denominator = gammas([(1, 0), (2, 0)])
    assert math.isnan(gamma)
    assert (numerator, denominator) == (0, 0)


def test_control_variates_and_variances_by_hand() -> None:
    """SCAFFOLD, option I, one step of η = ½; F_i = (x − b_i)²/2 with b = 3, −1; so g_i(x) = x − b_i, c_i = g_i(0).

    Round 1 from x = 0: c_i = 0, an error of 1. g = −3, 1 with mean −1: 4 in each of two coordinates, before and after.
    Round 2 from x = ½ (3 − 1)/2 = ½: g = −2.5, 1.5 and c_i = −3, 1: error √((0.25 + 0.25)/(6.25 + 2.25)) = 1/√17.
    Still g varies by 8; but c = −1, so q = g − c_i + c is −½ for both.
    """
    simulation = quadratics(Scaffold(option=1), [(1, 3), (1, -1)], rounds=2, steps=1, lr=0.5)
    _, history = measured(simulation)
    assert history.values("measure.control_error") == pytest.approx({1: 1, 2: 1 / math.sqrt(17)})
    assert history.values("measure.variance_before") == pytest.approx({1: 8, 2: 8})
    assert history.values("measure.variance_after") == pytest.approx({1: 8, 2: 0}, abs=1e-12)


def test_control_variates_of_some_layers_are_compared_there() -> None:
    """FedPVR has c_i for the second coordinate only, whose gradients are those of the first: nothing changes."""
    _, history = measured(
        quadratics(make_algorithm("fedpvr"), [(1, 3), (1, -1)], rounds=2, steps=1, lr=0.5), clients=None
    )
    assert history.values("measure.control_error") == pytest.approx({1: 1, 2: 1 / math.sqrt(17)})
    # The first coordinate is not corrected, and keeps half of the variance.
    assert history.values("measure.variance_after") == pytest.approx({1: 8, 2: 4})


def test_a_pull_towards_the_global_model_is_nothing_there() -> None:
    _, history = measured(quadratics(make_algorithm("fedprox", mu=5.0), [(1, 3), (1, -1)], rounds=1, lr=0.1))
    assert history.values("measure.variance_before") == history.values("measure.variance_after") == {1: 8.0}


def test_fedavg_has_nothing_to_correct() -> None:
    _, history = measured(quadratics(FedAvg(), [(1, 3), (1, -1)], rounds=1, lr=0.1))
    assert not {"measure.variance_before", "measure.variance_after", "measure.control_error"} & set(history.names)


def test_orthogonal_updates() -> None:
    """(3, 0) and (0, 3) from (1, 1): the mean (1.5, 1.5) is 45° from each; both are 3 long, on average 1.5 a layer."""
    layout = Layout.of_parameters(Point())
    y, w = torch.tensor([[4.0, 1.0], [1.0, 4.0]]), torch.ones(2)
    assert of_uploads((5, 8), y, [w, w], layout) == {
        "angle": pytest.approx(45),
        "angle_of": pytest.approx({5: 45, 8: 45}),
        "distance_of": {5: 3, 8: 3},
        "drift/body.weight": 1.5,
        "drift/head.weight": 1.5,
    }


def test_angles() -> None:
    """Also one of 10⁻⁹ radians, of whose cosine double precision knows nothing."""
    x, y = torch.eye(2, dtype=torch.float64)
    assert [angle(x, 2 * y), angle(x, 3 * x), angle(x, -x)] == pytest.approx([90, 0, 180])
    assert angle(x, x + 1e-9 * y) == pytest.approx(math.degrees(1e-9))
    assert math.isnan(angle(x, 0 * y))


def test_a_client_that_stands_still_has_no_angle() -> None:
    y, w = torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.zeros(2)
    found = of_uploads((0, 1), y, [w, w], Layout.of_parameters(Point()))
    angles = found["angle_of"]
    assert isinstance(angles, dict)
    assert math.isnan(angles[0])
    assert found["angle"] == angles[1] == 0


# -- Without a trace


@pytest.mark.parametrize("name", ALGORITHMS)
def test_looking_changes_no_bit(name: str) -> None:
    def simulation() -> Rounds:
        return tiny_simulation(make_algorithm(name), SIZES, True, participation=0.6, rounds=3, drop_last=True)

    plain, expected = execute(simulation(), Evaluation(clients=True))
    watched = simulation()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedkeelWarning)
        state, history = execute(
            watched, Evaluation(clients=True), look=DriftWatch(watched, Measuring(every=1, clients=1))
        )
    assert everything(state) == everything(plain)
    assert timeless(history) == timeless(expected)
    assert repr(noted_by_the_algorithm(history)) == repr(expected.noted)
    assert set(history.values("measure.gamma")) == {1, 2, 3}


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedbn"}))
def test_distances_are_the_drifts_of_the_round(name: str) -> None:
    """Two ways to the same number; and the parameters' squares add up to it."""
    simulation = tiny_simulation(make_algorithm(name), participation=0.6, rounds=1)
    _, record = simulation.step(simulation.start(), look=DriftWatch(simulation, Measuring(every=1)))
    distances = record.noted["measure.distance_of"]
    assert distances == pytest.approx(dict(zip(record.cohort, record.drifts, strict=True)), rel=1e-5)
    assert isinstance(distances, dict)
    parts = [value for name, value in record.noted.items() if name.startswith("measure.drift/")]
    assert len(parts) == len(simulation.task.layout)
    mean = sum(distances.values()) / len(distances)
    assert max(parts) <= mean + 1e-9  # type: ignore[operator, type-var]
    assert sum(parts) >= mean - 1e-9  # type: ignore[arg-type, operator]


class Noisy(nn.Module):
    """Draws in evaluation mode too, from the generator that everybody shares."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1))
        return out + 0.1 * torch.randn_like(out)


class Drawing(FedAvg):
    """Draws its correction and its control variates."""

    name = "drawing"

    def client_init(self, problem: Any) -> State:
        return State(c=problem.zeros())

    def correction(self, local: Local) -> Correction:
        return Correction(constant=0.01 * torch.randn_like(local.w))

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(torch.randn_like(clients.c))


@pytest.fixture(scope="module")
def federation() -> Federation:
    dealt = fk.data.load("mnist5k").partition("dirichlet", clients=6, alpha=0.3)
    assert isinstance(dealt, Federation)
    return dealt


def train(federation: Federation, algorithm: str | Algorithm = "scaffold", rounds: int = 4, **more: Any) -> api.Run:
    settings: dict[str, Any] = {"model": "logistic", "participation": 0.5, "batch_size": 50, "lr": 0.05}
    return fk.train(algorithm, data=federation, rounds=rounds, **(settings | {"executor": "serial"} | more))


def test_code_that_draws_is_left_where_it_was(federation: Federation) -> None:
    def one(**more: Any) -> api.Run:
        torch.manual_seed(3)
        return train(federation, Drawing(), model=Noisy(), rounds=3, **more)

    plain, watched, again = one(), one(measure={"every": 1}), one(measure={"every": 1})
    assert torch.equal(plain.state.server.w, watched.state.server.w)
    assert timeless(plain.history) == timeless(watched.history)
    assert repr(watched.history.noted) == repr(again.history.noted)


def test_serial_and_pool_measure_the_same(federation: Federation) -> None:
    one, two = (train(federation, executor=e, measure={"every": 1, "clients": 4}) for e in ("serial", "pool"))
    assert torch.equal(one.state.server.w, two.state.server.w)
    assert one.history.noted == two.history.noted
    assert set(one.history.values("measure.control_error")) == {1, 2, 3, 4}


def test_a_resumed_run_measures_the_same(federation: Federation, tmp_path: Path) -> None:
    """Rounds 2 and 4 of 5, with clients drawn anew each time."""
    how: dict[str, Any] = {"rounds": 5, "measure": {"every": 2, "clients": 3}}
    whole = train(federation, **how).history
    for _ in range(4):
        train(federation, **how, directory=tmp_path, resume=True, stop=lambda: True)
    went_on = train(federation, **how, directory=tmp_path, resume=True).history
    with closing(Store.reading(tmp_path)) as store:
        stored = store.history()
    assert set(whole.values("measure.gamma")) == {2, 4}
    assert whole.noted == went_on.noted == stored.noted
    assert "time.measure" in stored.times[2]
    assert "time.measure" not in stored.times[1]


def test_measuring_may_be_changed_on_the_way(federation: Federation, tmp_path: Path) -> None:
    plain = train(federation)
    train(federation, directory=tmp_path, stop=lambda: True)
    went_on = train(federation, directory=tmp_path, resume=True, measure={"every": 1})
    assert torch.equal(went_on.state.server.w, plain.state.server.w)
    assert set(went_on.history.values("measure.gamma")) == {2, 3, 4}


def test_a_sample_of_clients_is_another_one_each_time(federation: Federation) -> None:
    """With no progress (η = 10⁻¹²) Γ over all clients stays as it is; over two of six it goes up and down."""
    everybody, some = (
        train(federation, "fedavg", lr=1e-12, measure={"every": 1, **more}).history.values("measure.gamma")
        for more in ({}, {"clients": 2})
    )
    assert len({round(value, 6) for value in everybody.values() if isinstance(value, float)}) == 1
    assert len(set(map(str, some.values()))) > 1


# -- Where it cannot be had


def test_over_sites_gradients_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    near, far, _ = near_and_far(Scaffold(), CASES["lost, late, twice"], tmp_path)
    here, there = near.start(), far.start()
    looks = DriftWatch(near, Measuring(every=1)), DriftWatch(far, Measuring(every=1))
    with warnings.catch_warnings(record=True) as told:
        for _ in range(3):
            here, mine = near.step(here, look=looks[0])
            there, theirs = far.step(there, look=looks[1])
            gone = {name for name in mine.noted if name.startswith(("measure.gamma", "measure.var", "measure.control"))}
            assert len(gone) == 6
            assert theirs.noted == {name: value for name, value in mine.noted.items() if name not in gone}
    (once,) = [str(warning.message) for warning in told if warning.category is FedkeelWarning]
    assert "their samples are not here: there is no measure.gamma" in once


def test_uploads_without_a_model_are_said_to_be() -> None:
    with pytest.warns(FedkeelWarning, match=r"FedBN do not upload whole models"):
        _, history = measured(tiny_simulation(make_algorithm("fedbn"), SIZES, True, rounds=1, drop_last=True))
    assert history.names == ["measure.gamma", "measure.gamma_numerator", "measure.gamma_denominator"]


def test_only_uploads_that_counted_are_measured() -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"), rounds=6, faults=Faults(dropout=0.5))
    look = DriftWatch(simulation, Measuring(every=1))
    state, gone = simulation.start(), list[Fault]()
    for _ in range(6):
        state, record = simulation.step(state, look=look)
        gone += record.faults
        angles = record.noted.get("measure.angle_of", {})
        assert isinstance(angles, dict)
        assert tuple(angles) == record.cohort
    assert gone


class Crooked(Scaffold):
    name = "crooked"

    def controls(self, server: State, clients: State) -> Controls:
        return Controls(clients.c[:, :-1])


def test_control_variates_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(MeasureError, match=r"crooked\.controls must give a control variate \[K, "):
        measured(tiny_simulation(Crooked(), rounds=1))


def test_settings_without_effect_are_refused(federation: Federation) -> None:
    with pytest.raises(InputError, match="no effect with every = 0"):
        train(federation, measure={"clients": 3})
    with pytest.raises(InputError, match=r"measure\.clients must be at most the 6 clients that there are, got 7"):
        train(federation, measure={"every": 1, "clients": 7})
    with pytest.raises(InputError, match="no effect with every = 0"):
        config.expand({"measure": {"clients": 3}}, [])


def test_an_experiment_asks_for_it(tmp_path: Path) -> None:
    table = {
        "partition": {"clients": 6},
        "model": {"name": "logistic"},
        "training": {"rounds": 2, "batch_size": 50},
        "measure": {"every": 2},
        "run": {"executor": "serial"},
    }
    (experiment,) = config.expand(table, [])
    run = api.run(experiment, tmp_path / "r")
    assert list(run.history.values("measure.gamma")) == [2]
