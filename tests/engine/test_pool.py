"""Worker processes: the same bits as one after the other, whatever happens to the workers."""

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
import torch

from fedkeel.algorithms.contract import Local, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.state import Message, State
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.arena import Arena, ArenaFullError
from fedkeel.engine.pool import Pool, WorkerDiedError
from fedkeel.errors import InputError
from fedkeel.learning import task


def same(one: State, two: State) -> bool:
    return all(
        torch.equal(one[n], two[n]) for n in one if isinstance(one[n], torch.Tensor) and not one[n].isnan().any()
    )


@pytest.mark.parametrize(
    "name", [name for name, algorithm in ALGORITHMS.items() if "one_client" not in algorithm.needs]
)
def test_pool_gives_the_bits_of_serial(name: str) -> None:
    pool = Pool(workers=3)
    try:
        serial = rounds(tiny_simulation(make_algorithm(name), participation=0.8), 3)
        simulation = tiny_simulation(make_algorithm(name), participation=0.8)
        simulation.executor = pool
        pooled = rounds(simulation, 3)
    finally:
        pool.close()
    assert same(serial.server, pooled.server)
    for table in serial.clients:
        assert set(serial.clients[table]) == set(pooled.clients[table])
        assert all(torch.equal(serial.clients[table][i], pooled.clients[table][i]) for i in serial.clients[table])


def test_norms_and_losses_come_back() -> None:
    pool = Pool(workers=2)
    simulation = tiny_simulation(make_algorithm("scaffold"), clip=0.5)
    job = simulation.job(simulation.start())
    alone, together = simulation.executor.run(job), pool.run(job)
    pool.close()
    assert torch.equal(alone.loss, together.loss)
    assert all(torch.equal(a, b) for a, b in zip(alone.norms, together.norms, strict=True))


class DiesOnce(FedAvg):
    """Kills its worker on client 2 as long as the marker file is there."""

    name = "dies_once"
    marker = ""
    always = False

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        if local.clients.ids == (2,) and os.path.exists(type(self).marker):
            if not type(self).always:
                os.remove(type(self).marker)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finish(local, y)


@pytest.mark.parametrize("always", [False, True])
def test_a_dead_worker_is_replaced_and_its_client_run_again(tmp_path: object, always: bool) -> None:
    marker = f"{tmp_path}/marker"
    expected = rounds(tiny_simulation(FedAvg()), 2).server.w
    with open(marker, "w") as file:
        file.write("x")
    DiesOnce.marker, DiesOnce.always = marker, always
    simulation = tiny_simulation(DiesOnce())
    simulation.executor = pool = Pool(workers=2)
    if always:
        with pytest.raises(WorkerDiedError, match="of client 2 in round 1 died 3 times"):
            rounds(simulation, 2)
    else:
        assert torch.equal(rounds(simulation, 2).server.w, expected)
    pool.close()


@pytest.mark.parametrize("stack", [False, True])
def test_an_exam_beside_a_round_has_the_scores_of_an_evaluation(stack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models on a test set in several parts, of which each worker takes some; the round itself stays the same."""
    simulation = tiny_simulation(make_algorithm("scaffold"))
    monkeypatch.setattr(task, "SAMPLES_AT_ONCE", 7)
    start = simulation.start()
    models = [(simulation.task.w0 * factor, simulation.task.b0) for factor in (1.0, -2.0)]
    expected = tuple(simulation.task.evaluate(w, b, *simulation.samples.test) for w, b in models)
    assert len(simulation.task.sheets(len(simulation.samples.test[1]))) > 2
    job = simulation.job(start)
    pool = Pool(workers=2, stack=stack)
    with_exam = pool.run(replace(job, exam=tuple(models)))
    uploads = with_exam.message.y.clone()
    assert with_exam.scores == expected == simulation.executor.run(replace(job, exam=tuple(models))).scores
    assert torch.equal(pool.run(job).message.y, uploads)
    assert pool.evaluate(simulation.task, simulation.samples, *models[1]) == expected[1]
    pool.close()


@pytest.mark.parametrize("kills", [1, 3])
def test_a_worker_that_dies_while_it_evaluates_is_replaced(kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fork of the pool sees the same memory as the parent had, so that the count lies in shared memory."""
    simulation = tiny_simulation(make_algorithm("fedavg"))
    left = multiprocessing.get_context("fork").Value("i", kills)
    mark, parent = simulation.task.mark, os.getpid()

    def deadly(*arguments: torch.Tensor) -> task.Marks:
        with left.get_lock():
            dies = os.getpid() != parent and left.value > 0
            left.value -= dies
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return mark(*arguments)

    monkeypatch.setattr(simulation.task, "mark", deadly)
    job = replace(simulation.job(simulation.start()), exam=((simulation.task.w0, simulation.task.b0),))
    pool = Pool(workers=2)
    if kills == 3:
        with pytest.raises(WorkerDiedError, match="that evaluates a model died 3 times"):
            pool.run(job)
    else:
        assert pool.run(job).scores == simulation.executor.run(job).scores
    pool.close()


class Complains(FedAvg):
    name = "complains"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        if local.clients.ids == (1,):
            raise InputError("client 1 does not like this.")
        return super().finish(local, y)


def test_an_error_in_a_worker_arrives_as_itself() -> None:
    simulation = tiny_simulation(Complains())
    simulation.executor = pool = Pool(workers=2)
    with pytest.raises(InputError, match="client 1 does not like this"):
        rounds(simulation, 1)
    pool.close()


class Grows(FedAvg):
    """Uploads far more in later rounds than in the first."""

    name = "grows"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        return Message(y=y, more=y.repeat(1, 1 + 200 * local.round.t)), local.client


def test_the_shared_memory_grows_when_needed() -> None:
    simulation = tiny_simulation(Grows())
    simulation.executor = pool = Pool(workers=2)
    assert torch.equal(rounds(simulation, 3).server.w, rounds(tiny_simulation(FedAvg()), 3).server.w)
    pool.close()


@pytest.mark.parametrize("stack", [False, True])
def test_one_worker_needs_no_system_with_fork(stack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in this process; two would be processes of their own."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert not Pool(1, stack=stack).shares
    with pytest.raises(InputError, match="fork"):
        Pool(2, stack=stack)


def test_one_pool_serves_several_simulations() -> None:
    pool = Pool(workers=2)
    for name in ("fedavg", "scaffold"):
        simulation = tiny_simulation(make_algorithm(name))
        simulation.executor = pool
        assert torch.equal(rounds(simulation, 2).server.w, rounds(tiny_simulation(make_algorithm(name)), 2).server.w)
    pool.close()


def test_an_arena_keeps_tensors_of_any_kind() -> None:
    arena = Arena(4096)
    tensors = {"a": torch.arange(5), "b": torch.randn(2, 3), "c": torch.tensor([True, False]), "d": torch.empty(0, 4)}
    read = arena.read(arena.write(tensors))
    assert all(torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in tensors)
    with pytest.raises(ArenaFullError) as full:
        arena.write({"big": torch.zeros(5000, dtype=torch.uint8)})
    assert full.value.needed == 5056  # the next multiple of 64


def test_the_slots_of_an_arena_side_by_side() -> None:
    """Every slot keeps its own; seen together they have one more axis, and nothing is copied."""
    arena = Arena(100, slots=3)
    parts = [
        {"a": torch.arange(5) + slot, "b": torch.full((1, 2), float(slot)), "c": torch.empty(0)} for slot in (0, 1)
    ]
    places = [arena.write(part, slot) for slot, part in enumerate(parts)]
    assert places[0] == places[1]
    together = arena.read_side_by_side(places[0], 2)
    assert all(torch.equal(together[name], torch.stack([part[name] for part in parts])) for name in "abc")
    arena.write(parts[0], 1)
    assert torch.equal(together["a"][1], parts[0]["a"])
    assert torch.equal(arena.read(places[1], 1)["b"], parts[0]["b"])


class KeepsAnUpload(FedAvg):
    """Leaves a view of what was uploaded in its server state."""

    name = "keeps_an_upload"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return super().aggregate(server, uploads, round).replace(first=uploads.y[0])


def test_what_a_server_keeps_of_the_uploads_survives_the_next_round() -> None:
    """The uploads lie where the workers write the next ones."""
    simulation = tiny_simulation(KeepsAnUpload())
    simulation.executor = pool = Pool(workers=2)
    one = rounds(simulation, 1)
    kept = one.server.first.clone()
    two = rounds(simulation, 1, one)
    pool.close()
    assert torch.equal(one.server.first, kept)
    assert not torch.equal(two.server.first, kept)
