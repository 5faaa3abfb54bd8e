"""The executors by name, and ``auto``, which tries them on the first round and takes the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from fedkeel import arguments
from fedkeel.engine.client import train_one, train_together
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Executor, Job, Serial
from fedkeel.engine.grouping import can_stack, groups
from fedkeel.engine.on_ray import OnRay
from fedkeel.engine.pool import Pool, PoolError
from fedkeel.engine.ray_cluster import library
from fedkeel.engine.samples import Samples, Scored
from fedkeel.engine.soundness import representable
from fedkeel.errors import invalid, unknown
from fedkeel.learning.task import Score, Seeds, Task
from fedkeel.notices import notice
from fedkeel.system import cores

T = TypeVar("T")
NAMES = ("auto", "serial", "pool", "stacked", "ray")
WORTH = 1.15
"""Stacking has to be this much faster than one client after the other, which has the bits of ``serial``."""
SHORT = 0.01
"""Seconds: rounds shorter than this stay in one process, since handing work over would take as long."""
TRIAL_STEPS = 8
MOST_WORKERS = 1024
"""Beyond this a number of processes is a slip of the keyboard."""


def make_executor(
    name: str,
    workers: int | None = None,
    device: torch.device = CPU,
    owner: str = "run.",
    address: str | None = None,
) -> Executor:
    """An executor; ``workers`` is the number of processes of those that have several (default: one per core).

    An accelerator is driven by one process, which may stack clients. ``owner`` is what errors put before the names.
    ``address`` is that of a Ray cluster.
    """
    name = arguments.text(f"{owner}executor", name)
    if workers is not None and not 0 < workers <= MOST_WORKERS:
        raise invalid(f"{owner}workers", f"a whole number from 1 to {MOST_WORKERS}", workers, "Absent: one per core.")
    if device.type != "cpu":
        if name == "ray":
            raise invalid(f"{owner}device", f"cpu with {owner}executor = 'ray'", str(device))
        if name == "pool" or (workers or 1) > 1:
            got = "several workers" if name != "pool" else "pool"
            raise invalid(f"{owner}executor", f"auto, serial or stacked in one process on {device}", got)
        workers = 1
    if name == "auto":
        return Auto(workers)
    if name == "serial":
        return Serial()
    if name in ("pool", "stacked"):
        return Pool(workers, stack=name == "stacked")
    if name == "ray":
        library()  # a missing package should be known before data are read
        return OnRay(workers, address)
    raise unknown("executor", name, list(NAMES))


@dataclass(frozen=True)
class Choice:
    """What ``auto`` picked, and why."""

    executor: Literal["serial", "pool", "stacked"]
    reason: str


class Auto:
    """The executor that a short trial with the first round's clients finds best; the rest of the run uses it."""

    name = "auto"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._executor: Executor | None = None
        self.choice: Choice | None = None

    @property
    def shares(self) -> bool:
        return self._executor is not None and self._executor.shares

    @property
    def lanes(self) -> int:
        return 1 if self._executor is None else self._executor.lanes

    def keep(self, lanes: int) -> None:
        if self._executor is not None:
            self._executor.keep(lanes)

    def decide(self, choice: Choice) -> None:
        """Use this executor without a trial, as a resumed run must."""
        self.choice = choice
        self._executor = make_executor(choice.executor, self._workers)

    def choose(self, job: Job) -> Choice:
        """Try on a round what is best, and use it from now on."""
        with representable("the trial of executors failed"):
            choice = tried(job, self._workers or cores())
        self.decide(choice)
        return choice

    def run(self, job: Job) -> Outcome:
        if self._executor is None:
            self.choose(job)
        return self._attempted(lambda executor: executor.run(job))

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        return self._attempted(lambda executor: executor.evaluate(task, samples, w, b, on, seeds))

    def _attempted(self, work: Callable[[Executor], T]) -> T:
        """Where no worker processes can be had, this one computes the same."""
        executor = self._executor or Serial()
        try:
            return work(executor)
        except PoolError as error:
            if not isinstance(executor, Pool):
                raise
            executor.stay_here()
            notice("executor", f"{error} From here on one process computes everything, to the same results.")
            return work(executor)

    def describe(self) -> str:
        if self.choice is None or self._executor is None:
            return "auto"
        return f"auto: {self._executor.describe()} ({self.choice.reason})"

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()


def tried(job: Job, workers: int) -> Choice:
    """A few steps of a client alone and of a group together; nothing of it is kept."""
    steps = job.steps.clamp(max=TRIAL_STEPS)
    trial = replace(job, call=replace(job.call, steps=steps))
    alone = _seconds(lambda: train_one(trial, 0)) / max(1, int(steps[0]))
    group = groups(job, workers)[0]
    text = f"{_text(alone)} a client and step"
    if len(group) > 1 and can_stack(job.task):
        part = trial.take(group)
        together = _seconds(lambda: train_together(part)) / max(1, int(part.steps.sum()))
        text = f"{_text(together)} a client and step in groups of {len(group)}, {_text(alone)} one by one"
        if together * WORTH < alone:
            return Choice("stacked", text)
    if workers == 1 or len(job.clients.ids) == 1 or alone * int(job.steps.sum()) < SHORT:
        return Choice("serial", text)
    return Choice("pool", text)


def _seconds(work: Callable[[], Outcome]) -> float:
    """The shorter of two tries; the first also warms up."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        float(work().loss.sum())  # an accelerator is done when somebody looks
        times.append(time.perf_counter() - began)
    return min(times)


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 1 else f"{seconds:.1f} s"
