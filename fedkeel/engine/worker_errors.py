"""An exception on its way from a worker to its parent: as itself where that works, and never without its words."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from fedkeel.errors import FedkeelError


class WorkerError(FedkeelError, RuntimeError):
    """Stands for an exception that could not leave its worker; the message names it, the cause has its traceback."""


class InWorkerError(Exception):
    """The traceback in the worker, as the cause of what is raised in the parent."""


@dataclass(frozen=True)
class Failure:
    """What a worker answers instead of a result."""

    words: str
    """Kind, message and place."""
    trace: str
    pickled: bytes | None
    """The exception, where it comes out of its bytes as it went in."""

    def raise_again(self, whose: str) -> NoReturn:
        """Raise the exception in this process."""
        error: BaseException = WorkerError(f"the worker process {whose} failed: {self.words}.")
        if self.pickled is not None:
            error = ForkingPickler.loads(self.pickled)
        raise error from InWorkerError(f"\n\n{self.trace}")


def failure_of(error: BaseException, dumps: Callable[[object], bytes] | None = None) -> Failure:
    """An exception with everything that can be said of it.

    ``dumps`` makes the bytes where the usual way does not do: what it gives must be readable in that way.
    """
    try:
        text = str(error)
    except Exception:  # a message that cannot be made must not hide which exception it was
        text = "(no message)"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    first_line = text.strip().partition("\n")[0].rstrip(".")
    words = f"{type(error).__qualname__}{': ' if first_line else ''}{first_line}{where}"
    trace = "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__qualname__}: {text}"
    return Failure(words, trace, _pickled(error, text, dumps or ForkingPickler.dumps))


def _pickled(error: BaseException, text: str, dumps: Callable[[object], Any]) -> bytes | None:
    if not isinstance(error, Exception):  # an exit of the worker is none of the program
        return None
    try:
        pickled = bytes(dumps(error))
        again = ForkingPickler.loads(pickled)
        return pickled if type(again) is type(error) and str(again) == text else None
    except Exception:  # whatever somebody's exception does when it is taken apart or put together
        return None
