"""Processes that measure: forked, one torch thread each, asleep until asked, then all at work at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from fedkeel.errors import FedkeelError

LOOKS_UP = 5.0
"""Seconds between two looks whether the parent still lives."""


class CrewError(FedkeelError):
    """A measuring process failed."""


@dataclass(frozen=True)
class Seat:
    """Who a process is among its like, and where they wait for each other."""

    rank: int
    count: int
    barrier: Barrier


Duty = Callable[[Any], Any]
"""What a process does when asked: from a request to an answer, both small and picklable."""


class Crew:
    """``count`` processes, each with a duty of its own that ``make`` gives it after the fork."""

    def __init__(self, count: int, make: Callable[[Seat], Duty]) -> None:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(count)
        self._members = []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(
                target=_live, args=(there, os.getpid(), make, Seat(rank, count, barrier)), daemon=True
            )
            process.start()
            there.close()
            self._members.append((process, here))

    def ask(self, request: Any) -> list[Any]:
        """Put a request to all at once; their answers by rank."""
        for _, pipe in self._members:
            pipe.send(request)
        answers = []
        for process, pipe in self._members:
            try:
                answers.append(pipe.recv())
            except EOFError:
                process.join()
                raise CrewError(f"a measuring process died (exit code {process.exitcode}); is memory short?") from None
        failed = [answer for answer in answers if isinstance(answer, _Failure)]
        if failed:
            raise CrewError(f"a measuring process failed: {failed[0].reason}.")
        return answers

    def close(self) -> None:
        """Send everybody home."""
        for process, pipe in self._members:
            if process.is_alive():
                pipe.send(None)
                process.join(timeout=5)
            pipe.close()
        self._members = []


@dataclass(frozen=True)
class _Failure:
    reason: str


def _live(pipe: Connection, parent: int, make: Callable[[Seat], Duty], seat: Seat) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    torch.set_num_threads(1)
    duty = None
    while True:
        # Not the end of the pipe but the parent's death is watched for: processes forked later hold the pipe open too.
        while not pipe.poll(LOOKS_UP):
            if os.getppid() != parent:
                os._exit(0)
        request = pipe.recv()
        if request is None:
            os._exit(0)  # without the clean-up of what belongs to the parent
        try:
            duty = duty or make(seat)
            pipe.send(duty(request))
        except Exception as error:
            seat.barrier.abort()  # so that nobody waits for this one
            pipe.send(_Failure(f"{type(error).__name__}: {error}"))
