"""Ctrl-C and SIGTERM: the first lets the round end and be committed, the second stops at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h"  # a progress display hides it, and nobody else is left to bring it back


class StopRequest:
    """Whether somebody asked to stop, while the ``with`` block lasts; only a program's main thread can listen."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            _say(b"\nfedkeel: stopping after this round; the same again stops at once.\n")
            return
        for worker in multiprocessing.active_children():
            worker.kill()
        _say(b"\nfedkeel: stopped at once; the last whole round is kept, --resume goes on after it.\n")
        os._exit(128 + number)


def _say(text: bytes) -> None:
    # Not print(): a handler may run in the middle of another print.
    os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + text)
