"""Files that are either wholly there or not at all, also after a loss of power, and that harm no neighbour."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file beside ``path`` to be written in the block; at its end it takes the place of ``path``.

    Where the block fails, ``path`` stays as it was and nothing is left over. A link is followed, and a file that is
    replaced hands on its permissions.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    try:
        usual = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary
        temporary.chmod(usual if mode is None else mode)  # whoever wrote may have put a file of its own there
        _force_to_disk(temporary)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):  # not every file system can; then the new name may be lost, but never the old content
        _force_to_disk(target.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either wholly there or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(directory: Path) -> None:
    """Remove what writers that were killed left in a folder of our own."""
    for path in directory.glob(".*.tmp"):
        if _LEFTOVER.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def _mode(target: Path) -> int | None:
    """The permissions of a file that is to be replaced; None where there is none yet."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(status.st_mode):  # putting a file in the place of a device would break it for everybody
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    return stat.S_IMODE(status.st_mode)


def _force_to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
