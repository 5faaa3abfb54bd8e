"""Errors that a user can cause and mend.

Every message is one sentence that says what is wrong, whose it is, what is allowed, what was got and what to do.
The command line prints it without a traceback and exits with code 2.
"""

from __future__ import annotations


class FedkeelError(Exception):
    """Base of every error that fedkeel raises on purpose."""


class InputError(FedkeelError, ValueError):
    """A value from a person (argument, configuration field, array) that cannot be used."""


class DataError(FedkeelError):
    """A data file that is missing, damaged or not what its name promises."""


class ModelError(FedkeelError):
    """A model that does not fit the data or lacks what an algorithm needs of it."""


class DivergedError(FedkeelError):
    """Training produced a number that is not finite, or an update beyond the allowed norm."""


def invalid(name: str, allowed: str, got: object, hint: str = "") -> InputError:
    """The one sentence for a bad value: ``<name> must be <allowed>, got <got>. <hint>``.

    ``name`` carries its owner (``feddc.alpha``, ``partition.clients``); ``hint`` says what to do or what is typical.
    """
    sentence = f"{name} must be {allowed}, got {got!r}."
    return InputError(f"{sentence} {hint}" if hint else sentence)


def unknown(kind: str, name: object, known: list[str]) -> InputError:
    """The one sentence for a name that is not in a registry, with the nearest known name where there is one."""
    from difflib import get_close_matches

    near = get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
    return InputError(f"there is no {kind} named {name!r}. {hint}")
