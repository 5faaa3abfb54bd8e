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
    sentence = f"{name} must be {allowed}, got {shown(got)}."
    return InputError(f"{sentence} {hint}" if hint else sentence)


def shown(value: object, most: int = 120) -> str:
    """A value as a sentence can hold it: on one line, not too long, without addresses of objects."""
    try:
        text = repr(value)
    except Exception:  # values in values in values, or a __repr__ of somebody's own
        text = f"a {type(value).__name__}"
    if " at 0x" in text:
        text = f"a {type(value).__name__}"
    return named(" ".join(text.split("\n")), most)


def named(text: str, most: int = 120) -> str:
    """A name from a person as a sentence can hold it without quotes: printable, and not too long."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: str) -> str:
    """Text that changes nothing on a terminal but the place where it stands.

    Escape sequences, line ends, marks that turn the direction of writing and lone surrogates are spelt out: names and
    paths may come from anybody.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def as_html(title: str, facts: dict[str, str]) -> str:
    """A small table for a notebook; whatever names hold is text in it, never markup."""
    from html import escape

    rows = "".join(
        f'<tr><th style="text-align:left">{escape(printable(name))}</th>'
        f'<td style="text-align:left">{escape(printable(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(printable(title))}</caption><tbody>{rows}</tbody></table>"


MOST_NAMES = 40
"""Names that a sentence lists."""


def unknown(kind: str, name: object, known: list[str], hint: str = "") -> InputError:
    """The one sentence for a name that is not in a registry, with the nearest known names where there are any."""
    near = _nearest(str(name), known)
    listed = sorted(known)
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    guess = (
        f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(listed[:MOST_NAMES])}{more}."
    )
    return InputError(f"there is no {kind} named {shown(name)}. {hint or guess}")


def _nearest(name: str, known: list[str]) -> list[str]:
    """Names that begin like this one (emnist_letters for emnist), else the one that is spelt most like it."""
    from difflib import get_close_matches

    longer = sorted(other for other in known if len(name) > 3 and other.lower().startswith(name.lower()))
    return longer[:3] or get_close_matches(name, known, n=1)


def check_seed(name: str, value: object) -> int:
    """A seed as the whole number that it is, from 0 to 2⁶³ − 1: others would be rounded or cut without a word."""
    from operator import index

    try:
        seed = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise invalid(name, "a whole number from 0 to 2^63 - 1", value)
    return seed
