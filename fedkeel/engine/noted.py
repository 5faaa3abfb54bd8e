"""What an algorithm notes of a round, as plain numbers under names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedkeel.engine.names import CLOCK, MEASURED, TIMED, Noted
from fedkeel.errors import FedkeelError, shown

LONGEST = 100
"""Characters of a name."""


class NotedError(FedkeelError):
    """An algorithm noted what cannot be kept."""


def as_noted(given: Mapping[str, object], ids: tuple[int, ...], whose: str) -> dict[str, Noted]:
    """What ``State.noting`` was given in a round of these clients; numbers need not be finite."""
    return {_name(name, whose): _values(name, value, ids, whose) for name, value in given.items()}


def both(clients: Mapping[str, object], server: Mapping[str, object], whose: str) -> Mapping[str, object]:
    """What clients and server noted of a round; neither may hide what the other did."""
    for name in clients.keys() & server.keys():
        raise NotedError(f"{name} is noted by the clients of {whose} and by its server; rename one of them.")
    return {**clients, **server}


def as_clients_noted(given: Mapping[str, object], K: int, whose: str) -> dict[str, Tensor]:
    """What K clients note with their uploads."""
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.is_complex() or value.shape != (K,):
            got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
            raise NotedError(f"{name} that clients of {whose} note must be a tensor [{K}], a number each, got {got}.")
    return {_name(name, whose): value.double() for name, value in given.items() if isinstance(value, Tensor)}


def _name(name: str, whose: str) -> str:
    if not (name.isprintable() and 0 < len(name) <= LONGEST):
        raise NotedError(f"a value that {whose} notes must have a printable name of at most {LONGEST} characters.")
    for taken in (MEASURED, TIMED, CLOCK):
        if name.startswith(taken):
            raise NotedError(f"{whose} notes {name}, but names that begin with {taken} are the run's own; rename it.")
    return name


def _values(name: str, value: object, ids: tuple[int, ...], whose: str) -> Noted:
    if isinstance(value, Tensor) and not value.is_complex():
        if value.dim() == 0:
            return float(value)
        if value.shape == (len(ids),):
            return dict(zip(ids, value.double().tolist(), strict=True))
    elif isinstance(value, bool | int | float):
        return float(value)
    got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
    raise NotedError(
        f"{name} that {whose} notes must be a number or a tensor [{len(ids)}], one number for each client whose upload "
        f"counted, got {got}."
    )
