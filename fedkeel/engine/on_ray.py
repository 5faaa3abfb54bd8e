"""``ray``: the clients of a round on the machines of a Ray cluster, to the bits of ``serial``.

Actors, each with one thread, hold algorithm, task, schedule and samples (``ray_worker``). A round goes out as one
object for all, the broadcast, and as units of a few clients with what these remember; whoever is free takes the next,
the longest first. What clients remember stays here, as does everything that a round decides. Outcomes are laid in
client order, whoever computed them. An actor that is lost, alone or with its machine, is replaced, and its units are
computed again; nothing is waited for without an end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.engine import ray_cluster
from fedkeel.engine.client import Equipment
from fedkeel.engine.exchange import Outcome, gather
from fedkeel.engine.executors import Job
from fedkeel.engine.pool import ATTEMPTS, WorkerDiedError
from fedkeel.engine.ray_cluster import ClusterError, software
from fedkeel.engine.ray_worker import (
    Arrays,
    Hello,
    Order,
    Sheet,
    Unit,
    Worker,
    as_arrays,
    copied,
    packed_kit,
    probe,
)
from fedkeel.engine.samples import Samples, Scored
from fedkeel.engine.threads import one_thread
from fedkeel.engine.wire import packed_call, unpacked_outcome
from fedkeel.engine.worker_errors import Failure, WorkerError
from fedkeel.errors import InputError
from fedkeel.learning.task import Score, Seeds, Task
from fedkeel.learning.trial import ROUND_OFF
from fedkeel.notices import notice
from fedkeel.system import cores

AHEAD = 2
"""Units that an actor may have at a time: with one only, it would wait for the next."""
SHARE = 2
"""A unit is at most this part of an actor's share of what is left to do; the last ones are of single clients."""
LOOK = 1.0
"""Seconds between two looks at what is not there yet."""
PATIENCE = 120.0
"""Seconds for which nobody may be there to compute."""


@dataclass(frozen=True)
class Command:
    """Something for an actor to do: train the clients of a unit, or mark sheets."""

    what: Unit | list[Sheet]
    purpose: str
    """For errors."""


@dataclass(eq=False)
class Actor:
    """A process of the cluster, and the commands that it has not answered yet, by number."""

    handle: Any
    hello: Any
    """What it will say of itself; None once it has."""
    node: str = ""
    at: deque[tuple[int, Any]] = field(default_factory=deque)
    """Numbers of commands, and where the answers will be."""


class OnRay:
    """Actors that live as long as the executor; ``workers`` defaults to one for each processor of the cluster."""

    name = "ray"
    lanes = 1

    def __init__(self, workers: int | None = None, address: str | None = None, patience: float = PATIENCE) -> None:
        self._asked, self._address, self._patience = workers, address, patience
        self._ray: Any = None
        self._equipment: Equipment | None = None
        self._samples: Samples | None = None
        self._kit: Any = None
        self._expected: tuple[float, Any] | None = None
        self._actors: list[Actor] = []
        self._orders = 0
        self._told: set[str] = set()
        self._failed_starts = 0
        self._was = ""
        """Who computed last."""

    @property
    def shares(self) -> bool:
        if self._ray is not None:
            return len(self._actors) > 1
        return (self._asked or (cores() if self._address is None else AHEAD)) > 1

    def keep(self, lanes: int) -> None:
        pass

    def describe(self) -> str:
        if not self._was:
            asked = "" if self._asked is None else f", {_counted(self._asked, 'actor')}"
            return f"ray{asked}" + ("" if self._address is None else f" at {self._address}")
        return self._was

    def run(self, job: Job) -> Outcome:
        """Train every client of the job; the outcome lies in memory of its own."""
        self._start(job.equipment, job.samples)
        groups = units(job, len(self._actors))
        parts = job.task.sheets(len(job.samples.test[1])) if job.exam else []
        seeds = job.task.seeds_of(parts, job.exam_seeds)
        sheets = [
            Sheet(number, "test", part, seed)
            for number in range(len(job.exam))
            for part, seed in zip(parts, seeds, strict=True)
        ]
        told = {**told_to_all(job), **_models(job.exam)}
        commands = [Command(unit_of(job, rows), _whose(job, rows)) for rows in groups]
        answers = self._carried_out(told, [*commands, *self._dealt(sheets)])
        found: list[Arrays] = [arrays for answer in answers[: len(groups)] for arrays in answer]
        outcome = _in_client_order(found, [row for rows in groups for row in rows])
        marks = iter([mark for answer in answers[len(groups) :] for mark in answer])
        scores = tuple(job.task.score(w, [next(marks) for _ in parts]) for w, _ in job.exam)
        return replace(outcome, scores=scores)

    def evaluate(
        self, task: Task, samples: Samples, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None
    ) -> Score:
        """The samples in parts, dealt to the actors; the parts and the order of their sums are always the same."""
        x, y = samples.to_score(on)
        parts = task.sheets(len(x))
        known = self._equipment is not None and self._equipment.task is task and self._samples is samples
        if not known or len(parts) == 1:
            with one_thread():
                return task.evaluate(w, b, x, y, seeds)
        dealt = zip(parts, task.seeds_of(parts, seeds), strict=True)
        commands = self._dealt([Sheet(0, on, part, seed) for part, seed in dealt])
        answers = self._carried_out(_models([(w, b)]), commands)
        return task.score(w, [mark for answer in answers for mark in answer])

    def close(self) -> None:
        """Let the actors go, and the cluster if it was started here."""
        if self._ray is None:
            return
        ray, self._ray = self._ray, None
        try:
            for actor in self._actors:
                _kill(ray, actor)
        finally:
            self._actors.clear()
            self._equipment = self._samples = self._kit = self._expected = None
            ray_cluster.leave()

    def _start(self, equipment: Equipment, samples: Samples) -> None:
        if self._equipment is equipment and self._samples is samples:
            return
        self._ray = self._ray or ray_cluster.join(self._address, self._asked)
        try:
            self._kit = self._ray.put(packed_kit(equipment, samples))
            self._expected = probe(equipment, samples)
            self._equipment, self._samples, self._failed_starts = equipment, samples, 0
            for actor in self._actors:  # of another simulation, before this one
                actor.hello = actor.handle.prepare.remote(self._kit)
            while len(self._actors) < self._wanted():
                self._actors.append(self._actor())
        except BaseException:
            self.close()
            raise

    def _wanted(self) -> int:
        there = ray_cluster.processors(self._ray)
        if (self._asked or 1) > there:
            raise InputError(
                f"run.workers must be at most {there}, the processors of the Ray cluster, got {self._asked}; each "
                "actor needs one."
            )
        return self._asked or there

    def _actor(self) -> Actor:
        kind = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Worker)
        handle = kind.remote()
        return Actor(handle, handle.prepare.remote(self._kit))

    def _dealt(self, sheets: list[Sheet]) -> list[Command]:
        """Sheets in as many commands as keep everybody busy to the end."""
        size = max(1, len(sheets) // (2 * len(self._actors)))
        return [Command(sheets[i : i + size], "that evaluates a model") for i in range(0, len(sheets), size)]

    def _carried_out(self, told: Mapping[str, Tensor], commands: Sequence[Command]) -> list[Any]:
        """The actors' answers to all commands, whoever gives them."""
        try:
            self._orders += 1
            order = self._ray.put(Order(self._orders, as_arrays(told)))
            answers = self._answers(order, commands)
            there = [actor.node for actor in self._actors if actor.hello is None]
            self._was = f"ray, {_counted(len(there), 'actor')} on {_counted(len(set(there)), 'node')}"
            return answers
        except BaseException as error:
            # Actors may still be at it, and must not be asked for anything else.
            ray, lost = self._ray, self._ray.exceptions.RayError
            self.close()
            if isinstance(error, lost) and ray is not None:
                raise ClusterError(f"the Ray cluster broke down: {_first_line(error)}.") from error
            raise

    def _answers(self, order: Any, commands: Sequence[Command]) -> list[Any]:
        waiting, tries = deque(range(len(commands))), [0] * len(commands)
        answers: dict[int, Any] = {}
        seen = time.monotonic()
        while len(answers) < len(commands):
            for depth in range(1, AHEAD + 1):
                for actor in self._actors:
                    if len(actor.at) < depth:
                        self._supply(actor, order, commands, waiting)
            refs = {ref: actor for actor in self._actors for _, ref in actor.at}
            refs |= {actor.hello: actor for actor in self._actors if actor.hello is not None}
            ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=LOOK)
            for ref in ready:
                self._collect(refs[ref], ref, commands, answers, waiting, tries)
            if any(actor.hello is None for actor in self._actors):
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience:
                raise ClusterError(self._nobody())
            if not ready:
                self._look_after(commands, waiting, tries)
        return [answers[number] for number in range(len(commands))]

    def _supply(self, actor: Actor, order: Any, commands: Sequence[Command], waiting: deque[int]) -> None:
        """Give an actor its next command; one ahead, so that it need not wait, only while there is enough for all."""
        if not waiting or actor.hello is not None or (actor.at and len(waiting) < len(self._actors)):
            return
        number = waiting.popleft()
        what = commands[number].what
        method = actor.handle.train if isinstance(what, Unit) else actor.handle.mark
        actor.at.append((number, method.remote(order, what)))

    def _collect(
        self,
        actor: Actor,
        ref: Any,
        commands: Sequence[Command],
        answers: dict[int, Any],
        waiting: deque[int],
        tries: list[int],
    ) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref, timeout=LOOK)
        except errors.GetTimeoutError:  # a large answer of a machine far away is still on its way
            return
        except (errors.RayTaskError, errors.RaySystemError) as error:
            if isinstance(error, errors.RayActorError | errors.ObjectLostError):
                self._replace(actor, commands, waiting, tries)
                return
            raise WorkerError(f"an actor of the Ray cluster failed: {_first_line(error)}.") from error
        except errors.LocalRayletDiedError:
            raise
        except errors.RayError:  # the actor, its machine, its memory or its answer is gone
            self._replace(actor, commands, waiting, tries)
            return
        if ref is actor.hello:
            if isinstance(answer, Failure):
                answer.raise_again("of the Ray cluster that was to be prepared")
            self._greet(answer)
            actor.hello, actor.node, self._failed_starts = None, answer.node, 0
            return
        number = next(number for number, known in actor.at if known is ref)
        if isinstance(answer, Failure):
            answer.raise_again(commands[number].purpose)
        actor.at = deque(one for one in actor.at if one[0] != number)
        answers[number] = answer

    def _greet(self, hello: Hello) -> None:
        """Refuse an actor that would compute something else, and tell of one that may differ in the last digits."""
        for name, ours in software().items():
            if hello.software.get(name) != ours:
                raise ClusterError(
                    f"the machine {hello.host} of the Ray cluster has {name} {hello.software.get(name)}, this one has "
                    f"{ours}; install the same on all."
                )
        assert self._expected is not None
        assert self._equipment is not None
        loss, gradient = self._expected
        if hello.loss == loss and np.array_equal(hello.gradient, gradient, equal_nan=True):
            if hello.processor == torch.backends.cpu.get_cpu_capability():
                return
            said = "has other instructions"
        else:
            off = float(np.linalg.norm(hello.gradient - gradient))
            if not off <= ROUND_OFF[self._equipment.task.dtype] * float(np.linalg.norm(gradient)):
                raise ClusterError(
                    f"the machine {hello.host} of the Ray cluster computes another gradient of the initial model than "
                    "this one; something that the model depends on is not the same there (a patched library, a file, "
                    "a variable of the environment)."
                )
            said = "computes other last digits"
        if hello.host not in self._told:
            self._told.add(hello.host)
            notice(
                "machine",
                f"the machine {hello.host} of the Ray cluster {said} than this one: the bits of a run depend on which "
                "machine computes which client.",
            )

    def _replace(self, actor: Actor, commands: Sequence[Command], waiting: deque[int], tries: list[int]) -> None:
        """Another actor for one that was lost at the first of its commands; all of them are to be carried out again."""
        _kill(self._ray, actor)
        self._actors[self._actors.index(actor)] = self._actor()
        if not actor.at:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS * len(self._actors):
                raise WorkerDiedError(
                    "actors of the Ray cluster keep dying before they have done anything; its machines may lack "
                    "memory: try fewer workers (run.workers), or look into the logs of Ray."
                )
            return
        first = actor.at[0][0]
        tries[first] += 1
        if tries[first] >= ATTEMPTS:
            raise WorkerDiedError(
                f"the actor {commands[first].purpose} was lost {ATTEMPTS} times; its machine may need more memory than "
                "there is: try fewer workers (run.workers) or run.executor = 'serial'."
            )
        waiting.extendleft(reversed([number for number, _ in actor.at]))

    def _look_after(self, commands: Sequence[Command], waiting: deque[int], tries: list[int]) -> None:
        """Replace actors whose machine is gone, should Ray not have said so by their answers."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for actor in list(self._actors):
            if actor.hello is None and actor.node not in alive:
                self._replace(actor, commands, waiting, tries)

    def _nobody(self) -> str:
        free = int(self._ray.available_resources().get("CPU", 0))
        return (
            f"no actor could start in the Ray cluster within {self._patience:.0f} s: of its "
            f"{ray_cluster.processors(self._ray)} processors on {_counted(ray_cluster.nodes(self._ray), 'node')} "
            f"{free} are free; end what else runs there, or ask for fewer workers (run.workers)."
        )


def units(job: Job, actors: int) -> list[list[int]]:
    """The cohort's rows in units of clients, the longest first; the units become smaller towards the end."""
    rows = deque(sorted(range(len(job.clients.ids)), key=lambda i: -int(job.steps[i])))
    left, together = int(job.steps.sum()), []
    while rows:
        unit = [rows.popleft()]
        work = int(job.steps[unit[0]])
        while rows and work + int(job.steps[rows[0]]) <= left / (SHARE * actors):
            unit.append(rows.popleft())
            work += int(job.steps[unit[-1]])
        together.append(unit)
        left -= work
    return together


def told_to_all(job: Job) -> dict[str, Tensor]:
    """What of a call is the same for all clients and large."""
    tensors = packed_call(job.call).tensors
    return {name: value for name, value in tensors.items() if _is_common(name) and isinstance(value, Tensor)}


def unit_of(job: Job, rows: list[int]) -> Unit:
    """What some clients alone are told and remember."""
    parcel = packed_call(job.call.take(rows))
    tensors = {name: value for name, value in parcel.tensors.items() if not _is_common(name)}
    tensors |= {"buffers": job.buffers[rows]}
    tensors |= {f"state/{name}": torch.stack([all_rows[i] for i in rows]) for name, all_rows in job.states.items()}
    return Unit(parcel.head, as_arrays({n: v if isinstance(v, Tensor) else torch.stack(v) for n, v in tensors.items()}))


def _is_common(name: str) -> bool:
    return name == "b" or name.startswith("down/")


def _models(exam: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {
        f"exam/{number}/{name}": part
        for number, model in enumerate(exam)
        for name, part in zip("wb", model, strict=True)
    }


def _in_client_order(found: list[Arrays], rows: list[int]) -> Outcome:
    """Outcomes of single clients as one; each value is copied once, from Ray's memory to its place."""
    names = [name for name in found[0] if not name.startswith("norms/")]
    shapes = {name: found[0][name].shape for name in names}
    if any(one.keys() != found[0].keys() or any(one[n].shape != shapes[n] for n in names) for one in found):
        return gather([unpacked_outcome(copied(one)) for one in found], rows)  # which says what is wrong with that
    table = {}
    for name in names:
        # In torch's memory, which begins at a cache line; an empty array tells what torch calls its type.
        like = torch.from_numpy(np.empty(0, found[0][name].dtype))
        table[name] = like.new_empty((len(found), *found[0][name].shape[1:]))
        whole = table[name].numpy()
        for row, one in zip(rows, found, strict=True):
            whole[row] = one[name][0]
    norms = {f"norms/{row}": torch.tensor(one["norms/0"]) for row, one in zip(rows, found, strict=True)}
    return unpacked_outcome(table | norms)


def _whose(job: Job, rows: list[int]) -> str:
    ids = ", ".join(str(job.clients.ids[i]) for i in rows)
    return f"of client {ids} in round {job.round.t + 1}"


def _kill(ray: Any, actor: Actor) -> None:
    try:
        ray.kill(actor.handle)
    except Exception:  # it is gone, or the cluster is
        return


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")[:300]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
