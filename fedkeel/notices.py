"""What a person should know although nothing failed: a warning at once, and a line in the diary of the run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, str], None]
"""Is told the kind of a notice and its sentence."""


class FedkeelWarning(UserWarning):
    """Something that changes no result, but that a person may want to look into."""


_listener: ContextVar[tuple[int, Listener] | None] = ContextVar("listener", default=None)


def notice(kind: str, text: str) -> None:
    """Tell whoever listens in this process and thread, and warn."""
    found = _listener.get()
    if found is not None and found[0] == os.getpid():  # a worker must not write into its parent's store
        found[1](kind, text)
    warnings.warn(text, FedkeelWarning, stacklevel=3)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Notices in the ``with`` block go to a listener too."""
    before = _listener.set((os.getpid(), listener))
    try:
        yield
    finally:
        _listener.reset(before)
