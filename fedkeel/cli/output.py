"""Standard output that nobody reads any more, or that lies on a full disk: one sentence, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import sys

READER_GONE = 141
"""The exit code of a program whose reader left (`… | head -1`), as shells give it."""


_LOST = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def is_lost(error: OSError) -> bool:
    """Whether an error comes from writing what was printed: to a file that is open already, hence without a name."""
    return error.errno in _LOST and error.filename is None


def give_up(error: OSError, advice: str = "") -> int:
    """Say that the output cannot be written, print nothing from now on; the exit code."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left in buffers would fail again when Python ends
        os.close(nowhere)
    reason = "nobody reads it any more" if error.errno == errno.EPIPE else error.strerror
    print(f"fedkeel: the output cannot be written: {reason}{advice}.", file=sys.stderr)
    return READER_GONE if error.errno == errno.EPIPE else 2
