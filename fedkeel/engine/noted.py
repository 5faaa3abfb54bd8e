"""What an algorithm notes of a round, as plain numbers under names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedkeel.errors import FedkeelError, shown

Noted = float | dict[int, float]
"""One number, or one for each client (by id) whose upload counted."""
LONGEST = 100
"""Characters of a name."""
MEASURED, TIMED = "measure.", "time."
"""How names begin that belong to the run and not to its algorithm: what ``[measure]`` asks for, and where time went."""


class NotedError(FedkeelError):
    """An algorithm noted what cannot be kept."""


def as_noted(given: Mapping[str, object], ids: tuple[int, ...], whose: str) -> dict[str, Noted]:
    """What ``State.noting`` was given in a round of these clients; numbers need not be finite."""
    return {_name(name, whose): _values(name, value, ids, whose) for name, value in given.items()}


def _name(name: str, whose: str) -> str:
    if not (name.isprintable() and 0 < len(name) <= LONGEST):
        raise NotedError(f"a value that {whose} notes must have a printable name of at most {LONGEST} characters.")
    for taken in (MEASURED, TIMED):
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
