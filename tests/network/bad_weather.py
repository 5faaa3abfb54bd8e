"""A stretch of bad network between a site and its server: every piece of data is late, and connections break."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress


class BadWeather:
    """Passes on what comes to ``port``, late, and breaks some connections in the middle; a fixed seed decides which."""

    def __init__(self, to: int, delay: float, breaks: float) -> None:
        self._to, self._delay, self._breaks = to, delay, breaks
        self._dice = random.Random(7)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self.broken = 0

    def __enter__(self) -> BadWeather:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:  # the door was closed
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to), 10)
            except OSError:  # there is nobody at the other end yet
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                time.sleep(self._delay)
                if self._dice.random() < self._breaks:
                    self.broken += 1
                    break
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # which wakes whoever waits for more, at either end
            end.close()
