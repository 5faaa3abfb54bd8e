"""``pool`` and ``stacked``: the clients of a round in worker processes, one thread each.

Workers are forked from this process when the first round comes, so that data, model and algorithm are simply there, own
modules and losses included, and nothing has to be pickled. Broadcast, client states and results lie in shared memory;
through the pipes go only names, places and small numbers. Whoever is free takes the next unit of work. For ``pool``
that is one client, so that the bits are those of ``serial`` for any number of workers; for ``stacked`` a group of
similar clients as one computation. Parts of the test set come last: they are short, and fill the time in which others
still train. A worker that dies or is stopped is replaced, and its units are computed again.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.state import PerClient
from fedkeel.engine.arena import Arena, ArenaFullError, Place
from fedkeel.engine.client import answer, answer_each
from fedkeel.engine.exchange import Outcome, gather
from fedkeel.engine.executors import Job, examined
from fedkeel.engine.grouping import groups
from fedkeel.engine.samples import Samples, Scored
from fedkeel.engine.threads import one_thread
from fedkeel.engine.watchdog import PATIENCE, Watchdog
from fedkeel.engine.wire import packed_call, packed_outcome, under, unpacked_call, unpacked_outcome
from fedkeel.engine.worker_errors import Failure, failure_of
from fedkeel.errors import FedkeelError, InputError
from fedkeel.learning.drawing import nobody_draws, put_aside_for_good
from fedkeel.learning.task import Score, Seeds, Task
from fedkeel.notices import notice
from fedkeel.system import ProcessLock, cores

SPARE = 4
"""Arenas reserve this many times what the first round needs; what is not written costs nothing."""
ATTEMPTS = 3
"""How often a command is tried before a round is given up because its worker keeps dying."""
AHEAD = 2
"""Commands that a worker may have at a time: with one only, it would sleep from its answer to the next."""
GRACE = 5.0
"""Seconds that idle workers have to leave by themselves."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Sent to a whole group of processes; the parent decides what they mean."""

_forking = ProcessLock()
_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""This process's ends of all pipes to workers. Every worker closes its copies of them: as long as one is open anywhere,
the worker at the other end does not notice that its parent is gone."""


class WorkerDiedError(FedkeelError):
    """A worker process was killed again and again on the same clients."""


class PoolError(FedkeelError):
    """Worker processes cannot be started here."""


@dataclass
class Worker:
    """A process, the pipe to it, and the commands that it has not answered yet, by number."""

    process: BaseProcess
    pipe: Connection
    at: deque[int] = field(default_factory=deque)
    informed: bool = False
    """Whether it has this round's order."""
    doubtful: bool = False
    """Whether it was forked beside other threads and has not answered yet: a lock that one of them held just then is
    held in the worker for ever."""


@dataclass(frozen=True)
class Order:
    """A round as it travels to the workers: its call, what clients remember, and an exam, with tensors by place."""

    head: dict[str, Any]
    places: dict[str, Place]


@dataclass(frozen=True)
class Train:
    """To a worker: train these rows of the cohort, and lay the outcome into this slot."""

    order: Order | None
    """The round, if it is a new one for this worker."""
    rows: list[int]
    slot: int


@dataclass(frozen=True)
class Mark:
    """To a worker: evaluate the model at these places on a part of some samples."""

    places: dict[str, Place]
    on: Scored
    part: slice
    seed: int | None = None
    """Of what the model draws there."""


class Pool:
    """Worker processes that live as long as the executor; ``workers`` defaults to one per core.

    With one worker everything is computed in this process.
    """

    def __init__(self, workers: int | None = None, stack: bool = False, patience: float = PATIENCE) -> None:
        self.name = "stacked" if stack else "pool"
        self.count = workers or cores()
        if self.count > 1 and "fork" not in multiprocessing.get_all_start_methods():
            raise InputError("worker processes need a system with fork (Linux, macOS); use run.executor = 'serial'.")
        self.lanes = self.count
        self._may_keep = workers is None
        self._stack = stack
        self._workers: list[Worker] = []
        self._job: Job | None = None
        self._orders = Arena(1)
        self._results = Arena(1)
        self._watchdog = Watchdog(patience)
        self._owner = os.getpid()
        self._here = False
        # Where nobody closes it, at the end of the program; before Python waits for its children.
        Finalize(self, _let_go, (self._workers,), exitpriority=100)

    @property
    def shares(self) -> bool:
        return self.count > 1 and not self._here

    def stay_here(self) -> None:
        """From now on compute everything in this process, with the same bits."""
        self.close()
        self._here = True

    def keep(self, lanes: int) -> None:
        if self._may_keep:
            self.lanes = lanes

    def run(self, job: Job) -> Outcome:
        """Train every client of the job; the outcome may lie in memory that the next call overwrites."""
        self._disown()
        units = groups(job, self.lanes) if self._stack else _one_by_one(job)
        if self._here or len(units) == 1 or self.lanes == 1:
            with self._as_workers_do():
                outcomes = answer_each(job, units)
                return examined(job, gather(outcomes, [i for rows in units for i in rows]))
        if self._job is None or not _same_simulation(self._job, job) or len(units) > self._results.slots:
            self._start(job, units, _down_bytes(job) * SPARE, _up_bytes(job, units) * SPARE)
        for _ in range(2):
            try:
                return self._round(job, units)
            except ArenaFullError as full:  # an algorithm sends more than in its first round
                down, up = max(full.needed, _down_bytes(job)), max(full.needed, _up_bytes(job, units))
                self._start(job, units, down * SPARE, up * SPARE)
        return self._round(job, units)

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        """The samples in parts, dealt to the workers; the parts and the order of their sums are always the same."""
        x, y = samples.to_score(on)
        parts = task.sheets(len(x))
        self._disown()
        if self._job is None or self._job.task is not task or self._job.samples is not samples or len(parts) == 1:
            with self._as_workers_do():
                return task.evaluate(w, b, x, y, seeds)
        places = self._orders.write({"w": w, "b": b})
        dealt = zip(parts, task.seeds_of(parts, seeds), strict=True)
        return task.score(w, self._carried_out([Mark(places, on, part, seed) for part, seed in dealt]))

    def _as_workers_do(self) -> AbstractContextManager[None]:
        """Compute here with the one thread that a worker has, so that it does not matter who computes."""
        return nullcontext() if self.lanes == 1 else one_thread()

    def describe(self) -> str:
        if self._here:
            return f"{self.name} in one process"
        return f"{self.name}, {self.count} worker{'s' if self.count > 1 else ''}"

    def close(self) -> None:
        """Let the workers go."""
        self._disown()
        self._job = None
        _let_go(self._workers)

    def _disown(self) -> None:
        """In a process that was forked from the owner: its workers are not ours, and answer to somebody else."""
        if self._owner != os.getpid():
            self._owner, self._job = os.getpid(), None
            self._workers.clear()

    def _start(self, job: Job, units: list[list[int]], down: int, up: int) -> None:
        self.close()
        if multiprocessing.current_process().daemon:
            raise PoolError(
                "worker processes cannot be started from a worker process such as those of multiprocessing.Pool; use "
                "the executor 'auto' or 'serial' there."
            )
        job.samples.prepare_all()  # before the fork, so that all workers share one copy
        wanted = min(self.count, len(units))
        try:
            # Workers see a round's own values by its order; those of this one need not be kept as long as they live.
            self._job, self._orders = replace(job, states={}, exam=()), Arena(down)
            self._results = Arena(up, len(units))
            for _ in range(wanted):
                self._workers.append(self._fork())
        except BaseException as error:
            started = len(self._workers)
            self.close()
            if not _lacks_resources(error):
                raise
            raise PoolError(
                f"only {started} of {wanted} worker processes could be started: {_reason(error)}; try fewer workers "
                "(run.workers) or run.executor = 'serial', or allow more processes, open files or memory."
            ) from None

    def _fork(self) -> Worker:
        context = multiprocessing.get_context("fork")
        assert self._job is not None
        with nobody_draws(), _forking.held(), _signals_wait():
            here, there = context.Pipe()
            _ends.add(here)
            try:
                arguments = (there, self._job, self._orders, self._results)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
            except BaseException:
                here.close()
                raise
            finally:
                there.close()
        return Worker(process, here, doubtful=threading.active_count() > 1)

    def _round(self, job: Job, units: list[list[int]]) -> Outcome:
        order = _as_order(job, self._orders)
        # With a unit for every client, the slots are in client order whoever is computed first.
        slots = [rows[0] for rows in units] if len(units) == len(job.clients.ids) else list(range(len(units)))
        parts = job.task.sheets(len(job.samples.test[1])) if job.exam else []
        dealt = list(zip(parts, job.task.seeds_of(parts, job.exam_seeds), strict=True))
        models = [{name: order.places[f"exam/{number}/{name}"] for name in "wb"} for number in range(len(job.exam))]
        answers = self._carried_out(
            [
                *(Train(order, rows, slot) for rows, slot in zip(units, slots, strict=True)),
                *(Mark(places, "test", part, seed) for places in models for part, seed in dealt),
            ]
        )
        found, marks = answers[: len(units)], iter(answers[len(units) :])
        scores = tuple(job.task.score(w, [next(marks) for _ in parts]) for w, _ in job.exam)
        if len(units) == len(job.clients.ids) and all(places == found[0] for places in found):
            return replace(_one_each(self._results.read_side_by_side(found[0], len(units))), scores=scores)
        outcomes = [
            unpacked_outcome(self._results.read(places, slot)) for places, slot in zip(found, slots, strict=True)
        ]
        return replace(gather(outcomes, [i for unit in units for i in unit]), scores=scores)

    def _carried_out(self, commands: Sequence[Train | Mark]) -> list[Any]:
        """The workers' answers to all commands, whoever gives them. All ``Train`` must have one and the same order."""
        try:
            return self._answers(commands)
        except BaseException:
            # Workers may still be at it, and must not answer to what is asked next; that starts afresh.
            self.close()
            raise

    def _answers(self, commands: Sequence[Train | Mark]) -> list[Any]:
        waiting = deque(range(len(commands)))
        tries = [0] * len(commands)
        answers: dict[int, Any] = {}
        for worker in self._workers:
            worker.at.clear()
            worker.informed = False
        self._watchdog.restart()
        while len(answers) < len(commands):
            for depth in range(1, AHEAD + 1):
                for number in range(len(self._workers)):
                    if len(self._workers[number].at) < depth:
                        self._supply(number, commands, waiting, tries)
            ready = wait([worker.pipe for worker in self._workers if worker.at], self._watchdog.interval)
            for number, worker in enumerate(self._workers):
                if worker.pipe in ready:
                    self._collect(number, commands, answers, waiting, tries)
            if self._watchdog.is_due():
                self._look_after(commands, waiting, tries)
        return [answers[number] for number in range(len(commands))]

    def _look_after(self, commands: Sequence[Train | Mark], waiting: deque[int], tries: list[int]) -> None:
        """Replace the workers that do not work."""
        busy = {worker.process.pid or 0: number for number, worker in enumerate(self._workers) if worker.at}
        # Once only: whoever sleeps again where another slept before may have reason to.
        doubtful = [
            pid
            for pid, number in busy.items()
            if self._workers[number].doubtful and not tries[self._workers[number].at[0]]
        ]
        for pid, wrong in self._watchdog.complaints(list(busy), doubtful).items():
            worker = self._workers[busy[pid]]
            notice("worker", f"worker process {pid}, {_purpose(commands[worker.at[0]])}, {wrong}; another takes over.")
            worker.process.kill()
            self._replace(busy[pid], commands, waiting, tries, wrong)

    def _supply(self, number: int, commands: Sequence[Train | Mark], waiting: deque[int], tries: list[int]) -> None:
        """Give a worker its next command; one ahead, so that it need not wait, only while there is plenty for all."""
        worker = self._workers[number]
        if not waiting or (worker.at and len(waiting) <= AHEAD * len(self._workers)):
            return
        worker.at.append(waiting.popleft())
        command = commands[worker.at[-1]]
        if isinstance(command, Train) and worker.informed:
            command = replace(command, order=None)
        try:
            worker.pipe.send(command)
        except OSError:
            self._replace(number, commands, waiting, tries)
            return
        worker.informed |= isinstance(command, Train)

    def _collect(
        self,
        number: int,
        commands: Sequence[Train | Mark],
        answers: dict[int, Any],
        waiting: deque[int],
        tries: list[int],
    ) -> None:
        worker = self._workers[number]
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(number, commands, waiting, tries)
            return
        if isinstance(answer, Failure):
            answer.raise_again(_purpose(commands[worker.at[0]]))
        worker.doubtful = False
        answers[worker.at.popleft()] = answer

    def _replace(
        self,
        number: int,
        commands: Sequence[Train | Mark],
        waiting: deque[int],
        tries: list[int],
        wrong: str | None = None,
    ) -> None:
        """Another worker for one that died at the first of its commands; all of them are to be carried out again."""
        worker = self._workers[number]
        tries[worker.at[0]] += 1
        worker.pipe.close()
        worker.process.join(timeout=5)
        if tries[worker.at[0]] >= ATTEMPTS:
            purpose = _purpose(commands[worker.at[0]])
            if wrong is not None:
                raise WorkerDiedError(
                    f"{ATTEMPTS} worker processes {purpose} did not work, the last {wrong}; find out who or what stops "
                    "them, or use run.executor = 'serial'."
                )
            raise WorkerDiedError(
                f"the worker process {purpose} died {ATTEMPTS} times (exit code {worker.process.exitcode}); it may "
                "need more memory than there is: try fewer workers (run.workers) or run.executor = 'serial'."
            )
        waiting.extendleft(reversed(worker.at))
        try:
            self._workers[number] = self._fork()
        except (OSError, MemoryError) as error:
            if not _lacks_resources(error):
                raise
            raise PoolError(
                f"a worker process died and no other could be started: {_reason(error)}; try fewer workers "
                "(run.workers) or run.executor = 'serial', or allow more processes, open files or memory."
            ) from None


def _purpose(command: Train | Mark) -> str:
    if isinstance(command, Mark):
        return "that evaluates a model"
    assert command.order is not None
    head = command.order.head
    return f"of client {', '.join(str(head['ids'][i]) for i in command.rows)} in round {head['round'][0] + 1}"


def _one_by_one(job: Job) -> list[list[int]]:
    """Every client by itself, the longest first, so that nobody is left with a long one at the end."""
    return [[i] for i in sorted(range(len(job.clients.ids)), key=lambda i: -int(job.steps[i]))]


def _work(pipe: Connection, job: Job, orders: Arena, results: Arena) -> None:
    """A worker's life: one unit after the other, until the pipe closes."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for end in list(_ends):
        end.close()  # so that the parent's end is the only one, and its closing is noticed
    torch.set_num_threads(1)
    put_aside_for_good()
    while True:
        try:
            command = pipe.recv()
        except (EOFError, OSError):
            # At once, without the usual clean-up: a lock that another thread held at the fork (a progress display
            # that was just writing) is held in here for ever.
            os._exit(0)
        try:
            if isinstance(command, Train) and command.order is not None:
                job = _as_job(job, command.order, orders)
            answer: Any = _done(command, job, orders, results)
        except BaseException as error:  # also sys.exit() in somebody's model: the parent decides
            answer = failure_of(error)
        try:
            pipe.send(answer)
        except OSError:  # the parent is gone
            os._exit(0)


def _let_go(workers: list[Worker]) -> None:
    """Let workers end, and wait until they have; the list is empty then."""
    give_up = time.monotonic() + GRACE
    try:
        for worker in workers:
            worker.pipe.close()
            if worker.at:
                worker.process.kill()  # still at a client that nobody waits for
        for worker in workers:
            worker.process.join(max(0.0, give_up - time.monotonic()))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        workers.clear()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C comes after the block: a new worker must not take its parent's way of stopping before it has its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _lacks_resources(error: BaseException) -> bool:
    """Whether the system has no more processes, memory or descriptors to give."""
    wants = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPERM)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in wants)


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "Cannot allocate memory"


def _done(command: Train | Mark, job: Job, orders: Arena, results: Arena) -> Any:
    """Carry out a command: where the outcome lies, or the marks of the part."""
    if isinstance(command, Train):
        return results.write(packed_outcome(answer(job, command.rows)), command.slot)
    model = orders.read(command.places)
    x, y = job.samples.to_score(command.on)
    return job.task.mark(model["w"], model["b"], x[command.part], y[command.part], command.seed)


def _as_order(job: Job, arena: Arena) -> Order:
    """Lay a round's tensors into the arena."""
    parcel = packed_call(job.call)
    tensors = parcel.tensors | {"buffers": job.buffers}
    tensors |= {f"state/{name}": rows for name, rows in job.states.items()}
    for number, (w, b) in enumerate(job.exam):
        tensors |= {f"exam/{number}/w": w, f"exam/{number}/b": b}
    return Order(parcel.head, arena.write(tensors))


def _as_job(first: Job, order: Order, arena: Arena) -> Job:
    """The round that an order stands for, with views of the parent's tensors."""
    tensors = arena.read(order.places)
    return replace(
        first,
        call=unpacked_call(order.head, tensors),
        states={name: list(rows) for name, rows in under(tensors, "state/").items()},
        buffers=tensors["buffers"],
    )


def _one_each(tensors: dict[str, Tensor]) -> Outcome:
    """The outcomes of one client in every slot, as one outcome; no row is copied."""
    norms = tensors.pop("norms/0")
    outcome = unpacked_outcome({name: value.flatten(0, 1) for name, value in tensors.items()})
    return replace(outcome, norms=list(norms))


def _same_simulation(one: Job, two: Job) -> bool:
    return one.equipment is two.equipment and one.samples is two.samples


def _down_bytes(job: Job) -> int:
    values = [v.rows if isinstance(v, PerClient) else v for v in job.message.values()]
    rows = [row for rows in job.states.values() for row in rows]
    models = [part for model in job.exam for part in model]
    tensors = [v for v in [*values, *rows, *models, job.buffers] if isinstance(v, Tensor)]
    return sum(v.numel() * v.element_size() for v in tensors) + (1 << 16)


def _up_bytes(job: Job, units: list[list[int]]) -> int:
    """A guess at one unit's results: a few models and the state of each of its clients."""
    vector = job.task.d * job.task.dtype.itemsize
    state = sum(rows[0].numel() * rows[0].element_size() for rows in job.states.values())
    each = 4 * vector + state + job.buffers[0].numel() * 8 + int(job.steps.max()) * 8 + (1 << 16)
    return max(len(rows) for rows in units) * each
