"""Which clients of a cohort are computed together."""

from __future__ import annotations

from fedkeel.engine.executors import Job
from fedkeel.learning.task import Task

CACHE = 1 << 20
"""A group's parameters stay below this many bytes: beyond, every pass over them goes to main memory."""
UNEQUAL = 1.5
"""Clients whose numbers of steps differ by more than this factor are not computed together: the shorter would wait."""


def can_stack(task: Task) -> bool:
    """Whether several clients of this task are one computation (dense networks) and not just a loop over them.

    A model that may draw random numbers is not: what it draws belongs to one client.
    """
    return task.dense is not None and task.draws_nothing


def groups(job: Job, workers: int) -> list[list[int]]:
    """The cohort's rows in groups of similar work, the longest first; as many groups as keep all workers busy."""
    longest_first = sorted(range(len(job.clients.ids)), key=lambda i: -int(job.steps[i]))
    if not can_stack(job.task):
        return [[i] for i in longest_first]
    size = group_size(job, workers)
    together: list[list[int]] = []
    for i in longest_first:
        room = together and len(together[-1]) < size
        if room and int(job.steps[together[-1][0]]) <= UNEQUAL * int(job.steps[i]):
            together[-1].append(i)
        else:
            together.append([i])
    return together


def group_size(job: Job, workers: int) -> int:
    """How many clients fit a group: few enough for the cache, and the same number of groups for every worker."""
    clients = len(job.clients.ids)
    most = max(1, CACHE // (job.task.d * job.task.dtype.itemsize))
    turns = -(-clients // (most * workers))
    return -(-clients // (turns * workers))
