"""Several clients as one computation: the same numbers up to round-off, for every algorithm and unequal clients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds, tiny_federation, tiny_simulation
from fedkeel.engine import grouping, samples
from fedkeel.engine.choice import Auto, Choice, make_executor, tried
from fedkeel.engine.client import local_of
from fedkeel.engine.executors import Job
from fedkeel.engine.pool import Pool
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.stacking import PaddedBatches, stacked
from fedkeel.learning.task import Task

FEDERATED = [name for name, algorithm in ALGORITHMS.items() if "one_client" not in algorithm.needs]


def assert_close(one: State, two: State) -> None:
    for name, value in one.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, two[name], rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", FEDERATED)
def test_stacked_gives_the_numbers_of_serial(name: str, workers: int) -> None:
    """In float64 the round-off of three rounds is far below 1e-9."""
    serial = rounds(tiny_simulation(make_algorithm(name), participation=0.8), 3)
    simulation = tiny_simulation(make_algorithm(name), participation=0.8)
    simulation.executor = pool = Pool(workers, stack=True)
    try:
        together = rounds(simulation, 3)
    finally:
        pool.close()
    assert_close(serial.server, together.server)
    for table, rows in serial.clients.items():
        assert set(rows) == set(together.clients[table])
        assert_close(
            State(**{str(i): rows[i] for i in rows}), State(**{str(i): together.clients[table][i] for i in rows})
        )


def job_with(sizes: tuple[int, ...], module: nn.Module | None = None, **training: object) -> Job:
    federation = tiny_federation(sizes)
    features = int(np.prod(federation.dataset.input_shape))
    module = module or nn.Linear(features, federation.dataset.classes)
    settings = Training(batch_size=4, **{"epochs": 2, **training})
    simulation = Simulation(make_algorithm("fedavg"), Task(module), federation, settings)
    return simulation.job(simulation.start())


def test_groups_hold_similar_clients_the_longest_first() -> None:
    """Steps 2·⌈n/4⌉ = 20, 4, 18, 14, 2: 20, 18 and 14 lie within a factor 1.5; 4 and 2 do not."""
    job = job_with((40, 8, 36, 28, 4))
    assert grouping.groups(job, workers=1) == [[0, 2, 3], [1], [4]]


def test_groups_are_shared_out_evenly() -> None:
    """Ten equal clients: five each for two workers, one each for ten."""
    job = job_with((8,) * 10)
    assert [len(group) for group in grouping.groups(job, workers=2)] == [5, 5]
    assert [len(group) for group in grouping.groups(job, workers=10)] == [1] * 10


def test_groups_stay_in_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for three models, ten clients and two workers take two turns of two groups, of at most three."""
    job = job_with((8,) * 10)
    monkeypatch.setattr(grouping, "CACHE", 3 * job.task.d * 4)
    assert [len(group) for group in grouping.groups(job, workers=2)] == [3, 3, 3, 1]


def test_a_network_that_cannot_be_stacked_is_computed_client_by_client() -> None:
    features = int(np.prod(tiny_federation((8, 8)).dataset.input_shape))
    job = job_with((8,) * 4, nn.Sequential(nn.Linear(features, 5), nn.GELU(), nn.Linear(5, 10)))
    assert all(len(group) == 1 for group in grouping.groups(job, workers=1))


def test_gathered_batches_are_the_padded_ones() -> None:
    """Clients of 9, 4 and 2 samples in batches of 4: the same samples, weights and activity as copying one by one."""
    job = job_with((9, 4, 2))
    parts = [local_of(job, i).batches for i in range(3)]
    gathered, padded = stacked(parts, torch.float32), PaddedBatches(parts, torch.float32)
    assert len(gathered) == len(padded) == 6
    for one, two in zip(gathered, padded, strict=True):
        assert (one.weight is None) == (two.weight is None)
        assert (one.active is None) == (two.active is None)
        if two.active is not None:
            assert torch.equal(one.active, two.active)
        real = torch.ones_like(one.y, dtype=torch.bool) if two.weight is None else two.weight > 0
        if two.weight is not None:
            assert torch.equal(one.weight, two.weight)
        assert torch.equal(one.x[real], two.x[real])
        assert torch.equal(one.y[real], two.y[real])


@pytest.mark.parametrize("block", [1, 1 << 9, 1 << 20], ids=["step by step", "some steps", "all steps"])
@pytest.mark.parametrize("sizes", [(9,), (9, 4, 2)], ids=["one client", "three clients"])
def test_streamed_batches_are_the_ones_asked_for_by_number(
    sizes: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever share of the steps is gathered at once into the memory that all steps use."""
    job = job_with((9, 4, 2))
    parts = [local_of(job, i).batches for i in range(len(sizes))]
    batches = parts[0] if len(parts) == 1 else stacked(parts, torch.float32)
    monkeypatch.setattr(samples, "BLOCK_BYTES", block)
    seen = 0
    for k, (one, flat) in enumerate(zip(batches.stream(), batches.stream(classes=3), strict=True)):
        asked = batches[k]
        assert torch.equal(one.x, asked.x)
        assert torch.equal(flat.x, asked.x.flatten(2))
        assert torch.equal(one.y, asked.y)
        assert torch.equal(flat.y, asked.y)
        assert torch.equal(flat.hot, -one_hot(asked.y, 3).transpose(1, 2).float())
        for name in ("weight", "active"):
            assert str(getattr(one, name)) == str(getattr(asked, name)) == str(getattr(flat, name))
        seen += 1
    assert seen == len(batches) == 6


def test_a_minibatch_of_samples_that_are_not_there_is_an_error() -> None:
    job = job_with((9, 4, 2))
    with pytest.raises(IndexError, match="client 1 has 4 samples, but its minibatches ask for the positions 0 to 4"):
        samples.ClientBatches(job.samples.data_of(1), [np.array([0, 4])], None, whose=1)


def test_a_part_of_a_job_is_the_round_of_those_clients() -> None:
    job = job_with((9, 4, 2)).take([2, 0])
    assert job.clients.ids == (2, 0)
    assert job.clients.sizes.tolist() == [2, 9]
    assert job.steps.tolist() == [2, 6]


def test_auto_says_what_it_took_and_keeps_it() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"))
    simulation.executor = auto = Auto(workers=1)
    assert auto.describe() == "auto"
    state = rounds(simulation, 1)
    assert auto.choice is not None
    assert auto.choice.executor in ("serial", "stacked")
    assert "a client and step" in auto.describe()
    chosen = auto.choice
    rounds(simulation, 1, state)
    assert auto.choice is chosen


def test_auto_can_be_told() -> None:
    auto = make_executor("auto", workers=2)
    assert isinstance(auto, Auto)
    auto.decide(Choice("pool", "as before"))
    assert auto.describe() == "auto: pool, 2 workers (as before)"
    auto.close()


def test_a_trial_leaves_nothing_behind() -> None:
    """The choice of the executor must not be seen in the numbers: the round after a trial has the bits of any other."""
    simulation = tiny_simulation(make_algorithm("scaffold"))
    job = simulation.job(simulation.start())
    before = simulation.executor.run(job)
    tried(job, workers=2)
    after = simulation.executor.run(job)
    assert torch.equal(before.message.y, after.message.y)


def test_very_short_rounds_stay_in_one_process() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"), steps=1)
    assert tried(simulation.job(simulation.start()), workers=2).executor in ("serial", "stacked")


def test_evaluation_by_workers_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.learning.task.SAMPLES_AT_ONCE", 3)
    simulation = tiny_simulation(make_algorithm("fedavg"))
    simulation.executor = pool = Pool(workers=2)
    try:
        state = rounds(simulation, 1)
        assert len(simulation.task.sheets(len(simulation.samples.test[1]))) > 2
        here = simulation.task.evaluate(state.server.w, state.b, *simulation.samples.test)
        assert pool.evaluate(simulation.task, simulation.samples, state.server.w, state.b) == here
    finally:
        pool.close()
