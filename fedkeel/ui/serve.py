"""``fedkeel ui``: the page on an address of this machine, until Ctrl-C."""

from __future__ import annotations

import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from fedkeel import theme
from fedkeel.errors import InputError
from fedkeel.ui.app import Site, build
from fedkeel.ui.guard import Guard, is_loopback

SHORTEST = 16
"""Characters of a token that is chosen by hand."""


def serve(
    folder: Path,
    host: str,
    port: int,
    token: str | None,
    data_dir: Path | None,
    read_only: bool,
    tell: Callable[[str], None],
) -> None:
    """Answer until the process is asked to end. ``tell`` is told where the page is."""
    if token is not None and (len(token) < SHORTEST or not token.isprintable()):
        raise InputError(f"--token must have at least {SHORTEST} printable characters; leave it out and one is made.")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    sys.setswitchinterval(0.001)  # pages are answered while a thread reads runs
    with listening(host, port) as listener:
        at = listener.getsockname()[1]
        site = Site(folder, Guard.of(host, at, token), data_dir, read_only)
        settings = uvicorn.Config(
            build(site),
            lifespan="off",
            log_level=logging.ERROR,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(settings)
        site.stopping = lambda: server.should_exit
        shown = f"[{host}]" if ":" in host else host
        tell(f"http://{shown}:{at}/")
        if token is not None:
            tell(f"token: {token}")
        site.catalogue.look(0)  # begins to read before somebody asks
        threading.Thread(target=_warm, args=(site,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # which uvicorn raises anew when it has ended
            server.run(sockets=[listener])
        left = [job for job in site.jobs if job.code is None]
        for job in left:
            tell(f"{job.what} goes on as process {job.process.pid}; `kill -INT {job.process.pid}` stops it.")


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address; whatever is wrong with that is one sentence."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"--host {host} is no address of this machine ({error.strerror}).") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # whoever reads the address may ask at once
    except OSError as error:
        listener.close()
        raise InputError(
            f"nothing can listen at {host}, port {port}: {error.strerror}; choose another with --port, 0 for any."
        ) from None
    return listener


def _warm(site: Site) -> None:
    """Load what pages of runs need while nobody waits for it; the list needs none of it, and comes first."""
    site.catalogue.look(60)
    import altair

    del altair
    _ = site.views, site.launcher
    with suppress(InputError):  # whoever asks for a picture is told
        theme.converter().vegalite_to_svg({"data": {"values": [{"a": 1}]}, "mark": "line", "encoding": {}})
