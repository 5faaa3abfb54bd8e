"""The virtual clock: times by hand, who is heard, and one history whatever computes it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.algorithms.contract import Message, State
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.check import rounds as after
from fedkeel.check import tiny_simulation
from fedkeel.engine.clock import Clock, Presence, make_devices, takes_stale_uploads
from fedkeel.engine.pool import Pool
from fedkeel.engine.settings import Faults
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.timing import ClockError
from fedkeel.errors import DataError, InputError
from tests.algorithms import quadratic
from tests.engine.test_faults import assert_same_bits, assert_same_value, played

FOUR = ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (1.0, 4.0))
"""Clients with h = 1 and b = 1 … 4: a step of rate η moves a coordinate by η(b − x)."""


def devices(folder: Path, *speeds: float, up: float = 8.0, down: float = 8.0) -> str:
    """A file in which client i has the i-th speed; 8 Mbit/s are a million bytes a second."""
    rows = [f"{client},{speed},{up},{down}" for client, speed in enumerate(speeds)]
    path = folder / "devices.csv"
    path.write_text("\n".join(["client,speed,up,down", *rows]) + "\n", encoding="utf-8")
    return str(path)


def sessions(folder: Path, *spans: tuple[int, float, float]) -> str:
    path = folder / "sessions.csv"
    path.write_text("client,start,end\n" + "".join(f"{c},{a},{b}\n" for c, a, b in spans), encoding="utf-8")
    return str(path)


def four(clock: Clock, name: str = "fedavg", **training: Any) -> Simulation:
    """The four clients with one sample each, two steps a round."""
    return quadratic.simulation(make_algorithm(name), FOUR, clock=clock, **({"steps": 2, "lr": 0.5} | training))


def times(simulation: Simulation, count: int) -> list[float]:
    _, records = played(simulation, count)
    return [float(record.noted["clock.time"]) for record in records]  # type: ignore[arg-type]


def test_a_round_lasts_as_long_as_its_slowest_client(tmp_path: Path) -> None:
    """Two steps of one sample at 1, 2, 4 and 8 samples a second take 2, 1, ½ and ¼ s. A model of two doubles is 16
    bytes, there and back at 10^6 bytes a second 32 µs; latency ½ s each way. So each answer takes 1.000032 s more."""
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8), latency=0.5)
    _, (record,) = played(four(clock), 1)
    spent = record.noted["clock.seconds"]
    assert spent == pytest.approx({0: 3.000032, 1: 2.000032, 2: 1.500032, 3: 1.250032})
    assert record.noted["clock.time"] == pytest.approx(3.000032)
    assert times(four(clock), 3) == pytest.approx([3.000032, 6.000064, 9.000096])


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls.needs <= {"full"}])
def test_a_clock_that_waits_for_all_changes_no_bit(name: str) -> None:
    algorithm = make_algorithm(name, **({"P": 1} if name == "fedreg" else {}))
    clock = Clock(speed=10.0, speed_sigma=1.0, up=1.0, down=1.0, jitter=0.3)
    plain, timed = (after(tiny_simulation(algorithm, clock=c), 3) for c in (None, clock))
    assert_same_bits(plain, timed)
    assert timed.clock.now > 0


def test_a_deadline_drops_who_is_late(tmp_path: Path) -> None:
    """Answers after 2, 1, ½ and ¼ s; with a deadline of 0.9 s clients 2 and 3 are heard. Two steps of rate ½ from 0
    bring them to 3·¾ and 4·¾, the mean is 2.625. The round lasts until the deadline, and late uploads travel in vain:
    four in all."""
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), deadline=0.9)
    state, (record,) = played(four(clock), 1)
    assert record.cohort == (2, 3)
    assert [(fault.client, fault.kind) for fault in record.faults] == [(0, "late"), (1, "late")]
    assert state.server.w.tolist() == pytest.approx([2.625, 2.625])
    assert record.noted["clock.time"] == pytest.approx(0.9)
    assert record.bytes_up == 4 * 16


def test_partial_work_takes_the_steps_that_fit(tmp_path: Path) -> None:
    """With 1.1 s, client 0 (a sample a second) fits one step of two; the others both. Client 0 ends at ½·1."""
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), deadline=1.1, late="partial")
    state, (record,) = played(four(clock), 1)
    assert record.cohort == (0, 1, 2, 3)
    assert record.steps == (1, 2, 2, 2)
    assert [(fault.client, fault.kind, fault.detail) for fault in record.faults] == [(0, "straggler", "1 of 2 steps")]
    assert state.server.w.tolist() == pytest.approx([(0.5 + 0.75 * (2 + 3 + 4)) / 4] * 2)
    assert record.noted["clock.time"] == pytest.approx(1.0)


def test_who_cannot_take_one_step_by_the_deadline_is_late(tmp_path: Path) -> None:
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), deadline=0.3, late="partial")
    _, (record,) = played(four(clock), 1)
    assert record.cohort == (2, 3)
    assert record.steps == (1, 2)
    kinds = {fault.client: fault.kind for fault in record.faults}
    assert kinds == {0: "late", 1: "late", 2: "straggler"}


def test_a_round_that_nobody_makes_leaves_the_model_alone(tmp_path: Path) -> None:
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8), deadline=0.1)
    state, (record,) = played(four(clock), 1)
    assert record.cohort == ()
    assert state.server.w.tolist() == [0.0, 0.0]
    assert record.noted == {"clock.time": pytest.approx(0.1)}
    assert state.clock.now == pytest.approx(0.1)


def test_over_selection_closes_without_the_last(tmp_path: Path) -> None:
    """Half of four clients are needed, twice as many are called: 2 and 3 are heard, after ½ s."""
    clock = Clock(devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), over_select=1.0)
    _, (record,) = played(four(clock, participation=0.5), 1)
    assert record.cohort == (2, 3)
    assert record.noted["clock.time"] == pytest.approx(0.5)
    assert {fault.client: fault.kind for fault in record.faults} == {0: "late", 1: "late"}


def test_a_client_that_goes_offline_is_not_heard(tmp_path: Path) -> None:
    """Client 0 needs 2 s and is online for 1.5 s: the round ends when it leaves. Nobody but client 3 is online then."""
    spans = [(0, 0, 1.5), (1, 0, 1.2), (2, 0, 1.0), (3, 0, 100.0)]
    clock = Clock(
        devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), sessions=sessions(tmp_path, *spans), period=100.0
    )
    _, records = played(four(clock), 2)
    assert records[0].cohort == (1, 2, 3)
    assert [(fault.client, fault.kind) for fault in records[0].faults] == [(0, "dropout")]
    assert records[0].noted["clock.time"] == pytest.approx(1.5)
    assert records[1].cohort == (3,)
    assert records[1].noted["clock.time"] == pytest.approx(1.75)


def test_the_server_waits_until_somebody_is_online(tmp_path: Path) -> None:
    """All are online from 10 s to 60 s of every 100 s: the first round begins at 10 s."""
    clock = Clock(
        devices=devices(tmp_path, 1, 2, 4, 8, up=1e9, down=1e9), sessions=sessions(tmp_path, (7, 10, 60)), period=100.0
    )
    assert times(four(clock), 1) == pytest.approx([12.0])


def test_presence_by_hand() -> None:
    """Online 10–20 and 90–100 of 100 s, and 0–5, which follows on 90–100."""
    presence = Presence(100.0, np.zeros(1, np.int64), np.zeros(1), (np.array([[0, 5], [10, 20], [90, 100.0]]),))
    one = np.array([0])
    online = [bool(presence.online(one, at)[0]) for at in (0, 4.9, 5, 9, 10, 19.9, 20, 89, 90, 99, 104, 105)]
    assert online == [True, True, False, False, True, True, False, False, True, True, True, False]
    assert presence.leaves(0, 12.0) == pytest.approx(20.0)
    assert presence.leaves(0, 95.0) == pytest.approx(105.0)
    assert [presence.leaves(0, at) for at in (7.0, 50.0)] == [7.0, 50.0]  # who is called all the same leaves at once
    assert presence.next_online(6.0) == pytest.approx(10.0)
    assert presence.next_online(95.0) == pytest.approx(95.0)
    always = Presence(100.0, np.zeros(1, np.int64), np.zeros(1), (np.array([[0, 100.0]]),))
    assert always.leaves(0, 42.0) == float("inf")


def test_availability_is_the_share_of_clients_online() -> None:
    found = make_devices(Clock(speed=1.0, availability=0.3, period=1000.0), 20_000, seed=3)
    assert found.presence is not None
    for at in (0.0, 777.0, 12_345.0):
        assert found.presence.online(np.arange(20_000), at).mean() == pytest.approx(0.3, abs=0.015)


def test_a_clients_device_does_not_depend_on_how_many_others_there_are() -> None:
    clock = Clock(speed=5.0, speed_sigma=1.0, up=1.0, line_sigma=0.5, availability=0.5)
    few, many = make_devices(clock, 10, seed=1), make_devices(clock, 1000, seed=1)
    assert np.array_equal(few.speed, many.speed[:10])
    assert np.array_equal(few.up, many.up[:10])
    assert few.presence is not None
    assert many.presence is not None
    assert np.array_equal(few.presence.shift, many.presence.shift[:10])
    assert np.log(many.speed / 5).std() == pytest.approx(1.0, abs=0.1)


def test_failures_come_as_often_as_asked() -> None:
    found = make_devices(Clock(speed=1.0, failure=0.25), 1, seed=0)
    falls = [found.fails_after(0, round) for round in range(2000)]
    assert np.isfinite(falls).mean() == pytest.approx(0.25, abs=0.03)
    assert all(0 <= share < 1 for share in falls if np.isfinite(share))


def test_draws_are_of_those_online_and_not_busy() -> None:
    found = make_devices(Clock(speed=1.0, availability=0.5), 100, seed=0)
    assert found.presence is not None
    online = set(np.flatnonzero(found.presence.online(np.arange(100), 5.0)).tolist())
    rng = np.random.default_rng(0)
    drawn = found.draw(100, 5.0, rng, but=range(50))
    assert set(drawn) == {client for client in online if client >= 50}
    assert len(found.draw(3, 5.0, rng)) == 3


def test_work_counts_gradients(tmp_path: Path) -> None:
    """GradMA-W computes three gradients a step, MimeLite one more pass over its sample."""
    clock = Clock(devices=devices(tmp_path, 1, 1, 1, 1, up=1e9, down=1e9))
    found = {name: times(four(clock, name), 1)[0] for name in ("fedavg", "gradma_w", "mimelite", "fedveca")}
    assert found["fedavg"] == pytest.approx(2.0)
    assert found["gradma_w"] == pytest.approx(6.0)
    assert found["mimelite"] == pytest.approx(3.0)


def test_fedveca_pays_for_its_steps(tmp_path: Path) -> None:
    """τ is 10 in the first round, whatever training.steps says: 10 steps of two gradients, a pass for ∇F_i(w) and a
    forward pass for F_i(y)."""
    clock = Clock(devices=devices(tmp_path, 1, 1, 1, 1, up=1e9, down=1e9))
    assert times(four(clock, "fedveca"), 1) == pytest.approx([20 + 4 / 3])


def test_buffered_steps_by_hand(tmp_path: Path) -> None:
    """Three of four clients at work, one step (η = ½) of one sample, buffer of one, a = ½; answers take 1, 2.3, 4.1 and
    7.7 s. Whoever is called first, a client's own time decides when it is heard; moves are ½(b − w_given), and count
    for (1 + s)^−½, where s is the number of others heard since it was called."""
    spends = (1, 2.3, 4.1, 7.7)
    clock = Clock(devices=devices(tmp_path, *(1 / s for s in spends), up=1e12, down=1e12), mode="buffered", buffer=1)
    simulation = four(clock, steps=1, participation=0.75)
    state, w = simulation.start(), [0.0]
    heard_at: list[tuple[float, int]] = []
    for t in range(12):
        state, record = simulation.step(state)
        (client,) = record.cohort
        (stale,) = record.noted["clock.staleness"].values()  # type: ignore[union-attr]
        (spent,) = record.noted["clock.seconds"].values()  # type: ignore[union-attr]
        assert spent == pytest.approx(spends[client])
        given = w[t - int(stale)]
        w.append(w[-1] + (1 + stale) ** -0.5 * 0.5 * (FOUR[client][1] - given))
        assert state.server.w.tolist() == pytest.approx([w[-1]] * 2)
        heard_at.append((float(record.noted["clock.time"]), client))  # type: ignore[arg-type]
        begun = heard_at[-1][0] - spent
        missed = [one for one in heard_at[:-1] if one[0] > begun + 1e-9]
        assert stale == len(missed)
    assert [at for at, _ in heard_at] == sorted(at for at, _ in heard_at)
    assert max(client for _, client in heard_at) == 3


def test_a_full_buffer_of_equals_is_a_synchronous_round() -> None:
    """All clients alike, all at work, and a step when all have answered: nobody is stale, and the bits are the same."""
    plain = after(tiny_simulation(FedAvg(), (10,) * 5), 3)
    clock = Clock(speed=1.0, mode="buffered", buffer=5)
    stepped = after(tiny_simulation(FedAvg(), (10,) * 5, clock=clock), 3)
    assert torch.equal(plain.server.w, stepped.server.w)


def test_bytes_down_are_counted_by_call() -> None:
    """Four of five clients are called at once, then two for the two that were heard."""
    clock = Clock(speed=1.0, speed_sigma=1.0, mode="buffered", buffer=2)
    simulation = tiny_simulation(FedAvg(), clock=clock, participation=0.8)
    d = simulation.task.d * simulation.task.w0.element_size()
    _, records = played(simulation, 3)
    assert [record.bytes_down // d for record in records] == [5, 2, 2]
    assert [record.bytes_up // d for record in records] == [2, 2, 2]


@pytest.mark.parametrize("mode", [{}, {"mode": "buffered", "buffer": 3}], ids=["synchronous", "buffered"])
def test_uploads_that_arrive_twice_are_sent_twice_and_count_once(mode: dict[str, Any]) -> None:
    clock = Clock(speed=20.0, speed_sigma=1.0, **mode)
    plain, twice = (tiny_simulation(FedAvg(), clock=clock, faults=Faults(duplicates=d)) for d in (0.0, 1.0))
    (one, (record, *_)), (two, (other, *_)) = played(plain, 3), played(twice, 3)
    assert_same_bits(one, two)
    assert other.bytes_up == 2 * record.bytes_up
    assert {fault.kind for fault in other.faults} == {"duplicate"}


def test_weighing_an_upload_leaves_everybodys_random_numbers_alone() -> None:
    """A model that draws is trained for a step to see what it uploads; torch's own generator goes on as before."""
    fed = fk.data.load("mnist5k").take(40).partition("iid", clients=2, seed=0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(784, 10))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fk.train("fedavg", model=model, data=fed, rounds=1, steps=1, clock={"speed": 1.0, "up": 1.0}, executor="serial")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("mode", [{}, {"mode": "buffered", "buffer": 3}], ids=["synchronous", "buffered"])
def test_executors_have_one_virtual_history(mode: dict[str, Any]) -> None:
    clock = Clock(speed=20.0, speed_sigma=1.0, up=1.0, availability=0.7, period=50.0, failure=0.1, jitter=0.2, **mode)
    made = [tiny_simulation(FedAvg(), clock=clock, participation=0.8, executor=e) for e in (None, Pool(2))]  # type: ignore[arg-type]
    try:
        (one, seen), (two, again) = (played(simulation, 6) for simulation in made)
    finally:
        made[1].executor.close()
    assert_same_bits(one, two)
    assert [r.noted for r in seen] == [r.noted for r in again]
    assert [r.faults for r in seen] == [r.faults for r in again]


@pytest.mark.parametrize(
    "clock",
    [
        {"availability": 0.6, "period": 40.0, "deadline": 30.0, "late": "partial"},
        {"mode": "buffered", "buffer": 2, "failure": 0.2, "availability": 0.6, "period": 40.0},
    ],
    ids=["synchronous", "buffered"],
)
def test_a_resumed_run_has_the_same_virtual_history(tmp_path: Path, clock: dict[str, Any]) -> None:
    fed = fk.data.load("mnist5k").take(300).partition("iid", clients=10, seed=0)

    def train(folder: str, rounds: int, resume: bool = False) -> fk.Run:
        return fk.train(
            "fedavgm", model="logistic", data=fed, participation=0.5, steps=3, batch_size=10, rounds=rounds,
            clock={"speed": 5.0, "speed_sigma": 1.0, "up": 1.0, "jitter": 0.3, **clock},
            executor="serial", directory=tmp_path / folder, resume=resume,
        )  # fmt: skip

    whole = train("whole", 9)
    train("parts", 2)
    train("parts", 5, resume=True)
    parts = train("parts", 9, resume=True)
    assert_same_bits(whole.state, parts.state)
    assert whole.history.noted == parts.history.noted
    assert whole.history.measured == parts.history.measured
    for name, value in whole.state.clock.items():
        assert_same_value(name, value, parts.state.clock[name])


def test_a_run_goes_on_with_its_own_devices_only(tmp_path: Path) -> None:
    fed = fk.data.load("mnist5k").take(100).partition("iid", clients=2, seed=0)
    clock = {"devices": devices(tmp_path, 1, 2)}
    settings: dict[str, Any] = {"model": "logistic", "data": fed, "steps": 1, "clock": clock, "executor": "serial"}
    fk.train("fedavg", rounds=1, directory=tmp_path / "run", **settings)
    devices(tmp_path, 1, 3)
    with pytest.raises(DataError, match="the devices"):
        fk.train("fedavg", rounds=2, directory=tmp_path / "run", resume=True, **settings)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"deadline": 5.0}, "deadline, which has no effect unless speed or devices"),
        ({"speed": 1.0, "late": "partial"}, "late, which has no effect without deadline"),
        ({"speed": 1.0, "line_sigma": 1.0}, "line_sigma, which has no effect without up or down"),
        ({"speed": 1.0, "period": 5.0}, "period, which has no effect without availability"),
        ({"speed": 1.0, "buffer": 5}, "buffer, which has no effect with mode = 'synchronous'"),
        ({"speed": 1.0, "mode": "buffered"}, "given buffer"),
        ({"speed": 1.0, "mode": "buffered", "buffer": 2, "deadline": 1.0}, "deadline, which has no effect with mode"),
        ({"speed": 1.0, "devices": "x.csv"}, "speed, which has no effect beside devices"),
        ({"devices": "no-such-file.csv"}, "which is not there"),
        ({"speed": 1.0, "mode": "buffered", "buffer": 9}, "at most the 2 clients that train at a time"),
    ],
)
def test_settings_that_say_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    fed = fk.data.load("mnist5k").take(20).partition("iid", clients=2, seed=0)
    with pytest.raises(fk.FedkeelError, match=says):
        fk.train("fedavg", model="logistic", data=fed, rounds=1, steps=1, clock=given)


@pytest.mark.parametrize(
    ("name", "clock", "says"),
    [
        ("scaffold", Clock(speed=1.0, mode="buffered", buffer=2), "any_staleness"),
        ("fedbn", Clock(speed=1.0, mode="buffered", buffer=2), "any_staleness"),
        ("vrlsgd", Clock(speed=1.0, deadline=5.0), "every client in every round"),
    ],
)
def test_algorithms_that_a_clock_would_break_are_refused(name: str, clock: Clock, says: str) -> None:
    with pytest.raises(InputError, match=says):
        tiny_simulation(make_algorithm(name), clock=clock)


def test_faults_that_the_clock_decides_are_refused() -> None:
    with pytest.raises(InputError, match=r"faults\.dropout must be 0 with a clock"):
        tiny_simulation(FedAvg(), clock=Clock(speed=1.0), faults=Faults(dropout=0.1))


class Heavier(FedAvg):
    """Its uploads grow with the rounds."""

    name = "heavier"

    def finish(self, local: Any, y: torch.Tensor) -> tuple[Message, State]:
        return Message(y=y, more=y[:, : local.round.t]), local.client


def test_uploads_that_change_their_size_are_noticed() -> None:
    simulation = tiny_simulation(Heavier(), clock=Clock(speed=1.0, up=1.0))
    with pytest.raises(ClockError, match="weighs"):
        after(simulation, 2)


class ReadsSteps(FedAvg):
    """Says that it takes stale uploads, and reads what only fresh ones have."""

    name = "reads_steps"
    any_staleness = True

    def aggregate(self, server: State, uploads: Any, round: Any) -> State:
        return server.replace(w=server.w + uploads.travel.sum())


def test_an_algorithm_that_claims_too_much_is_told() -> None:
    simulation = tiny_simulation(ReadsSteps(), clock=Clock(speed=1.0, mode="buffered", buffer=2))
    with pytest.raises(InputError, match="must not say any_staleness"):
        after(simulation, 1)


def test_a_class_of_ones_own_says_any_staleness_for_itself() -> None:
    assert takes_stale_uploads(FedAvg)
    assert takes_stale_uploads(ReadsSteps)
    assert not takes_stale_uploads(Heavier)


def test_clients_that_never_stay_end_the_run(tmp_path: Path) -> None:
    clock = Clock(speed=1e-3, availability=0.1, period=10.0, mode="buffered", buffer=1)
    with pytest.raises(ClockError, match="left one after the other"):
        after(tiny_simulation(FedAvg(), clock=clock), 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed,up\n1,2\n", "must have the columns speed, up, down"),
        ("speed,up,down\n1,2\n", "must have 3 numbers"),
        ("speed,up,down\n1,2,nan\n", "finite numbers only"),
        ("speed,up,down\n1,2,0\n", "numbers above 0 only"),
        ("speed,up,down\n", "at least one row"),
        ("", "has none"),
    ],
)
def test_files_of_devices_are_checked(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=says):
        make_devices(Clock(devices=str(path)), 3, 0)


def test_sessions_must_lie_within_a_period(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 ≤ start < end ≤"):
        make_devices(Clock(speed=1.0, sessions=sessions(tmp_path, (0, 10, 200)), period=100.0), 3, 0)
