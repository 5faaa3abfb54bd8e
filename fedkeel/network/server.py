"""``fedkeel network server``: Flower's SuperLink behind the gate, for as long as the process lasts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedkeel.network import flower
from fedkeel.network.children import MEMORY, Children
from fedkeel.network.places import ServerPlace

START = 60.0
"""Seconds that a SuperLink has to answer for the first time."""


def serve(place: ServerPlace, host: str, largest: int, memory: int, say: Callable[[str], None]) -> None:
    """Serve until the process is asked to end; a SuperLink that ends is started anew, and finds its database.

    ``largest`` bytes a minute are as many as a site may send, ``memory`` bytes as many as the SuperLink may hold.
    """
    flower.prepare(place.flower)
    from fedkeel.network import gate
    from fedkeel.network.flower_link import Link, command

    with Children(place.flower / "logs") as children:

        def start() -> int:
            return children.start("superlink", command(place, sys.executable), {MEMORY: str(memory)})

        start()
        link = Link(place)
        _wait_for(link, children)
        link.register_all()
        link.close()
        ended = threading.Event()
        watch = threading.Thread(target=_keep_up, args=(children, start, ended, say), daemon=True)
        watch.start()
        shown = f"{place.settings.hosts[0]}:{place.settings.port}"
        say(f"{len(place.public_keys())} sites may join at {shown}; Ctrl-C ends the server, not the runs' directories")
        try:
            gate.serve(place, host, largest)
        finally:
            ended.set()
            watch.join()


def _wait_for(link: object, children: Children) -> None:
    from fedkeel.network.flower_link import Link

    assert isinstance(link, Link)
    until = time.monotonic() + START
    while not link.is_up():
        if children.ended() or time.monotonic() > until:
            log = children.logs / "superlink.log"
            raise flower.NetworkError(
                f"Flower's SuperLink did not start: {children.last_words('superlink')} (see {log})."
            )
        time.sleep(0.1)


def _keep_up(children: Children, start: Callable[[], int], ended: threading.Event, say: Callable[[str], None]) -> None:
    while not ended.wait(0.5):
        if children.ended() and not ended.is_set():
            say("Flower's SuperLink ended; it is started anew")
            start()
            ended.wait(2)


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def place_of(folder: Path) -> ServerPlace:
    """The folder of a server: that itself, or the network's in which it is."""
    return ServerPlace.at(folder / "server" if (folder / "server").is_dir() else folder)
