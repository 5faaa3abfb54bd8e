"""Named values: the state of a server or of clients, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedkeel.state.rows import Rows as Rows

SCALAR_BYTES = 4
"""A plain number in a message counts as one 32-bit float, the unit of the papers' communication tables."""


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

        Each is a number, or a tensor [S] with a number for each client whose upload counted. Clients note
        with what they upload, a tensor [K] with a number for each of K; that is no part of the message and its bytes.
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
