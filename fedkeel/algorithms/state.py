"""Named values: the state of a server or of clients, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.row_memory import current_memory

SCALAR_BYTES = 4
"""A plain number in a message counts as one 32-bit float, the unit of the papers' communication tables."""


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


class PerClient:
    """A value of a message that differs between the K receivers: rows [K, ...]."""

    __slots__ = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


_NOTHING: Mapping[str, Any] = {}


class State(Mapping[str, Any]):
    """Named tensors, numbers or ``Rows`` that do not change; ``s.w`` reads, ``s.replace(w=…)`` renews."""

    __slots__ = ("_items", "_noted")
    _items: dict[str, Any]
    _noted: Mapping[str, Any]

    def __init__(self, **items: Any) -> None:
        object.__setattr__(self, "_items", items)
        object.__setattr__(self, "_noted", _NOTHING)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(
                f"no value named {name!r} here; there are {', '.join(self._items) or 'none'}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a state does not change: use state.replace({name}=…)")

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={_brief(value)}' for name, value in self._items.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._items,))

    def replace(self, **changes: Any) -> State:
        """The same state with some values renewed or added."""
        return State(**(self._items | changes))._with(self._noted)

    def noting(self, **values: Any) -> State:
        """The same state with values worth looking at, which the run keeps by round and nothing else depends on.

        Each is a number, or a tensor [S] with a number for each client whose upload counted.
        """
        return State(**self._items)._with({**self._noted, **values})

    @property
    def noted(self) -> Mapping[str, Any]:
        """What ``noting`` was given."""
        return self._noted

    def without_notes(self) -> State:
        """The same state, as the next round sees it."""
        return State(**self._items) if self._noted else self

    def _with(self, noted: Mapping[str, Any]) -> State:
        object.__setattr__(self, "_noted", noted)
        return self


Message = State
"""What travels between server and clients: its bytes are the communication cost."""


def _rebuild(items: dict[str, Any]) -> State:
    return State(**items)


def _brief(value: Any) -> str:
    return f"[{'×'.join(map(str, value.shape))}]" if isinstance(value, Tensor) else repr(value)


def size_in_bytes(value: Any) -> int:
    """What one value of a message weighs."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else SCALAR_BYTES


def bytes_down(message: Message, receivers: int) -> int:
    """Bytes of a broadcast to ``receivers`` clients: shared values once each, per-client values by row."""
    return sum(
        size_in_bytes(value.rows) if isinstance(value, PerClient) else size_in_bytes(value) * receivers
        for value in message.values()
    )


def bytes_up(message: Message) -> int:
    """Bytes of the uploads of K clients, given as one message of rows [K, ...]; one number a client is a float."""
    return sum(SCALAR_BYTES * len(v) if v.dim() == 1 else size_in_bytes(v) for v in message.values())
