"""``pool``: the clients of a round in worker processes, one thread each.

Workers are forked from this process when the first round comes, so that data, model and algorithm are simply there, own
modules and losses included, and nothing has to be pickled. Broadcast, client states and results lie in shared memory;
through the pipes go only names, places and small numbers. A worker takes one client after the other, so that the bits
are those of ``serial`` for any number of workers. One that dies is replaced, and its client is computed again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.state import PerClient, State
from fedkeel.engine.arena import Arena, ArenaFullError, Place
from fedkeel.engine.executors import Job, Outcome, Serial, gather, train_one
from fedkeel.errors import FedkeelError, InputError

SPARE = 4
"""Arenas reserve this many times what the first round needs; what is not written costs nothing."""
ATTEMPTS = 3
"""How often a client is tried before a round is given up because its worker keeps dying."""


class WorkerDiedError(FedkeelError):
    """A worker process was killed again and again on the same client."""


@dataclass
class Worker:
    """A process, the pipe to it, its arena for results and the client of the cohort that it works on."""

    process: BaseProcess
    pipe: Connection
    results: Arena
    busy_with: int | None = None


@dataclass(frozen=True)
class Order:
    """A round as it travels to the workers: what differs from round to round, with tensors by place."""

    fields: dict[str, Any]
    scalars: dict[str, float]
    places: dict[str, Place]


class Pool:
    """Worker processes that live as long as the executor; ``workers`` defaults to one per core."""

    name = "pool"

    def __init__(self, workers: int | None = None) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise InputError("the executor pool needs a system with fork (Linux, macOS); use run.executor = 'serial'.")
        self.count = workers or len(os.sched_getaffinity(0))
        self._workers: list[Worker] = []
        self._job: Job | None = None
        self._orders = Arena(1)

    def run(self, job: Job) -> Outcome:
        if len(job.clients.ids) == 1 or self.count == 1:
            return Serial().run(job)
        if self._job is None or not _same_simulation(self._job, job):
            self._start(job, _down_bytes(job) * SPARE, _up_bytes(job) * SPARE)
        for _ in range(2):
            try:
                return self._round(job)
            except ArenaFullError as full:  # an algorithm sends more than in its first round
                self._start(job, max(full.needed, _down_bytes(job)) * SPARE, max(full.needed, _up_bytes(job)) * SPARE)
        return self._round(job)

    def close(self) -> None:
        """Let the workers go."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.join(timeout=5)
            if worker.process.exitcode is None:
                worker.process.kill()  # still at a client that nobody waits for
        self._workers = []
        self._job = None

    def _start(self, job: Job, down: int, up: int) -> None:
        self.close()
        job.samples.prepare_all()  # before the fork, so that all workers share one copy
        self._job, self._orders = job, Arena(down)
        for _ in range(min(self.count, len(job.clients.ids))):
            self._workers.append(self._fork(Arena(up)))

    def _fork(self, results: Arena) -> Worker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        assert self._job is not None
        others = [worker.pipe for worker in self._workers]
        process = context.Process(
            target=_work, args=(there, [here, *others], self._job, self._orders, results), daemon=True
        )
        process.start()
        there.close()
        return Worker(process, here, results)

    def _round(self, job: Job) -> Outcome:
        order = _as_order(job, self._orders)
        # The longest first: whoever is free takes the next, so that nobody is left with a long client at the end.
        waiting = deque(sorted(range(len(job.clients.ids)), key=lambda i: -int(job.steps[i])))
        tries = [0] * len(waiting)
        outcomes: dict[int, Outcome] = {}
        for worker in self._workers:
            worker.busy_with = None
        while len(outcomes) < len(job.clients.ids):
            for number, worker in enumerate(self._workers):
                if worker.busy_with is None and waiting:
                    i = waiting.popleft()
                    worker.busy_with = i
                    try:
                        worker.pipe.send((order, i))
                    except OSError:
                        self._replace(number, waiting, tries, job)
            ready = wait([worker.pipe for worker in self._workers if worker.busy_with is not None])
            for number, worker in enumerate(self._workers):
                if worker.pipe in ready:
                    self._collect(number, outcomes, waiting, tries, job)
        return gather([outcomes[i] for i in range(len(outcomes))])

    def _collect(
        self, number: int, outcomes: dict[int, Outcome], waiting: deque[int], tries: list[int], job: Job
    ) -> None:
        worker = self._workers[number]
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(number, waiting, tries, job)
            return
        i, worker.busy_with = worker.busy_with, None
        assert i is not None
        if isinstance(answer, BaseException):
            self.close()  # others may still be writing; the next round starts afresh
            raise answer
        outcomes[i] = _as_outcome(worker.results.read(answer, copy=True))

    def _replace(self, number: int, waiting: deque[int], tries: list[int], job: Job) -> None:
        worker = self._workers[number]
        i = worker.busy_with
        assert i is not None
        tries[i] += 1
        worker.pipe.close()
        worker.process.join(timeout=5)
        if tries[i] >= ATTEMPTS:
            client = job.clients.ids[i]
            self.close()
            raise WorkerDiedError(
                f"the worker process of client {client} died {ATTEMPTS} times in round {job.round.t + 1} "
                f"(exit code {worker.process.exitcode}); it may need more memory than there is: "
                "try fewer workers (run.workers) or run.executor = 'serial'."
            )
        waiting.appendleft(i)
        self._workers[number] = self._fork(worker.results)


def _work(pipe: Connection, inherited: list[Connection], job: Job, orders: Arena, results: Arena) -> None:
    """A worker's life: one client after the other, until the pipe closes."""
    for other in inherited:
        other.close()  # so that the parent's end is the only one, and its closing is noticed
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the parent decides what it means
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        try:
            order, i = pipe.recv()
        except (EOFError, OSError):
            # At once, without the usual clean-up: a lock that another thread held at the fork (a progress display
            # that was just writing) is held in here for ever.
            os._exit(0)
        try:
            answer: Any = results.write(_flat(train_one(_as_job(job, order, orders), i)))
        except Exception as error:
            answer = error
        try:
            pipe.send(answer)
        except OSError:  # the parent is gone
            os._exit(0)
        except (TypeError, AttributeError, ValueError):  # an exception that cannot be sent
            pipe.send(RuntimeError(f"{type(answer).__name__}: {answer}"))


def _as_order(job: Job, arena: Arena) -> Order:
    """Lay a round's tensors into the arena."""
    tensors = {"buffers": job.buffers, "steps": job.steps, "per_epoch": job.steps_per_epoch, "sizes": job.clients.sizes}
    scalars = {}
    for name, value in job.message.items():
        if isinstance(value, PerClient):
            tensors[f"each/{name}"] = value.rows
        elif isinstance(value, Tensor):
            tensors[f"down/{name}"] = value
        else:
            scalars[name] = value
    tensors |= {f"state/{name}": value for name, value in job.states.items()}
    momentum = job.sgd.momentum
    if isinstance(momentum, Tensor):
        tensors["momentum"] = momentum
    fields = {
        "round": job.round,
        "sgd": replace(job.sgd, momentum=0.0 if isinstance(momentum, Tensor) else momentum),
        "clients": replace(job.clients, sizes=torch.empty(0)),
        "names": list(job.message),
    }
    return Order(fields, scalars, arena.write(tensors))


def _as_job(first: Job, order: Order, arena: Arena) -> Job:
    """The round that an order stands for, with views of the parent's tensors."""
    tensors = arena.read(order.places, copy=False)
    values: dict[str, Any] = dict(order.scalars)
    values |= {k.removeprefix("down/"): v for k, v in tensors.items() if k.startswith("down/")}
    values |= {k.removeprefix("each/"): PerClient(v) for k, v in tensors.items() if k.startswith("each/")}
    sgd = order.fields["sgd"]
    return replace(
        first,
        round=order.fields["round"],
        sgd=replace(sgd, momentum=tensors["momentum"]) if "momentum" in tensors else sgd,
        clients=replace(order.fields["clients"], sizes=tensors["sizes"]),
        message=State(**{name: values[name] for name in order.fields["names"]}),
        states=State(**{k.removeprefix("state/"): v for k, v in tensors.items() if k.startswith("state/")}),
        buffers=tensors["buffers"],
        steps=tensors["steps"],
        steps_per_epoch=tensors["per_epoch"],
    )


def _flat(outcome: Outcome) -> dict[str, Tensor]:
    tensors = {f"message/{name}": value for name, value in outcome.message.items()}
    tensors |= {f"state/{name}": value for name, value in outcome.states.items()}
    tensors |= {f"norms/{number}": value for number, value in enumerate(outcome.norms)}
    return tensors | {"buffers": outcome.buffers, "loss": outcome.loss}


def _as_outcome(tensors: dict[str, Tensor]) -> Outcome:
    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    norms = part("norms/")
    return Outcome(
        State(**part("message/")),
        State(**part("state/")),
        tensors["buffers"],
        tensors["loss"],
        [norms[str(number)] for number in range(len(norms))],
    )


def _same_simulation(one: Job, two: Job) -> bool:
    return one.algorithm is two.algorithm and one.task is two.task and one.samples is two.samples


def _down_bytes(job: Job) -> int:
    values = [v.rows if isinstance(v, PerClient) else v for v in job.message.values()]
    tensors = [v for v in [*values, *job.states.values(), job.buffers] if isinstance(v, Tensor)]
    return sum(v.numel() * v.element_size() for v in tensors) + (1 << 16)


def _up_bytes(job: Job) -> int:
    """A guess at one client's results: a few models and its state."""
    vector = job.task.d * job.task.dtype.itemsize
    state = sum(int(v[0].numel() * v.element_size()) for v in job.states.values())
    return 4 * vector + state + job.buffers[0].numel() * 8 + int(job.steps.max()) * 8 + (1 << 16)
