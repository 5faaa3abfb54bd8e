"""Arguments of Python calls, checked where they come in: what a person may give, as what the code goes on with.

Numpy's numbers count as numbers and text as a path; a truth value is no number, and nothing is rounded.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from fedkeel.errors import InputError, invalid

T = TypeVar("T")

LONGEST_TITLE = 200


def whole(name: str, value: object, least: int, most: int | None = None, hint: str = "") -> int:
    """A whole number within limits."""
    try:
        number = None if is_truth(value) else index(value)  # type: ignore[arg-type]
    except Exception:  # torch and numpy have words of their own for tensors of several elements
        number = None
    if number is None or number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise invalid(name, f"a whole number {limits}", value, hint)
    return number


def share(name: str, value: object, hint: str = "") -> float:
    """A number above 0 and below 1."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not is_truth(value) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        number = math.inf
    if not 0 < number < 1:
        raise invalid(name, "a share above 0 and below 1", value, hint)
    return number


def numbers_of(name: str, value: object) -> tuple[float, ...]:
    """A few finite numbers, in any kind of row."""
    try:
        found = tuple(map(float, value))  # type: ignore[call-overload]
    except Exception:  # no row, or not of numbers
        found = (math.nan,)
    if isinstance(value, str | bytes) or not all(map(math.isfinite, found)):
        raise invalid(name, "a list of finite numbers", value)
    return found


def listed(name: str, value: object, allowed: str) -> list[Any]:
    """What a list, tuple, array or other row holds; neither text nor a mapping counts as a row."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        try:
            return list(value)
        except TypeError:  # an array of no dimension says that it can be gone through
            pass
    raise invalid(name, allowed, value)


def text(name: str, value: object, hint: str = "") -> str:
    """Text."""
    if not isinstance(value, str):
        raise invalid(name, "text", value, hint)
    return str(value)


def title(name: str, value: object) -> str:
    """A name for people: text that a sentence can hold."""
    found = text(name, value)
    if len(found) > LONGEST_TITLE:
        raise invalid(name, f"text of at most {LONGEST_TITLE} characters", value)
    return found


def flag(name: str, value: object) -> bool:
    """True or false."""
    if not is_truth(value):
        raise invalid(name, "True or False", value)
    return bool(value)


def path(name: str, value: object) -> Path:
    """A path, given as one or as text."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str) or not found or "\0" in found or not _can_be_a_path(found):
        raise invalid(name, "a path, as text or pathlib.Path", value)
    return Path(found)


def table(name: str, value: object) -> dict[str, Any]:
    """A mapping from names to values."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise invalid(name, "a dict of values by name", value)
    return dict(value)


def function(name: str, value: Callable[..., T], arguments: str = "") -> Callable[..., T]:
    """Something that can be called."""
    if not callable(value):
        raise invalid(name, f"a function{f' of {arguments}' if arguments else ''}", value)
    return value


def instance(name: str, value: object, kind: type[T], allowed: str, hint: str = "") -> T:
    """An object of a class."""
    if isinstance(value, kind):
        return value
    raise not_an_instance(name, value, kind, allowed, hint)


def not_an_instance(name: str, value: object, kind: type, allowed: str, hint: str = "") -> InputError:
    """The error about another object; a class in its place is told to be made an object first."""
    if isinstance(value, type):
        made = f"Make an object of it: {value.__name__}(…)." if issubclass(value, kind) else hint
        return invalid(name, allowed, f"the class {value.__name__}", made)
    plain = value is None or isinstance(value, str | int | float)
    return invalid(name, allowed, value if plain else type(value).__name__, hint)


def is_truth(value: object) -> bool:
    """Whether a value is Python's or numpy's True or False."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # numpy's, without importing it


def _can_be_a_path(name: str) -> bool:
    """Whether a file system could have it: letters that it can spell, and no part longer than 255 bytes."""
    try:
        return len(os.fsencode(name)) < 4096 and all(len(os.fsencode(part)) < 256 for part in Path(name).parts)
    except UnicodeEncodeError:
        return False
