"""Numbers that go wrong: found where they arise, and kept away from everything that lasts."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Problem, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.api import train
from fedkeel.check import rounds, tiny_simulation
from fedkeel.data import load
from fedkeel.engine.exchange import Fault, Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.settings import Faults
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.soundness import is_finite
from fedkeel.errors import DivergedError
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from fedkeel.state.rows import Rows
from tests.algorithms import quadratic
from tests.engine.test_faults import MANY, assert_same_bits, attended, made, played, with_norm

SKIP = Faults(bad_update="skip-client")


class Poisoner(Serial):
    """In round t, client t mod 5 returns one number that is not finite, in the t-th of the things that it returns."""

    def __init__(self, value: float = math.nan, rounds: range = range(100)) -> None:
        self.value = value
        self.rounds = rounds
        self.poisoned: list[str] = []

    def run(self, job: Job) -> Outcome:
        outcome = super().run(job)
        client = job.round.t % 5
        if job.round.t not in self.rounds or client not in job.clients.ids:
            return outcome
        row = job.clients.ids.index(client)
        parts = [("message", name) for name in outcome.message] + [("states", name) for name in outcome.states]
        parts.append(("buffers", ""))
        owner, name = parts[job.round.t % len(parts)]
        self.poisoned.append(f"{owner}.{name}")
        if owner == "buffers":
            return replace(outcome, buffers=self._spoilt(outcome.buffers, row))
        values = getattr(outcome, owner)
        return replace(outcome, **{owner: values.replace(**{name: self._spoilt(values[name], row)})})

    def _spoilt(self, rows: Tensor, row: int) -> Tensor:
        rows = rows.clone()
        rows[row].view(-1)[-1] = self.value
        return rows


@pytest.mark.parametrize("name", MANY)
def test_a_skipped_client_was_not_there(name: str) -> None:
    """Whatever it returned was spoilt: upload, state or buffers, its round is that of an absent client."""
    poisoner = Poisoner(math.inf if len(name) % 2 else math.nan)
    poisoned = with_norm(made(name), SKIP, steps=2)
    poisoned.executor = poisoner
    job = poisoned.job(poisoned.start())
    values = len(Serial().run(job).message) + len(job.states) + 1
    count = max(2, values)
    cohorts = [[i for i in range(5) if i != t % 5] for t in range(count)]
    after = rounds(poisoned, count)
    assert len(set(poisoner.poisoned)) == values
    assert_same_bits(after, rounds(attended(with_norm(made(name), steps=2), cohorts), count))


def test_a_skipped_client_is_recorded_and_its_traffic_counted() -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"), faults=SKIP, executor=Poisoner(rounds=range(1)))
    _, (record,) = played(simulation, 1)
    assert record.cohort == (1, 2, 3, 4)
    assert record.faults == (Fault(0, "skipped", "a number that is not finite in value y of its upload"),)
    assert record.bytes_up == 5 * simulation.task.d * 8
    assert record.samples == 112


@pytest.mark.parametrize(
    ("t", "what"),
    [
        (0, r"client 0 has a number that is not finite in value y of its upload"),
        (1, r"client 1 has a number that is not finite in value c of its state"),
        (2, r"client 2 has a number that is not finite in the buffers of its model"),
    ],
)
def test_stop_names_client_round_and_value(t: int, what: str) -> None:
    simulation = with_norm(make_algorithm("scaffold"))
    simulation.executor = Poisoner(rounds=range(t, t + 1))
    state = rounds(simulation, t)
    with pytest.raises(DivergedError, match=rf"SCAFFOLD diverged in round {t + 1}: {what}; try a smaller training.lr"):
        simulation.step(state)


def test_the_store_holds_the_last_good_round(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("feddc"), rounds=4, executor=Poisoner(rounds=range(2, 3)))
    with pytest.raises(DivergedError, match="in round 3"):
        execute(simulation, Evaluation(), store)
    state = store.read_state()
    assert state is not None
    assert [r.round for r in store.history().rounds] == [1, 2]
    store.close()
    assert_same_bits(state, rounds(tiny_simulation(make_algorithm("feddc")), 2))


def spread(limit: float | None, policy: str) -> Simulation:
    """Two clients that move from 0 by 0.5·1 and by 0.5·100 in each of two coordinates: norms 0.707 and 70.7."""
    run = quadratic.simulation(make_algorithm("scaffold"), [(1, 1), (1, 100)], lr=0.5, steps=1)
    settings = Faults(bad_update=policy, max_update_norm=limit)
    return Simulation(run.algorithm, run.task, run.federation, run.training, faults=settings)


def test_an_exploding_update_stops_the_run() -> None:
    run = spread(50.0, "stop")
    with pytest.raises(DivergedError, match=r"client 1 has an update of norm 70.7, above faults.max_update_norm = 50;"):
        run.step(run.start())


def test_an_exploding_update_is_skipped() -> None:
    """Only the first client's move counts: w = 0.5, and only it remembers a control variate."""
    run = spread(50.0, "skip-client")
    state, record = run.step(run.start())
    assert state.server.w.tolist() == pytest.approx([0.5, 0.5])
    assert set(state.clients["c"]) == {0}
    assert [(f.client, f.kind) for f in record.faults] == [(1, "skipped")]


def test_an_exploding_update_is_clipped_to_the_limit() -> None:
    """The second moves by 10/√2 in each coordinate: w = (0.5 + 7.0711)/2. What it remembers is that of the clipped
    move, so that the server's c stays the mean of the clients' c_i."""
    run = spread(10.0, "clip")
    states, seen = quadratic.rounds(run, 3)
    assert states[1].server.w.tolist() == pytest.approx([(0.5 + 10 / math.sqrt(2)) / 2] * 2)
    assert max(seen[0].drifts) == pytest.approx(10)
    assert [(f.client, f.kind) for f in seen[0].faults] == [(1, "clipped")]
    for state in states[1:]:
        mean = (state.clients["c"][0] + state.clients["c"][1]) / 2
        assert torch.allclose(state.server.c, mean, atol=1e-14)


def test_an_update_within_the_limit_keeps_its_bits() -> None:
    assert_same_bits(quadratic.rounds(spread(71.0, "clip"), 2)[0][-1], quadratic.rounds(spread(None, "stop"), 2)[0][-1])


def test_what_cannot_be_clipped_is_skipped() -> None:
    """NaN and ∞ have no direction; the others are clipped as usual."""
    faults = Faults(bad_update="clip", max_update_norm=1e-3)
    simulation = tiny_simulation(make_algorithm("fedavg"), faults=faults, executor=Poisoner(rounds=range(1)))
    _, (record,) = played(simulation, 1)
    assert [(f.client, f.kind) for f in record.faults] == [(i, "clipped") for i in (1, 2, 3, 4)] + [(0, "skipped")]
    assert record.drifts == pytest.approx((1e-3,) * 4)


@pytest.mark.parametrize("policy", ["skip-client", "clip"])
def test_a_run_in_which_everybody_is_bad_stops(policy: str) -> None:
    """A step of 1e308·100 is infinite at both clients."""
    run = quadratic.simulation(make_algorithm("fedavg"), [(1, 100), (1, -100)], lr=1e308, steps=1)
    faults = Faults(bad_update=policy, max_update_norm=1.0)
    both = Simulation(run.algorithm, run.task, run.federation, run.training, faults=faults)
    with pytest.raises(DivergedError, match=r"and 1 more of 2 clients are as bad\); try .*training.clip = 10\.$"):
        both.step(both.start())


class Overflows(FedAvg):
    """A server that keeps a vector and a table, one of which overflows in the second round; w stays finite."""

    name = "overflows"
    spoils: Callable[[State], State]

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, v=problem.zeros(), table=Rows())

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        after = super().aggregate(server, uploads, round)
        after = after.replace(table=server.table.put(uploads.clients.ids, uploads.y))
        return after if round.t == 0 else type(self).spoils(after)


@pytest.mark.parametrize(
    ("value", "spoils"),
    [
        ("v", lambda server: server.replace(v=server.v + math.inf)),
        ("table", lambda server: server.replace(table=server.table.put([3], server.w.unsqueeze(0) * math.nan))),
        ("w", lambda server: server.replace(w=server.w / 0)),
    ],
)
def test_a_server_that_is_not_finite_stops_the_run(value: str, spoils: Callable[[State], State]) -> None:
    cls = type("Spoilt", (Overflows,), {"spoils": staticmethod(spoils)})
    simulation = tiny_simulation(cls())
    state = rounds(simulation, 1)
    with pytest.raises(DivergedError, match=rf"in round 2: value {value} of the server is no longer finite"):
        simulation.step(state)


def test_what_may_be_unknown_is_not_an_error() -> None:
    """FedVeca says NaN of clients that were absent."""
    simulation = tiny_simulation(make_algorithm("fedveca"), participation=0.4)
    state = rounds(simulation, 3)
    assert bool(state.server.A.isnan().any())


def test_a_sum_that_overflows_is_not_taken_for_a_bad_number() -> None:
    assert is_finite(torch.tensor([3e38, 3e38]))
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor([2**62, 2**62]))
    for value in (math.nan, math.inf, -math.inf):
        assert not is_finite(torch.tensor([1.0, value, -1.0]))
    assert not is_finite(torch.tensor([math.inf, -math.inf]))


@pytest.mark.parametrize("executor", ["serial", "stacked", "auto"])
@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        (make_algorithm("fedavg"), {"lr": 1e308}),
        (make_algorithm("fedavg"), {"lr": 1e308, "momentum": 0.9}),
        (make_algorithm("fedprox", mu=1e308), {}),
    ],
)
def test_a_factor_that_no_float_can_hold_is_divergence(
    algorithm: FedAvg, training: dict[str, float], executor: str
) -> None:
    data = load("mnist5k").partition("iid", clients=4)
    with pytest.raises(DivergedError, match=r"a rate or parameter is too large .* try a smaller training\.lr"):
        train(algorithm, model="logistic", data=data, rounds=1, executor=executor, **training)
