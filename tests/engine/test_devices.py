"""Devices: found or refused, and what travels there; torch's ``meta`` device stands in for an accelerator."""

import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import PerClient, State
from fedkeel.check import tiny_federation, tiny_simulation
from fedkeel.engine import devices
from fedkeel.engine.choice import make_executor
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job
from fedkeel.engine.samples import Samples
from fedkeel.errors import FedkeelError

META = torch.device("meta")


def tensors(state: State) -> list[torch.Tensor]:
    rows = [value.rows if isinstance(value, PerClient) else value for value in state.values()]
    return [value for value in rows if isinstance(value, torch.Tensor)]


def seen_by_clients(job: Job) -> list[torch.Tensor]:
    problem, clients = job.problem, job.clients
    own = [problem.w0, problem.b0, clients.sizes, clients.omega, clients.p]
    remembered = [row for rows in job.states.values() for row in rows]
    return [*tensors(job.message), *remembered, job.buffers, job.steps, job.steps_per_epoch, *own]


def test_the_processor_is_always_there() -> None:
    assert devices.find("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["tpu", "cuda:x", ""])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(FedkeelError, match=f"there is no device named {name!r}"):
        devices.find(name)


def test_an_accelerator_that_is_not_there_is_refused_before_anything_starts() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(FedkeelError, match=rf"run.device must be .* got '{missing}'.* Use 'cpu'"):
        devices.find(missing)


@pytest.mark.parametrize("name", ["scaffold", "feddc", "fedgvrgm", "mifa"])
def test_all_that_clients_see_goes_to_the_device_and_what_they_return_comes_back(name: str) -> None:
    simulation = tiny_simulation(make_algorithm(name))
    job = simulation.job(simulation.start())
    moved = job.on(META)
    assert all(tensor.device == META for tensor in seen_by_clients(moved))
    assert all(tensor.is_cpu for tensor in seen_by_clients(job))
    assert job.on(devices.CPU) is job
    outcome = simulation.executor.run(job)
    there = outcome.on(META)
    assert isinstance(there, Outcome)
    found = [*tensors(there.message), *tensors(there.states), there.buffers, there.loss, there.moved, *there.norms]
    assert all(tensor.device == META for tensor in found)


def test_samples_lie_on_the_device() -> None:
    samples = Samples(tiny_federation((8, 8)), torch.float32, device=META)
    assert all(part.device == META for part in (*samples.of_client(1), *samples.test, *samples.validation))


def test_an_accelerator_has_one_process() -> None:
    assert make_executor("stacked", device=META).describe() == "stacked, 1 worker"
    for name, workers in (("pool", None), ("stacked", 2)):
        with pytest.raises(FedkeelError, match="in one process on meta"):
            make_executor(name, workers, META)
