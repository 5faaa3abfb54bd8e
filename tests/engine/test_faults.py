"""Clients that fail, for every algorithm: absent is absent, twice is once, fewer steps are fewer steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Clients, Message, Problem, Round
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.exchange import Fault
from fedkeel.engine.faults import counted, fate, plan_round, shortened
from fedkeel.engine.pool import Pool
from fedkeel.engine.rounds import RunState
from fedkeel.engine.server import RoundRecord
from fedkeel.engine.settings import Faults
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from fedkeel.state.rows import Rows
from tests.algorithms.quadratic import Attendance

SIZES = (12, 7, 20, 10, 16)
MANY = [name for name, cls in ALGORITHMS.items() if not cls.needs & {"full", "one_client"}]
UNEQUAL = [name for name, cls in ALGORITHMS.items() if "equal_steps" not in cls.needs]


def made(name: str) -> Algorithm:
    """An algorithm with its defaults, but for work that says nothing about faults (FedReg's pseudo data)."""
    return make_algorithm(name, **({"P": 1} if name == "fedreg" else {}))


def with_norm(algorithm: Algorithm, faults: Faults | None = None, **training: Any) -> Simulation:
    """Five clients and a model with BatchNorm, so that buffers are at stake as well."""
    return tiny_simulation(algorithm, SIZES, norm=True, faults=faults, drop_last=True, **training)


def attended(simulation: Simulation, cohorts: Sequence[Sequence[int]]) -> Simulation:
    """The same simulation with cohorts as listed."""
    simulation.schedule = Attendance(simulation.training, cohorts)
    return simulation


def assert_same_bits(one: RunState, two: RunState) -> None:
    """Everything that the next round depends on; NaN, where it means "not known", equals NaN."""
    assert one.t == two.t
    for a, b in ((one.server, two.server), (State(**one.clients), State(**two.clients))):
        assert list(a) == list(b)
        for name in a:
            assert_same_value(name, a[name], b[name])
    assert_same_value("b", one.b, two.b)
    assert_same_value("client_buffers", one.client_buffers, two.client_buffers)


def assert_same_value(name: str, a: Any, b: Any) -> None:
    if isinstance(a, Rows):
        assert set(a) == set(b), name
        for client in a:
            assert torch.equal(a[client], b[client]), f"{name} of client {client}"
    else:
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        assert torch.equal(a.isnan(), b.isnan()), name
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), name


def played(simulation: Simulation, count: int) -> tuple[RunState, list[RoundRecord]]:
    """The state after some rounds, and what they were like."""
    state, seen = simulation.start(), []
    for _ in range(count):
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        state, record = simulation.step(state)
        seen.append(record)
    return state, seen


@pytest.mark.parametrize("name", MANY)
def test_whoever_is_not_heard_was_not_there(name: str) -> None:
    """Dropped, lost and late: model, server, buffers and every client's state are those of a round without them."""
    faults = Faults(dropout=0.2, lost=0.2, late=0.2)
    cohorts = [[i for i in range(5) if fate(faults, 0, t, i).answer == "arrives"] for t in range(3)]
    assert all(cohorts)
    assert sum(map(len, cohorts)) < 12
    faulty = rounds(with_norm(made(name), faults), 3)
    without = rounds(attended(with_norm(made(name)), cohorts), 3)
    assert_same_bits(faulty, without)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_upload_that_arrives_twice_counts_once(name: str) -> None:
    once, (a, _) = played(with_norm(made(name)), 2)
    twice, (b, _) = played(with_norm(made(name), Faults(duplicates=1.0)), 2)
    assert_same_bits(once, twice)
    assert b.bytes_up == 2 * a.bytes_up
    assert b.bytes_down == a.bytes_down


class Told(Algorithm):
    """A mixin whose clients take the steps that a list says, by round and client."""

    told: list[dict[int, int]]
    t = 0

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        self.t = round.t
        return super().broadcast(server, round, clients)

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor:
        return torch.tensor([self.told[self.t][client] for client in clients.ids])


@pytest.mark.parametrize("name", UNEQUAL)
def test_a_straggler_is_a_client_with_fewer_steps(name: str) -> None:
    slow, seen = played(with_norm(made(name), Faults(stragglers=0.5, straggler_share=(0.2, 0.9))), 2)
    cls = type(f"Told{name}", (Told, ALGORITHMS[name]), {})
    algorithm = cls(made(name).params)
    algorithm.told = [dict(zip(record.cohort, record.steps, strict=True)) for record in seen]
    stragglers = [(record.t, fault) for record in seen for fault in record.faults]
    assert stragglers
    for t, fault in stragglers:
        assert fault.detail.startswith(f"{algorithm.told[t - 1][fault.client]} of ")
    assert_same_bits(slow, rounds(with_norm(algorithm), 2))


def test_stragglers_take_the_whole_steps_within_their_share_and_at_least_one() -> None:
    assert [shortened(10, share) for share in (0.05, 0.19, 0.2, 0.99, 1.0)] == [1, 1, 2, 9, 10]
    assert shortened(0, 0.5) == 0  # MIFA's program lets clients show up without a step
    plan = plan_round(Faults(stragglers=1.0, straggler_share=(0.5, 0.5)), 0, 0, (4, 7), torch.tensor([9, 1]))
    assert plan.steps.tolist() == [4, 1]
    assert plan.faults == (Fault(4, "straggler", "4 of 9 steps"),)


@pytest.mark.parametrize("name", [*MANY, "centralised"])
def test_a_round_that_nobody_answers_changes_nothing(name: str) -> None:
    simulation = with_norm(made(name))
    before = rounds(simulation, 2)
    if simulation.algorithm.observes:
        before = simulation.observe(before, simulation.feedback(before))
    job = simulation.job(before)
    one = simulation.executor.run(job.take([0]))
    silent = with_norm(made(name), Faults(lost=0.999999))
    after, record = silent.step(before)
    assert_same_bits(RunState(3, before.server, before.b, before.clients, before.client_buffers), after)
    assert (record.cohort, record.steps, record.samples) == ((), (), 0)
    assert {fault.kind for fault in record.faults} == {"lost"}
    weight = sum(4 if v.dim() == 1 else v.numel() * v.element_size() for v in one.message.values())
    buffers = 0 if name == "fedbn" else 11 * 8
    assert record.bytes_up == len(job.clients.ids) * (weight + buffers)


def test_a_round_that_nobody_answers_is_recorded(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(make_algorithm("fedavg"), faults=Faults(dropout=0.999999), rounds=2)
    execute(simulation, Evaluation(), store)
    first, second = store.history().rounds
    store.close()
    assert (first.clients, first.samples, first.bytes_up) == (0, 0, 0)
    assert second.bytes_down == first.bytes_down == 5 * simulation.task.d * 8


def test_what_travelled_is_counted() -> None:
    """All five get the model; a dropped client sends nothing, a lost or late one once, a doubled one twice."""
    faults = Faults(dropout=0.2, lost=0.2, late=0.1, duplicates=0.4)
    simulation = tiny_simulation(make_algorithm("fedavg"), faults=faults)
    kinds = set()
    for record in played(simulation, 6)[1]:
        count = {kind: sum(f.kind == kind for f in record.faults) for kind in ("dropout", "lost", "late", "duplicate")}
        kinds |= {kind for kind, n in count.items() if n}
        sent = 5 - count["dropout"] + count["duplicate"]
        assert len(record.cohort) == 5 - count["dropout"] - count["lost"] - count["late"]
        assert (record.bytes_down, record.bytes_up) == (5 * simulation.task.d * 8, sent * simulation.task.d * 8)
    assert len(kinds) == 4


def test_uploads_count_in_the_order_of_the_cohort() -> None:
    assert counted((3, 0, 2, 0, 3)) == [0, 2, 3]


def test_frequencies_are_those_asked_for() -> None:
    """20 rounds of 100 clients: 0.1 drop out, 0.2 of the rest lose, 0.3 of that rest are late; ±3σ is under 0.04."""
    faults = Faults(dropout=0.1, lost=0.2, late=0.3, stragglers=0.4, duplicates=0.5)
    fates = [fate(faults, 1, t, i) for t in range(20) for i in range(100)]
    share = {kind: sum(f.answer == kind for f in fates) / 2000 for kind in ("dropout", "lost", "late", "arrives")}
    assert share == pytest.approx({"dropout": 0.1, "lost": 0.18, "late": 0.216, "arrives": 0.504}, abs=0.04)
    heard = [f for f in fates if f.answer == "arrives"]
    shares = [f.share for f in heard if f.share < 1]
    assert len(shares) / len(heard) == pytest.approx(0.4, abs=0.05)
    assert min(shares) == pytest.approx(0.2, abs=0.02)
    assert max(shares) == pytest.approx(0.8, abs=0.02)
    assert sum(f.twice for f in heard) / len(heard) == pytest.approx(0.5, abs=0.05)


def test_one_probability_does_not_change_another_draw() -> None:
    """Who straggles stays the same when uploads also get lost, so that settings can be compared one by one."""
    alone = Faults(stragglers=0.5)
    both = Faults(stragglers=0.5, lost=0.3)
    for client in range(50):
        a, b = fate(alone, 3, 7, client), fate(both, 3, 7, client)
        assert b.answer == "lost" or a == b


FAULTS = Faults(dropout=0.15, lost=0.15, late=0.1, stragglers=0.4, duplicates=0.3)


@pytest.mark.parametrize("name", ["feddc", "fedveca", "gradma"])
def test_worker_processes_meet_the_same_faults(name: str) -> None:
    simulation = with_norm(made(name), FAULTS, participation=0.8)
    serial = rounds(simulation, 4)
    simulation.executor = Pool(workers=2)
    try:
        assert_same_bits(serial, rounds(simulation, 4))
    finally:
        simulation.executor.close()


@pytest.mark.parametrize("name", ["scaffold", "mifa", "fedbn"])
def test_a_resumed_run_meets_the_same_faults(name: str, tmp_path: Path) -> None:
    whole, _ = execute(with_norm(made(name), FAULTS, rounds=6), Evaluation())
    store = Store.create(tmp_path)
    execute(with_norm(made(name), FAULTS, rounds=6), Evaluation(), store, stop=lambda: store.rounds_done() == 2)
    state = store.read_state()
    resumed, _ = execute(with_norm(made(name), FAULTS, rounds=6), Evaluation(), store, state=state)
    store.close()
    assert_same_bits(whole, resumed)


def test_the_store_remembers_what_went_wrong(tmp_path: Path) -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"), faults=Faults(lost=0.5))
    expected, state = [], simulation.start()
    for t in range(1, 5):
        state, record = simulation.step(state)
        expected += [(t, fault.kind, f"client {fault.client}") for fault in record.faults]
    assert expected
    store = Store.create(tmp_path)
    execute(tiny_simulation(make_algorithm("fedavg"), faults=Faults(lost=0.5)), Evaluation(), store)
    assert [(e.round, e.kind, e.text) for e in store.events() if e.kind == "lost"] == expected
    store.close()


def test_buffers_that_stay_with_clients_stay_as_they_were() -> None:
    """A lost client's BatchNorm statistics are those of its last upload that counted, or none at all."""
    faults = Faults(lost=0.4)
    simulation = with_norm(make_algorithm("fedavg"), faults, buffers="local")
    state, record = simulation.step(simulation.start())
    lost = {fault.client for fault in record.faults}
    assert lost
    assert set(state.client_buffers) == set(range(5)) - lost


def test_mifa_fills_its_table_although_some_do_not_answer() -> None:
    """With ``wait`` and the program's extra round the first step waits for all five, however many rounds it takes."""
    simulation = tiny_simulation(make_algorithm("mifa", mode="code", wait=True), faults=Faults(lost=0.5))
    state, sizes = simulation.start(), []
    while len(state.server.U) < 5:
        assert torch.equal(state.server.w, simulation.task.w0)
        state, _ = simulation.step(state)
        sizes.append(len(state.server.U))
    assert 0 < min(size for size in sizes if size) < 5
    state, record = simulation.step(state)
    assert record.cohort
    assert not torch.equal(state.server.w, simulation.task.w0)


@pytest.mark.parametrize(
    ("field", "need"),
    [
        ({"dropout": 0.1}, "faults.dropout must be 0 with vrlsgd, which needs every client in every round, got 0.1"),
        ({"lost": 0.1}, "faults.lost must be 0 with vrlsgd"),
        ({"late": 0.1}, "faults.late must be 0 with vrlsgd"),
        ({"stragglers": 0.1}, "faults.stragglers must be 0 with vrlsgd, which needs the same number of steps"),
        ({"bad_update": "skip-client"}, "faults.bad_update must be 'stop' with vrlsgd"),
    ],
)
def test_what_would_be_quietly_wrong_is_refused(field: dict[str, Any], need: str) -> None:
    with pytest.raises(InputError, match=need):
        tiny_simulation(make_algorithm("vrlsgd"), faults=Faults(**field))
