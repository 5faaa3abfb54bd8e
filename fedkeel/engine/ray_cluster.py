"""The Ray cluster that this process works with: one that it joins, or a small one of its own on this machine.

Ray is imported here only, and only when somebody asks for it. Who uses the cluster says so (``join``) and takes leave
of it; when the last has gone, a connection that was made here ends, and with it a cluster that was started here. Where
the program itself had connected to Ray before, its connection is used and left as it is.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedkeel import __version__
from fedkeel.errors import FedkeelError, InputError
from fedkeel.system import ProcessLock, cores

_SHARED = ProcessLock()
_FOLDER = "fkray-"
"""Beginning of the names of folders in which clusters of our own keep their sockets; the process follows."""
REACHED = 10.0
"""Seconds within which a cluster must be heard from."""
_LONGEST = 40
"""Bytes of the path of such a folder: Ray adds names of its own, and a socket's path ends at 107."""


class ClusterError(FedkeelError):
    """A Ray cluster that cannot be had, or not be used."""


@dataclass
class _Connection:
    """What was made here and is to be ended here."""

    users: int = 0
    folder: Path | None = None
    """Of a cluster of our own."""
    started: int = 0
    """The process that connected."""


_ours = _Connection()


def library() -> Any:
    """Ray, which tells nobody about its use."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # which spares a warning about accelerators
    # In a cluster of our own actors are worth as much as this process; Ray would let everybody else go first.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"Ray is not installed ({error}); install it with: pip install 'fedkeel[ray]'.") from None
    return ray


def join(address: str | None = None, cpus: int | None = None) -> Any:
    """Ray, connected: to the cluster at an address, or to one of our own with so many processors (default: all).

    Every call wants one of ``leave``.
    """
    ray = library()
    with _SHARED.held():
        if _ours.started != os.getpid():  # a child of a process with a connection has none
            _ours.users, _ours.folder = 0, None
        if not ray.is_initialized():
            _connect(ray, address, cpus)
            _ours.users, _ours.started = 1, os.getpid()
        else:
            _check_same(ray, address)
            if _ours.users:
                _ours.users += 1
    return ray


def leave() -> None:
    """Say that the cluster is not needed any more."""
    with _SHARED.held():
        if not _ours.users or _ours.started != os.getpid():
            return
        _ours.users -= 1
        if _ours.users == 0:
            _end()


def joined_by_us() -> bool:
    """Whether the connection of this process was made here."""
    return _ours.users > 0 and _ours.started == os.getpid()


@cache
def software() -> dict[str, str]:
    """What decides what is computed, beside the machine: the same is wanted on all of a cluster."""
    digest = hashlib.blake2b(digest_size=8)
    folder = Path(__file__).resolve().parents[1]
    for part in ("algorithms", "data", "engine", "learning", "state"):
        for path in sorted((folder / part).rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    found = {name: version(name) for name in ("torch", "numpy")}  # importing them would take longer
    return {"fedkeel": f"{__version__} ({digest.hexdigest()})", **found}


def nodes(ray: Any) -> int:
    """Machines of the cluster that are alive, as Ray counts them."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def processors(ray: Any) -> int:
    """Of all its machines; at least one."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


def _connect(ray: Any, address: str | None, cpus: int | None) -> None:
    if address is not None and "://" in address:
        raise InputError(
            f"the address of a Ray cluster must be host:port or 'auto', got {address!r}: Ray's client for programs "
            "outside of a cluster is not supported; start fedkeel on one of its machines."
        )
    logging.getLogger("ray").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            _knock(address)
            ray.init(address=address, **common)
        else:
            _sweep()
            _ours.folder = _folder()
            ray.init(
                address="local",
                num_cpus=cpus or cores(),
                include_dashboard=False,
                _temp_dir=str(_ours.folder),
                **common,
            )
    except BaseException as error:
        _end()
        if not isinstance(error, Exception):
            raise
        reason = " ".join(str(error).split()).rstrip(".")[:300]
        what = "no Ray cluster could be started here" if address is None else f"no Ray cluster answers at {address!r}"
        hint = "" if address is None else "; is it running (ray start --head), and is this one of its machines?"
        raise ClusterError(f"{what}: {reason}{hint or '.'}") from error
    atexit.register(_end)


def _knock(address: str) -> None:
    """Whether anybody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=REACHED).close()


def _check_same(ray: Any, address: str | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", here):
        raise InputError(
            f"the address of a Ray cluster must be {here!r}, to which this process is connected already, got "
            f"{address!r}; leave it out, or call ray.shutdown() first."
        )


def _end() -> None:
    """End the connection; a cluster of our own goes with it, and so does its folder."""
    atexit.unregister(_end)
    ray = sys.modules.get("ray")
    with suppress(Exception):  # whatever is left of a cluster that broke down
        if ray is not None:
            ray.shutdown()
    if _ours.folder is not None:
        shutil.rmtree(_ours.folder, ignore_errors=True)
    _ours.users, _ours.folder = 0, None


def _folder() -> Path:
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) + len(_FOLDER) + 18 > _LONGEST and os.access("/tmp", os.W_OK):
        place = "/tmp"
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=place))


def _sweep() -> None:
    """Remove the folders of clusters whose process was killed; Ray's own processes had ended with it."""
    for place in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(place).glob(f"{_FOLDER}*-*"):
            number = folder.name.removeprefix(_FOLDER).partition("-")[0]
            with suppress(OSError):
                if number.isdecimal() and folder.stat().st_uid == os.getuid() and not _lives(int(number)):
                    shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
