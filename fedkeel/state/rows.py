"""One vector per client: a table that does not change, and shares what it can with the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedkeel.state.row_memory import current_memory

_CHUNK = 1024


def keep_row(row: Tensor) -> Tensor:
    """A copy of a row where rows of this run are kept: in memory, or beyond its budget on disk."""
    return current_memory().keep(row)


class Rows(Mapping[int, Tensor]):
    """One vector per client, kept only for the clients that have one.

    Immutable: ``put`` gives a new table that shares the untouched rows. Rows stand in chunks of neighbouring clients,
    of which only the touched ones are copied, so that a round costs the same with a thousand rows and with a million.
    All tables that come from one another keep their rows in the same memory: that of the run the first was made in.
    """

    __slots__ = ("_chunks", "_count", "_memory")

    def __init__(self, rows: Mapping[int, Tensor] | None = None) -> None:
        self._memory = current_memory()
        self._chunks: dict[int, dict[int, Tensor]] = {}
        self._count = 0
        if rows:
            self._store(rows)

    def __getitem__(self, client: int) -> Tensor:
        try:
            return self._chunks[client // _CHUNK][client]
        except KeyError:
            raise KeyError(client) from None

    def __iter__(self) -> Iterator[int]:
        return (client for chunk in self._chunks.values() for client in chunk)

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return (Rows, (dict(self),))

    def put(self, clients: Iterable[int], rows: Iterable[Tensor]) -> Rows:
        """The table with copies of K rows (together [K, ...], or one by one) stored for K clients."""
        return self.hold(clients, map(self._memory.keep, rows))

    def room(self, like: Tensor) -> Tensor:
        """Memory for a row like this one: to be written, then handed to ``hold``."""
        return self._memory.room(like)

    def hold(self, clients: Iterable[int], rows: Iterable[Tensor]) -> Rows:
        """The table with K rows stored for K clients as they are: in memory of ``room``, never to change."""
        after = self._copy()
        after._store(dict(zip(clients, rows, strict=True)))
        self._memory.settle()
        return after

    def drop(self, clients: Iterable[int]) -> Rows:
        """The table without some clients."""
        after = self._copy()
        gone = [client for client in set(clients) if client in self]
        for number in {client // _CHUNK for client in gone}:
            after._chunks[number] = {c: row for c, row in self._chunks[number].items() if c not in gone}
        after._count -= len(gone)
        return after

    def take(self, clients: Iterable[int], default: Tensor) -> Tensor:
        """Rows [K, ...] of K clients; ``default`` stands in for a client that has none."""
        return torch.stack([self.get(client, default) for client in clients])

    def changed_since(self, before: Rows) -> Iterator[tuple[int, Tensor]]:
        """The clients whose row is not the one that they had in an earlier table, with their rows."""
        for number, chunk in self._chunks.items():
            old = before._chunks.get(number, {})
            if old is not chunk:
                yield from ((client, row) for client, row in chunk.items() if old.get(client) is not row)

    def gone_since(self, before: Rows) -> Iterator[int]:
        """The clients that had a row in an earlier table and have none now."""
        for number, old in before._chunks.items():
            chunk = self._chunks.get(number, {})
            if chunk is not old:
                yield from (client for client in old if client not in chunk)

    def _copy(self) -> Rows:
        other = Rows()
        other._chunks, other._count, other._memory = dict(self._chunks), self._count, self._memory
        return other

    def _store(self, rows: Mapping[int, Tensor]) -> None:
        """Put rows into this table, which nobody else has seen yet; its chunks may be shared."""
        touched: dict[int, dict[int, Tensor]] = {}
        for client, row in rows.items():
            number = client // _CHUNK
            chunk = touched.get(number)
            if chunk is None:
                chunk = touched[number] = dict(self._chunks.get(number, {}))
            self._count += client not in chunk
            chunk[client] = row
        self._chunks |= touched
