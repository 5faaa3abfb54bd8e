"""Clients on a Ray cluster of two nodes: the bits of ``serial``, whatever happens to actors and nodes.

The cluster lives in this module, on addresses of this machine alone. One process of the suite runs all of it
(``tests/conftest.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds, tiny_simulation, tiny_task
from fedkeel.data import Federation, from_arrays
from fedkeel.engine import on_ray, ray_cluster
from fedkeel.engine.choice import make_executor
from fedkeel.engine.clock import Clock
from fedkeel.engine.on_ray import OnRay
from fedkeel.engine.pool import WorkerDiedError
from fedkeel.engine.ray_cluster import ClusterError, software
from fedkeel.engine.ray_worker import Carried, Hello, _unpacked_samples, packed_kit, probe
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.worker_errors import InWorkerError
from fedkeel.errors import InputError
from fedkeel.learning import task as task_module
from fedkeel.learning.losses import Loss, cross_entropy
from fedkeel.learning.task import Batch, Task
from fedkeel.notices import FedkeelWarning
from tests.engine.ray_cases import Deadly, Dropping, Failing, OwnError, Slow

ROOT = Path(__file__).parents[2]
MEMORY = 100_000_000


class Machines:
    """Two nodes on this machine, with two processors each as far as Ray knows."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="fkt", dir="/tmp")  # a socket's path ends at 107 bytes
        os.environ["RAY_TMPDIR"] = self.folder
        ray_cluster.library()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "include_dashboard": False, "node_ip_address": "127.0.0.2"}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": MEMORY})
        self.second: Any = None
        self.have_second()

    def have_second(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(
                num_cpus=2, node_ip_address="127.0.0.3", object_store_memory=MEMORY, include_dashboard=False
            )

    def kill_second(self) -> None:
        node, self.second = self.second, None
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)
        del os.environ["RAY_TMPDIR"]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.close()


@pytest.fixture(scope="module")
def executor(machines: Machines) -> Iterator[OnRay]:
    """Two actors, for one simulation after the other."""
    made = OnRay(2, machines.cluster.address)
    yield made
    made.close()


def everywhere(simulation: Simulation, executor: OnRay) -> RunState:
    """The first rounds, until an actor is there on both nodes; they are not waited for by the executor itself."""
    simulation.executor = executor
    for _ in range(300):
        state = rounds(simulation, 1)
        if executor.describe() == "ray, 2 actors on 2 nodes":
            return state
        time.sleep(0.2)
    raise AssertionError(executor.describe())


def assert_same(one: RunState, two: RunState) -> None:
    def equal(a: State, b: State) -> bool:
        assert set(a) == set(b)
        both = [(a[name], b[name]) for name in a if isinstance(a[name], torch.Tensor)]
        return all(np.array_equal(one.numpy(), two.numpy(), equal_nan=True) for one, two in both)

    assert equal(one.server, two.server)
    assert torch.equal(one.b, two.b)
    for table in one.clients:
        assert set(one.clients[table]) == set(two.clients[table])
        assert all(torch.equal(one.clients[table][i], two.clients[table][i]) for i in one.clients[table])
    assert set(one.client_buffers) == set(two.client_buffers)
    assert all(torch.equal(one.client_buffers[i], two.client_buffers[i]) for i in one.client_buffers)


# ------------------------------------------------------------------------------------------------------ on a cluster


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "feddc", "fedveca", "gradma", "moon", "fedbn", "fedreg", "fedmlb"]
)
def test_the_bits_are_those_of_serial(name: str, executor: OnRay) -> None:
    # The clients of FedBN keep statistics to themselves; no minibatch has a single sample.
    how: dict[str, Any] = {"sizes": (10, 12, 7, 9, 8), "norm": name == "fedbn", "participation": 0.8, "clip": 1.0}
    expected = rounds(tiny_simulation(make_algorithm(name), **how), 3)
    simulation = tiny_simulation(make_algorithm(name), **how)
    simulation.executor = executor  # type: ignore[assignment]
    assert_same(rounds(simulation, 3), expected)


@pytest.mark.parametrize("mode", [{"deadline": 3.0, "late": "partial"}, {"mode": "buffered", "buffer": 2}])
def test_the_virtual_history_is_that_of_serial(mode: dict[str, Any], executor: OnRay) -> None:
    clock = Clock(speed=10.0, speed_sigma=1.0, up=0.1, jitter=0.2, failure=0.1, **mode)
    here, there = (tiny_simulation(make_algorithm("fedprox"), clock=clock, participation=0.8) for _ in range(2))
    there.executor = executor  # type: ignore[assignment]
    one, two = here.start(), there.start()
    for _ in range(4):
        (one, seen), (two, again) = here.step(one), there.step(two)
        assert seen.noted == again.noted
        assert seen.faults == again.faults
    assert_same(two, one)


def test_losses_norms_and_marks_come_back(executor: OnRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "SAMPLES_AT_ONCE", 7)  # parts enough for everybody, the last one shorter
    simulation = tiny_simulation(make_algorithm("scaffold"), clip=0.5)
    job = simulation.job(simulation.start())
    exam = ((simulation.task.w0, simulation.task.b0), (simulation.task.w0 + 0.1, simulation.task.b0))
    job = type(job)(**{**vars(job), "exam": exam})
    alone, spread = simulation.executor.run(job), executor.run(job)
    assert torch.equal(alone.loss, spread.loss)
    assert all(torch.equal(a, b) for a, b in zip(alone.norms, spread.norms, strict=True))
    assert spread.scores == alone.scores
    for on in ("test", "validation"):
        asked = (simulation.task, simulation.samples, *exam[1], on)
        assert executor.evaluate(*asked) == simulation.executor.evaluate(*asked)


def images(clients: int = 4) -> Federation:
    """Small images of three classes, as many for each client and one more."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 1, 8, 8), dtype=np.float32), rng.integers(0, 3, 60)
    ends = np.cumsum([12 + number for number in range(clients)])
    parts = tuple(np.arange(stop - 12 - number, stop) for number, stop in enumerate(ends))
    return Federation(from_arrays(x, y, x[:20], y[:20], name="small images"), parts, {"name": "by hand"})


def dropping(own_loss: bool = False) -> Simulation:
    """A model of one's own that draws, under a loss of one's own where asked."""
    torch.manual_seed(0)
    loss = Loss("own", lambda out, y: nn.functional.cross_entropy(out, y, reduction="none") ** 2, None)
    task = Task(Dropping(), loss if own_loss else cross_entropy)
    training = Training(rounds=3, epochs=2, batch_size=4, lr=0.05, buffers="local")
    return Simulation(FedAvg(), task, images(), training)


@pytest.mark.parametrize("own_loss", [False, True])
def test_models_and_losses_of_ones_own_travel(own_loss: bool, executor: OnRay) -> None:
    expected, simulation = rounds(dropping(own_loss), 3), dropping(own_loss)
    simulation.executor = executor
    assert_same(rounds(simulation, 3), expected)


def test_a_node_that_dies_in_mid_round_changes_no_bit(machines: Machines, executor: OnRay, tmp_path: Path) -> None:
    simulation = tiny_simulation(Slow(tmp_path, 0.0), sizes=(9,) * 12)
    state = everywhere(simulation, executor)
    simulation.algorithm.seconds = 0.3  # type: ignore[attr-defined]
    simulation.equipment = type(simulation.equipment)(**vars(simulation.equipment))  # so that actors hear of it
    killed = []

    def kill() -> None:
        while len({path.name.rpartition("-")[2] for path in tmp_path.glob("1-*")}) < 2:  # both are at work
            time.sleep(0.02)
        machines.kill_second()
        killed.append(len(list(tmp_path.glob("1-*"))))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        state = rounds(simulation, 1, state)
    finally:
        thread.join()
        machines.have_second()
    assert killed[0] < 12 <= len(list(tmp_path.glob("1-*")))
    assert_same(state, rounds(tiny_simulation(FedAvg(), sizes=(9,) * 12), 2))


@pytest.mark.parametrize("once", [True, False])
def test_an_actor_that_dies_is_replaced_and_not_for_ever(once: bool, executor: OnRay, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    simulation = tiny_simulation(Deadly(marker, once))
    simulation.executor = executor  # type: ignore[assignment]
    if once:
        assert_same(rounds(simulation, 2), rounds(tiny_simulation(FedAvg()), 2))
        return
    with pytest.raises(WorkerDiedError, match=r"actor of client 2 in round 1 was lost 3 times; .*run\.workers"):
        rounds(simulation, 1)
    assert executor._actors == []  # it let go of them, and starts afresh when asked


def test_errors_of_clients_come_out_as_themselves(executor: OnRay) -> None:
    simulation = tiny_simulation(Failing(OwnError("its own words")))
    simulation.executor = executor  # type: ignore[assignment]
    with pytest.raises(OwnError, match="its own words") as caught:
        rounds(simulation, 1)
    assert isinstance(caught.value.__cause__, InWorkerError)
    assert "ray_cases.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(("first", "then"), [("serial", "ray"), ("ray", "serial")])
def test_a_run_goes_on_with_the_other_executor(first: str, then: str, machines: Machines, tmp_path: Path) -> None:
    def trained(executor: str, count: int, directory: Path | None = None, resume: bool = False) -> fk.Run:
        how = {"executor": executor}
        if executor == "ray":
            how |= {"address": machines.cluster.address, "workers": 1}
        return fk.train(
            "scaffold", model=small(), data=images(), rounds=count, epochs=1, directory=directory, resume=resume, **how
        )

    trained(first, 2, tmp_path / "run")
    after = trained(then, 4, tmp_path / "run", resume=True)
    assert torch.equal(after.state.server.w, trained("serial", 4).state.server.w)


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def test_what_the_cluster_cannot_do_is_said(machines: Machines, executor: OnRay) -> None:
    simulation = tiny_simulation(FedAvg())
    simulation.executor = OnRay(5, machines.cluster.address)  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"run\.workers must be at most 4, the processors of the Ray cluster, got 5"):
        rounds(simulation, 1)
    simulation.executor = executor  # type: ignore[assignment]
    rounds(simulation, 1)
    simulation.executor = OnRay(1, "127.0.0.9:1")  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"to which this process is connected already, got '127\.0\.0\.9:1'"):
        rounds(simulation, 1)
    simulation.executor = OnRay(2, patience=0.5)  # type: ignore[assignment]
    with pytest.raises(ClusterError, match=r"no actor could start .* of its 4 processors on 2 nodes"):
        rounds(simulation, 1)  # actors import torch for longer than that
    assert ray_cluster.joined_by_us()  # others still use the connection


def test_nothing_is_left_of_a_cluster_of_our_own() -> None:
    """A run on a cluster that it starts is interrupted as by Ctrl-C; no process and no folder of it stay behind."""
    script = """
import os, signal, sys
from pathlib import Path
import torch, fedkeel as fk
from tests.engine.test_ray import images, small
from fedkeel.engine import ray_cluster

def of_ours(name):
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                found += [folder.name] if name in (folder / "cmdline").read_text() else []
            except OSError:
                pass
    return found

seen = {}
def watch(progress):
    seen["folder"] = ray_cluster._ours.folder
    seen["processes"] = of_ours(seen["folder"].name)
    os.kill(os.getpid(), signal.SIGINT)

try:
    fk.train("fedavg", model=small(), data=images(), rounds=3, epochs=1, executor="ray", workers=1, watch=watch)
except KeyboardInterrupt:
    folder = seen["folder"]
    print(len(seen["processes"]) > 1, folder.exists(), of_ours(folder.name), "ray" in sys.modules)
    import ray
    print(ray.is_initialized(), os.environ["RAY_USAGE_STATS_ENABLED"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["True False [] True", "False 0"]


# ---------------------------------------------------------------------------------------------------- without a cluster


def test_what_is_sent_has_memory_of_its_own_and_the_same_layout() -> None:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)]
    simulation = Simulation(FedAvg(), Task(nn.Sequential(*layers)), images(), Training(rounds=1, epochs=1))
    kit = packed_kit(simulation.equipment, simulation.samples)
    for array in kit.arrays.values():
        array.flags.writeable = False  # as it comes out of the object store
    before = {name: array.copy() for name, array in kit.arrays.items()}
    equipment, about = ray_cluster.library().cloudpickle.loads(kit.pickled.tobytes())
    carried = _unpacked_samples(about, kit.arrays)
    assert isinstance(carried, Carried)
    for client in range(4):
        ours, theirs = simulation.samples.data_of(client), carried.data_of(client)
        assert torch.equal(ours.x, theirs.x)
        assert ours.x.stride() == theirs.x.stride() == (64, 1, 8, 1)
        assert torch.equal(ours.y, theirs.y)
    memory = [carried.x, carried.y, *carried.scored["test"], *carried.scored["validation"]]
    assert all(part.data_ptr() % 64 == 0 for part in memory)  # as torch has it, whatever NumPy does
    assert not any(np.shares_memory(part.numpy(), array) for part in memory for array in kit.arrays.values())
    carried.x.zero_()  # whatever somebody's model writes there stays in its process
    assert all(np.array_equal(before[name], array) for name, array in kit.arrays.items())
    loss, gradient = probe(simulation.equipment, simulation.samples)
    again = probe(equipment, simulation.samples)
    assert loss == again[0]
    assert np.array_equal(gradient, again[1])


@pytest.mark.parametrize("plainly", [False, True])
def test_a_task_in_another_process_is_whole(plainly: bool) -> None:
    """Parts of a task share memory: parameters are views of the vector that was bound last. Pickled one by one they
    would go on computing with what they held then, whichever vector is given."""
    task = tiny_task()
    batch = Batch(torch.randn(1, 6, *tiny_simulation(FedAvg()).samples.test[0].shape[1:], dtype=task.dtype), None)
    batch = Batch(batch.x, torch.tensor([[0, 1, 2, 0, 1, 2]]))
    if plainly:
        task.use_plain_autograd()
    task.gradient(task.w0[None], task.b0[None], batch)  # binds
    pickler = ray_cluster.library().cloudpickle
    again = pickler.loads(pickler.dumps(task))
    assert again.loss is cross_entropy
    assert torch.equal(again.w0, task.w0)
    assert (again.dense is None) == (task.dense is None) == plainly
    assert (again.plainly, again.by_hand, again.channels_last) == (plainly, task.by_hand, task.channels_last)
    for shift in (0.1, 0.2):
        ours = task.gradient((task.w0 + shift)[None], task.b0[None], batch)
        theirs = again.gradient((task.w0 + shift)[None], task.b0[None], batch)
        assert all(map(torch.equal, ours, theirs))


def test_units_are_largest_first_and_end_with_single_clients() -> None:
    """Twelve clients of one step each and one of four, two actors: 16 steps are left, a unit may have 16/4 of them. The
    long client goes alone; then 12/4 allow three clients, 9/4 two, 7/4 and less only one."""
    simulation = tiny_simulation(FedAvg(), sizes=(5,) * 12 + (20,), epochs=1)
    job = simulation.job(simulation.start())
    made = on_ray.units(job, 2)
    assert made[0] == [12]
    assert [len(unit) for unit in made] == [1, 3, 2] + [1] * 7
    assert sorted(row for unit in made for row in unit) == list(range(13))


def hello(simulation: Simulation, **other: Any) -> Hello:
    loss, gradient = probe(simulation.equipment, simulation.samples)
    here = {"software": software(), "processor": torch.backends.cpu.get_cpu_capability()}
    return Hello("node", "elsewhere", 1, **{**here, "loss": loss, "gradient": gradient, **other})


def test_a_machine_that_computes_something_else_is_refused() -> None:
    """Other software, or another gradient, is refused; other last digits and other instructions are told, once."""
    simulation = tiny_simulation(FedAvg())
    made = OnRay()
    made._equipment, made._expected = simulation.equipment, probe(simulation.equipment, simulation.samples)
    same = hello(simulation)
    made._greet(same)
    with pytest.raises(ClusterError, match=r"elsewhere of the Ray cluster has torch 1\.0, this one has"):
        made._greet(hello(simulation, software={**software(), "torch": "1.0"}))
    with pytest.raises(ClusterError, match="computes another gradient of the initial model"):
        made._greet(hello(simulation, gradient=same.gradient * 1.01))
    with pytest.raises(ClusterError, match="computes another gradient of the initial model"):
        made._greet(hello(simulation, gradient=same.gradient * np.nan))
    with pytest.warns(FedkeelWarning, match="elsewhere of the Ray cluster computes other last digits"):
        made._greet(hello(simulation, gradient=same.gradient * (1 + 1e-12)))
    made._told.clear()
    with pytest.warns(FedkeelWarning, match="elsewhere of the Ray cluster has other instructions"):
        made._greet(hello(simulation, processor="none"))


def test_global_hooks_do_not_get_lost() -> None:
    simulation = tiny_simulation(FedAvg())
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(InputError, match="'ray' cannot be used with global hooks"):
            packed_kit(simulation.equipment, simulation.samples)
    finally:
        handle.remove()


def test_what_cannot_be_sent_is_said() -> None:
    simulation = tiny_simulation(FedAvg())
    simulation.algorithm.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"cannot be sent to other machines \(TypeError: .*lock.*executor 'pool'"):
        packed_kit(simulation.equipment, simulation.samples)


def test_ray_is_asked_for_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"pip install 'fedkeel\[ray\]'"):
        make_executor("ray")


def test_settings_that_ray_does_not_know_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_end", lambda: None)  # the cluster of this module is still in use
    with pytest.raises(InputError, match=r"run\.device must be cpu with run\.executor = 'ray', got 'cuda'"):
        make_executor("ray", device=torch.device("cuda"))
    with pytest.raises(InputError, match="address must be absent with executor = 'pool', got 'a:1'"):
        fk.train("fedavg", model=small(), data=images(), rounds=1, executor="pool", address="a:1")
    with pytest.raises(InputError, match=r"must be host:port or 'auto', got 'ray://a:1'"):
        ray_cluster._connect(ray_cluster.library(), "ray://a:1", None)
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at '127\.0\.0\.1:1': .*refused; is it running"):
        ray_cluster._connect(ray_cluster.library(), "127.0.0.1:1", None)


def test_ray_is_imported_only_when_it_is_used() -> None:
    code = "import sys, fedkeel.api; fedkeel.make_algorithm('fedavg'); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
