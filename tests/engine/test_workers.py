"""What may befall worker processes and their parent: stopped, without resources, interrupted, forked, at the end."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.algorithms.contract import Local
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Message, State
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine import pool as pool_module
from fedkeel.engine import watchdog
from fedkeel.engine.choice import Auto, Choice, make_executor
from fedkeel.engine.pool import Pool, PoolError, WorkerDiedError
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.worker_errors import InWorkerError, WorkerError, failure_of
from fedkeel.errors import InputError
from fedkeel.learning.drawing import keyed, nobody_draws, put_aside_for_good
from fedkeel.notices import FedkeelWarning, heard_by

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@contextmanager
def pooled(algorithm: FedAvg, **options: Any) -> Iterator[tuple[Simulation, Pool]]:
    simulation, pool = tiny_simulation(algorithm), Pool(**{"workers": 2} | options)
    simulation.executor = pool
    try:
        yield simulation, pool
    finally:
        pool.close()


def expected(count: int = 2) -> torch.Tensor:
    found: torch.Tensor = rounds(tiny_simulation(FedAvg()), count).server.w
    return found


class OnClient2(FedAvg):
    """Does something on client 2, in a worker, as long as the marker file is there."""

    name = "on_client_2"
    marker = Path()
    act: Callable[[], None] = staticmethod(lambda: None)
    home = os.getpid()

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        if local.clients.ids == (2,) and os.getpid() != type(self).home and type(self).marker.exists():
            type(self).act()
        return super().finish(local, y)


@pytest.fixture
def on_client_2(tmp_path: Path) -> Callable[[Callable[[], None], bool], FedAvg]:
    def make(act: Callable[[], None], once: bool) -> FedAvg:
        def first_remove() -> None:
            OnClient2.marker.unlink()
            act()

        OnClient2.marker = tmp_path / "marker"
        OnClient2.marker.touch()
        OnClient2.act = staticmethod(first_remove if once else act)
        OnClient2.home = os.getpid()
        return OnClient2()

    return make


def stop_oneself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@needs_proc
def test_a_stopped_worker_is_replaced_and_named(on_client_2: Any) -> None:
    said: list[tuple[str, str]] = []
    with (
        pooled(on_client_2(stop_oneself, once=True), patience=0.4) as (simulation, _),
        pytest.warns(FedkeelWarning, match="worker process"),
        heard_by(lambda *notice: said.append(notice)),
    ):
        found = rounds(simulation, 2).server.w
    assert torch.equal(found, expected())
    ((kind, text),) = said
    assert kind == "worker"
    assert "of client 2 in round 1, was stopped for" in text
    assert text.endswith("s (state T); another takes over.")


@needs_proc
def test_a_worker_that_is_stopped_again_and_again_ends_the_round(on_client_2: Any) -> None:
    with (
        pooled(on_client_2(stop_oneself, once=False), patience=0.2) as (simulation, _),
        pytest.warns(FedkeelWarning, match="was stopped"),
        pytest.raises(WorkerDiedError, match="3 worker processes of client 2 in round 1 did not work, the last was"),
    ):
        rounds(simulation, 1)


def busy() -> None:
    began = time.process_time()
    while time.process_time() - began < 0.5:
        pass


@needs_proc
@pytest.mark.parametrize("slow", [busy, lambda: time.sleep(0.5)], ids=["computing", "sleeping"])
def test_a_worker_that_takes_long_is_let_alone(on_client_2: Any, slow: Callable[[], None]) -> None:
    """Ten times the patience for somebody who is stopped."""
    with pooled(on_client_2(slow, once=True), patience=0.05) as (simulation, pool):
        found = rounds(simulation, 1)
        workers = [worker.process.pid for worker in pool._workers]
        assert torch.equal(rounds(simulation, 1, found).server.w, expected())
        assert workers == [worker.process.pid for worker in pool._workers]


@needs_proc
def test_a_worker_that_sleeps_for_ever_is_replaced(on_client_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "IDLE", 2)
    with (
        pooled(on_client_2(lambda: time.sleep(600), once=True), patience=0.2) as (simulation, _),
        pytest.warns(FedkeelWarning, match=r"without computing \(state S\)"),
    ):
        found = rounds(simulation, 2).server.w
    assert torch.equal(found, expected())


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread holds the lock."""
    holds, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            ended.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    holds.wait(60)
    try:
        yield
    finally:
        ended.set()
        holder.join()


@needs_proc
def test_a_worker_forked_beside_another_thread_is_soon_replaced_if_it_never_wakes(on_client_2: Any) -> None:
    """A lock that another thread held at the fork is never released in the child. After 0.3 s, not 20 times that."""
    lock = threading.Lock()
    with (
        held_elsewhere(lock),
        pooled(on_client_2(lock.acquire, once=True), patience=0.3) as (simulation, _),
        pytest.warns(FedkeelWarning, match=r"slept for 0 s without computing \(state S\)"),
    ):
        found = rounds(simulation, 2).server.w
    assert torch.equal(found, expected())


def test_a_worker_draws_although_a_thread_of_its_parent_was_drawing_at_the_fork() -> None:
    """NumPy locks its generator during a draw, and nobody is left in the child to unlock it."""

    def draw() -> None:
        put_aside_for_good()
        np.random.rand()

    numpys: Any = np.random
    worker = multiprocessing.get_context("fork").Process(target=draw)
    with held_elsewhere(numpys.get_bit_generator().lock):
        worker.start()
        worker.join(10)
    worker.kill()
    worker.join()
    assert worker.exitcode == 0


def test_nobody_draws_while_a_worker_is_forked() -> None:
    """Else torch's generator, which is locked during a draw, may stay locked in the child."""
    order: list[str] = []

    def draw() -> None:
        with keyed(3):
            order.append("drawn")

    other = threading.Thread(target=draw)
    with nobody_draws():
        other.start()
        other.join(0.2)
        order.append("forked")
    other.join()
    assert order == ["forked", "drawn"]


def test_where_the_system_says_nothing_nobody_is_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watchdog.look(2**30) is None
    watch = watchdog.Watch()
    assert all(watch.complaint(2**30, 100.0, 1.0) is None for _ in range(100))


def children() -> set[int]:
    return {process.pid or 0 for process in multiprocessing.active_children()}


class Slow(FedAvg):
    name = "slow"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        time.sleep(0.3)
        return super().finish(local, y)


def test_after_an_interrupt_a_pool_has_no_workers_and_starts_afresh() -> None:
    """Otherwise late answers to the interrupted round would be taken for answers to the next."""
    before = children()
    with pooled(Slow()) as (simulation, _):
        start = rounds(simulation, 1)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            simulation.step(start)
        assert children() == before
        assert torch.equal(rounds(simulation, 1, start).server.w, expected())
    assert children() == before


def test_an_interrupted_training_leaves_nothing() -> None:
    data = fk.data.load("mnist5k").partition("dirichlet", clients=8, alpha=1.0, seed=0)
    gc.collect()  # what earlier tests left behind
    before, maps, threads = children(), descriptors(), torch.get_num_threads()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        fk.train("fedavg", model="logistic", data=data, rounds=10**6, executor="pool", workers=2)
    gc.collect()
    assert children() == before
    assert torch.get_num_threads() == threads
    assert descriptors() <= maps


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


def in_a_new_process(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        **options,
    )


AT_THE_END = """
import os, signal, sys, threading, time
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.pool import Pool
simulation = tiny_simulation(FedAvg())
simulation.executor = pool = Pool(workers=2)
rounds(simulation, 1)
print(*(worker.process.pid for worker in pool._workers), flush=True)
"""


@needs_proc
@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('end')",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(pool._workers[0].process.pid, signal.SIGSTOP)",
    ],
)
def test_a_program_ends_although_a_pool_is_alive(end: str) -> None:
    """By whatever way; and its workers leave with it."""
    ended = in_a_new_process(AT_THE_END + end)
    workers = [int(pid) for pid in ended.stdout.split()]
    assert len(workers) == 2
    give_up = time.monotonic() + 60
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < give_up, "workers outlived their program"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    seen = watchdog.look(pid)
    return seen is not None and seen.state not in "ZX"


def test_pools_of_two_threads_do_not_hold_each_other(on_client_2: Any) -> None:
    """Workers inherit the pipes of both; each closes in time, although the other's workers live on."""
    both = threading.Barrier(2, timeout=60)
    found, seconds = {}, {}

    def work(name: str) -> None:
        simulation = tiny_simulation(make_algorithm(name))
        simulation.executor = pool = Pool(workers=2)
        state = rounds(simulation, 1)
        both.wait()
        found[name] = rounds(simulation, 1, state).server.w
        if name == "scaffold":
            both.wait()
        began = time.monotonic()
        pool.close()
        seconds[name] = time.monotonic() - began
        if name == "fedavg":
            both.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("fedavg", "scaffold")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, w in found.items():
        assert torch.equal(w, rounds(tiny_simulation(make_algorithm(name)), 2).server.w)
    assert max(seconds.values()) < pool_module.GRACE  # not killed after that time, but gone by themselves


def test_a_forked_process_does_not_speak_with_its_parents_workers() -> None:
    with pooled(FedAvg()) as (simulation, pool):
        state = rounds(simulation, 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if torch.equal(rounds(simulation, 1, state).server.w, expected()) else 2
                pool.close()
            finally:
                os._exit(code)
        assert torch.equal(rounds(simulation, 1, state).server.w, expected())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(rounds(simulation, 1, state).server.w, expected())


def in_a_daemon(executor: str) -> tuple[str, Any]:
    """As a task of multiprocessing.Pool: the model, or what went wrong."""
    said: list[str] = []
    simulation = tiny_simulation(FedAvg())
    simulation.executor = make_executor(executor, 2)
    if isinstance(simulation.executor, Auto):
        simulation.executor.decide(Choice("pool", "for the test"))
    try:
        with heard_by(lambda _, text: said.append(text)):
            return " ".join(said), rounds(simulation, 2).server.w.tolist()
    except PoolError as error:
        return "PoolError", str(error)
    finally:
        simulation.executor.close()


@pytest.mark.parametrize("executor", ["auto", "pool", "stacked", "serial"])
def test_inside_a_pool_of_multiprocessing(executor: str) -> None:
    with multiprocessing.get_context("fork").Pool(1) as outer:
        kind, found = outer.apply_async(in_a_daemon, (executor,)).get(timeout=60)
    if executor in ("pool", "stacked"):
        assert kind == "PoolError"
        assert found.startswith("worker processes cannot be started from a worker process")
    else:
        assert found == expected().tolist()


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """This process may open so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("spare", [0, 1, 3, 5, 7, 8])
def test_without_descriptors_there_is_a_sentence_and_nothing_is_left(spare: int) -> None:
    """A worker needs six while it is started and keeps three of them: with seven to spare the second fails."""
    before = children()
    with pooled(FedAvg()) as (simulation, pool):
        started = f"only {spare // 6} of 2 worker processes could be started: Too many open files; try fewer"
        with few_descriptors(spare), pytest.raises(PoolError, match=started):
            rounds(simulation, 2)
        assert pool._workers == []
        assert children() == before
        assert torch.equal(rounds(simulation, 2).server.w, expected())


def test_auto_goes_on_alone_without_descriptors() -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"))
    simulation.executor = auto = Auto(2)
    auto.decide(Choice("pool", "for the test"))
    said: list[str] = []
    with (
        few_descriptors(1),
        heard_by(lambda _, text: said.append(text)),
        pytest.warns(FedkeelWarning, match="Too many open files"),
    ):
        found = rounds(simulation, 2)
    assert torch.equal(found.server.w, rounds(tiny_simulation(make_algorithm("scaffold")), 2).server.w)
    assert len(said) == 1
    assert said[0].endswith("From here on one process computes everything, to the same results.")
    assert (auto.shares, auto.describe()) == (False, "auto: pool in one process (for the test)")
    auto.close()


def test_no_memory_to_share() -> None:
    """In a process of its own, which may not have more memory than it has."""
    ended = in_a_new_process("""
import resource
from pathlib import Path
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine import pool
from fedkeel.engine.pool import Pool, PoolError
simulation = tiny_simulation(FedAvg())
rounds(simulation, 1)
pool.SPARE = 1 << 16
simulation.executor = Pool(workers=2)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    rounds(simulation, 1)
except PoolError as error:
    print(error)
""")
    assert ended.stdout.startswith("only 0 of 2 worker processes could be started: Cannot allocate memory"), ended


@pytest.mark.parametrize("workers", [0, -3, 100_000])
@pytest.mark.parametrize("executor", ["auto", "serial", "pool", "stacked"])
def test_absurd_numbers_of_workers_are_refused(executor: str, workers: int) -> None:
    with pytest.raises(InputError, match=f"workers must be a whole number from 1 to 1024, got {workers}"):
        make_executor(executor, workers)


class CannotBePickledError(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"code {code}: {why}")
        self.lock = threading.Lock()


class CannotBeMadeAgainError(Exception):
    """Pickles, but cannot be put together from its message alone."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"code {code}: {why}")


class ChangesError(Exception):
    """Comes out of its pickle as another."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (ValueError, ("something else",))


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CannotBePickledError(7, "locked"), "CannotBePickledError: code 7: locked"),
        (CannotBeMadeAgainError(8, "torn"), "CannotBeMadeAgainError: code 8: torn"),
        (ChangesError("mine"), "ChangesError: mine"),
        (SilentError(), "SilentError: (no message)"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_exceptions_that_cannot_travel_arrive_in_words(on_client_2: Any, error: BaseException, words: str) -> None:
    with pooled(on_client_2(raising(error), once=False)) as (simulation, _):
        with pytest.raises(WorkerError) as caught:
            rounds(simulation, 1)
        assert f"the worker process of client 2 in round 1 failed: {words} (" in str(caught.value)
        assert "test_workers.py, line" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value.__cause__, InWorkerError)
        assert "in finish" in str(caught.value.__cause__)


def test_an_exception_that_can_travel_has_its_traceback_as_cause(on_client_2: Any) -> None:
    with (
        pooled(on_client_2(raising(KeyError("w")), once=False)) as (simulation, _),
        pytest.raises(KeyError, match="w") as caught,
    ):
        rounds(simulation, 1)
    assert "in finish" in str(caught.value.__cause__)


def test_a_failure_of_many_lines_is_told_in_one() -> None:
    assert failure_of(ValueError("first.\nsecond")).words == "ValueError: first"


@pytest.mark.parametrize("stack", [False, True])
def test_staying_here_has_the_same_bits(stack: bool) -> None:
    there, here = Pool(workers=2, stack=stack), Pool(workers=2, stack=stack)
    here.stay_here()
    simulation = tiny_simulation(make_algorithm("scaffold"))
    job = simulation.job(simulation.start())
    job = replace(job, exam=((simulation.task.w0, simulation.task.b0),))
    one, two = there.run(job), here.run(job)
    assert torch.equal(one.message.y, two.message.y)
    assert one.scores == two.scores
    there.close()


def test_worker_processes_of_a_process_with_threads_that_print() -> None:
    """A thread logs without pause, as a progress display may, while workers are started again and again."""
    ended = in_a_new_process("""
import logging, sys, threading, warnings
warnings.simplefilter("ignore")
from fedkeel.algorithms.contract import Local
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.pool import Pool
logging.basicConfig(stream=sys.stderr)

class Talks(FedAvg):
    name = "talks"
    def finish(self, local, y):
        logging.warning("client")
        return super().finish(local, y)

done = threading.Event()
def talk():
    while not done.is_set():
        logging.warning("display")

thread = threading.Thread(target=talk, daemon=True)
thread.start()
for _ in range(5):
    simulation = tiny_simulation(Talks())
    simulation.executor = Pool(workers=2)
    rounds(simulation, 1)
    simulation.executor.close()
done.set()
thread.join()
print("done")
""")
    assert ended.stdout == "done\n", ended.stderr[-500:]
