"""Inputs that go wrong in every way, for the test of what watches them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.hostile import guarded


def trial(seed: int, number: int) -> tuple[str, Callable[[], str | None]]:
    """Input 1 raises, input 2 hangs, input 3 dies."""
    acts: dict[int, Callable[[], object]] = {
        1: lambda: 1 / 0,
        2: lambda: time.sleep(3600),
        3: lambda: os.kill(os.getpid(), signal.SIGKILL),
    }

    def give() -> None:
        acts.get(number, int)()

    return f"input {number}", give


if __name__ == "__main__":
    guarded.SECONDS = 0.2
    guarded.main(trial)
