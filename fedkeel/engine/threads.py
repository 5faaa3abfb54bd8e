"""torch's number of threads while a run goes on, for a process in which several may go on at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedkeel.errors import InputError, invalid
from fedkeel.system import ProcessLock

MOST_THREADS = 1024
"""With a hundred thousand of them the process breaks down."""
_SHARED = ProcessLock()
_at_work: list[tuple[int, int]] = []
"""Of each run that goes on: the thread that it is in, and how many threads of torch it has."""
_found = 1
"""How many there were before the first of them."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with so many threads; afterwards there are as many as before.

    The number decides bits: runs that go on at the same time must agree on it. torch has one for every thread of the
    process, and a new thread begins with the last that was set anywhere: in a thread that began during another's run,
    that run's number is not one that was there before.
    """
    global _found
    if not 0 < count <= MOST_THREADS:
        raise invalid("threads", f"a whole number from 1 to {MOST_THREADS}", count)
    with _SHARED.held():
        if any(count != other for _, other in _at_work):
            raise InputError(
                f"threads must be {_at_work[0][1]}, as in the run that is going on in this process, got "
                f"{count}; give both the same number, or start them in processes of their own."
            )
        before, here = torch.get_num_threads(), threading.get_ident()
        if not _at_work:
            _found = before
        elif before == count and all(thread != here for thread, _ in _at_work):
            before = _found
        _at_work.append((here, count))
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _SHARED.held():
            _at_work.remove((here, count))
            torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, as worker processes do."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
