"""Where data files are found, how they are fetched, and how they are read without trusting them."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import stat
import struct
import sys
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from fedkeel.errors import DataError, InputError

CHUNK = 1 << 20
TIMEOUT = 20  # seconds without a byte before a download counts as failed
LARGEST_DOWNLOAD = 1 << 30
DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError, RecursionError),
    *(NotImplementedError, RuntimeError, SyntaxError),
    *(struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)
"""Whatever the standard library and numpy raise on an archive that is damaged or made to harm."""


def regular(path: Path) -> Path:
    """The path of a file, or an error: a folder cannot be read, a pipe or a device would wait or never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read ({reason}); check the path.") from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise DataError(f"{path} must be a file, got {kinds.get(stat.S_IFMT(mode), 'a device')}; put the file there.")
    return path


def incomplete(message: str) -> DataError:
    """A part of a set is there, and will do where somebody says so; the sentence names each way to say it."""
    return DataError(
        f"{message}, or accept the part: --set data.subset_ok=true for fedkeel run, --subset-ok for fedkeel partition, "
        "subset_ok=True in Python."
    )


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded: its name, its addresses (tried in order) and the md5 of its bytes."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Place:
    """Where to look for a data set: the folders in order, the cache to download into, and whether to download."""

    source: str
    folders: tuple[Path, ...]
    cache: Path
    download: bool

    def find(self, names: Sequence[str]) -> Path | None:
        """The first of ``names`` that exists, folder by folder; a link that leads nowhere does, to be complained of."""
        for folder in self.folders:
            for name in names:
                if os.path.lexists(folder / name):
                    return folder / name
        return None

    def fetch(self, remotes: Sequence[Remote]) -> None:
        """Download what is not in the cache yet, or say in one sentence what to do by hand."""
        missing = [remote for remote in remotes if not (self.cache / remote.name).exists()]
        reason = "downloads are switched off"
        if self.download:
            try:
                for remote in missing:
                    _download(remote, self.cache)
                return
            except (OSError, HTTPException, ValueError) as error:
                reason = f"downloading failed: {error}"
        names = ", ".join(remote.name for remote in missing)
        looked = ", ".join(str(folder) for folder in self.folders)
        raise DataError(
            f"{self.source} is not there: looked for {names} in {looked} ({reason}); put the files into {self.cache}, "
            f"or name their folder with data_dir or the environment variable FEDKEEL_DATA."
        )


def place(source: str, spellings: Sequence[str], data_dir: str | os.PathLike[str] | None, download: bool) -> Place:
    """The folders to look in: ``data_dir``, else $FEDKEEL_DATA, and the user's cache.

    A folder's sub-folders named after the set come first: MNIST and Fashion-MNIST use the same file names. The first
    spelling is the name of the set's folder in the cache.
    """
    given = os.fspath(data_dir) if data_dir is not None else os.environ.get("FEDKEEL_DATA")
    folders: list[Path] = []
    if given:
        root = Path(given).expanduser()
        if not root.is_dir():
            owner = "data_dir" if data_dir is not None else "the environment variable FEDKEEL_DATA"
            raise InputError(f"{owner} must be a folder that exists, got {str(root)!r}.")
        folders = [root / spelling for spelling in spellings if (root / spelling).is_dir()] + [root]
    cache = cache_folder() / spellings[0]
    return Place(source, (*folders, cache), cache, download)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/fedkeel``, or ``~/.cache/fedkeel``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedkeel"


def read_whole(path: Path, limit: int) -> bytes:
    """The bytes of a plain, ``.gz`` or ``.xz`` file, decompressed, never more than ``limit`` of them."""
    regular(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(limit + 1)
        elif path.suffix == ".xz":
            with lzma.open(path) as squeezed:
                content = squeezed.read(limit + 1)
        else:
            with path.open("rb") as plain:
                content = plain.read(limit + 1)
    except DAMAGE as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged or cut short, fetch it again.") from error
    if len(content) > limit:
        raise DataError(f"{path} holds more than the {limit:,} bytes that belong there: it is not the canonical file.")
    return content


def check_md5(content: bytes, expected: str, path: object) -> None:
    """Refuse content that is not byte for byte the published one."""
    got = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if got != expected:
        raise DataError(
            f"{path} is not the canonical file (md5 of the content {got}, expected {expected}): fetch it again."
        )


def file_md5(path: Path) -> str:
    """The md5 of a file of any size."""
    digest = hashlib.md5(usedforsecurity=False)
    with regular(path).open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name next to ``path`` that becomes ``path`` when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays, because writers such as np.savez add theirs to a name without it.
    temporary = path.with_name(f".{os.getpid()}.part.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _download(remote: Remote, folder: Path) -> None:
    """Fetch ``remote`` from the first address that answers with the right bytes."""
    failure: Exception = ValueError(f"{remote.name} has no address")
    for url in remote.urls:
        try:
            with atomic(folder / remote.name) as temporary:
                _stream(url, temporary, remote)
            return
        except (OSError, HTTPException, ValueError) as error:
            failure = error
    raise failure


def _stream(url: str, target: Path, remote: Remote) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    digest = hashlib.md5(usedforsecurity=False)
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
        target.open("wb") as file,
        Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress,
    ):
        length = answer.headers.get("Content-Length")
        task = progress.add_task(remote.name, total=int(length) if length else None)
        received = 0
        while block := answer.read(CHUNK):
            received += len(block)
            if received > LARGEST_DOWNLOAD:
                raise ValueError(f"{url} sends more than {LARGEST_DOWNLOAD:,} bytes")
            digest.update(block)
            file.write(block)
            progress.advance(task, len(block))
    if digest.hexdigest() != remote.md5:
        raise ValueError(f"{url} sent other bytes than published (md5 {digest.hexdigest()})")
