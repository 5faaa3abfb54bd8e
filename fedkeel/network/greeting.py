"""Letters to sites: the greeting, after which the server knows what there is, and the requests of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from fedkeel.engine.sites import Lost
from fedkeel.engine.wire import LARGEST, WireError
from fedkeel.errors import DataError, named
from fedkeel.network.letters import Facts, Letter, new_nonce, read_reply
from fedkeel.notices import notice

HELLO = 20.0
"""Seconds that a site has to answer a greeting before it is greeted again."""
AGAIN = 1.0
"""Seconds between two greetings of sites that have not answered."""
LONGEST_REASON = 300


class Carrier(Protocol):
    """Carries letters to sites, and what they say back: Flower, or whatever comes after it."""

    def exchange(self, letters: Mapping[int, bytes], within: float | None = None) -> Iterable[tuple[int, bytes | Lost]]:
        """As ``engine.sites.Transport`` has it; ``within`` so many seconds, if that is less than it waits anyway."""


class Letters:
    """Requests of a run as letters: a transport for ``engine/sites.py`` over any carrier."""

    def __init__(self, carrier: Carrier, description: str, data: Mapping[int, str], largest: int = LARGEST) -> None:
        self._carrier = carrier
        self._description = description
        self._data = data
        self._largest = largest

    def exchange(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
        nonces = {client: new_nonce() for client in requests}
        letters = {
            client: Letter(nonces[client], self._description, self._data[client], request).to_bytes()
            for client, request in requests.items()
        }
        for client, data in self._carrier.exchange(letters):
            if isinstance(data, Lost):
                yield client, data
                continue
            try:
                yield client, read_reply(data, nonces.get(client) or new_nonce(), self._largest).body
            except WireError as error:
                yield client, Lost(named(str(error), LONGEST_REASON), refused=True)


def greet(
    carrier: Carrier, clients: Iterable[int], patience: float, stop: Callable[[], bool] | None = None
) -> dict[int, Facts]:
    """What every site says of itself; those that have not answered in so many seconds are not in the result."""
    missing, known = set(clients), dict[int, Facts]()
    until, told = time.monotonic() + patience, False
    while missing:
        nonces = {client: new_nonce() for client in sorted(missing)}
        letters = {client: Letter(nonce).to_bytes() for client, nonce in nonces.items()}
        for client, data in carrier.exchange(letters, min(HELLO, max(AGAIN, until - time.monotonic()))):
            if isinstance(data, Lost) or client not in nonces:
                continue
            try:
                facts = read_reply(data, nonces[client]).facts
            except WireError as error:
                raise DataError(f"client {client} cannot take part: {error}") from None
            if facts is None or facts.client != client:
                raise DataError(f"the site with the key of client {client} says that it is another client.")
            known[client] = facts
            missing.discard(client)
        if not missing or time.monotonic() > until or (stop is not None and stop()):
            break
        if not told:
            notice("network", f"waiting for client {', '.join(map(str, sorted(missing)))}, at most {patience:.0f} s")
            told = True
        time.sleep(AGAIN)
    return dict(sorted(known.items()))
