"""Settings that people give: their schema, and pydantic's report on bad ones as the one sentence to act on."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from fedkeel import arguments
from fedkeel.errors import InputError, invalid, unknown

T = TypeVar("T", bound=BaseModel)


class Settings(BaseModel):
    """Named values that cannot be changed; no others are taken."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic takes true for 1 and 1 for true, but nobody means one round by ``rounds = true``."""
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        if arguments.is_truth(value) and bool not in kinds:
            if int in kinds:
                raise ValueError("a whole number")
            if float in kinds:
                raise ValueError("a number")
        if kinds == (bool,) and isinstance(value, int | float | str) and not arguments.is_truth(value):
            raise ValueError("true or false")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        """A word from the shell may hold bytes that are no text, which no file of ours could keep."""
        if not _is_text(value):
            raise ValueError("text that UTF-8 has a form for")
        return value


def _is_text(value: Any) -> bool:
    """Whether all text in a value can be written; lists may be in lists, as deep as somebody likes."""
    if type(value) in _NEVER_TEXT:
        return True
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not one.isascii() and any("\ud800" <= letter <= "\udfff" for letter in one):
                return False
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            inside = [*one, *one.values()] if isinstance(one, dict) else one
            waiting += [part for part in inside if type(part) not in _NEVER_TEXT]
    return True


_NEVER_TEXT = frozenset({int, float, bool, type(None)})
"""Most of what a record holds, and what need not be looked into."""


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that a field may have."""
    return get_args(annotation) or (annotation,)


def checked(owner: str, schema: type[T], fields: object) -> T:
    """The validated parameters, or an ``InputError`` about the first field that is wrong.

    ``owner`` is whose they are (``feddc``, ``faults``); without one, fields are called by their names alone.
    """
    try:
        return schema(**arguments.table(owner, fields))
    except ValidationError as error:
        raise sentence(owner, schema, error) from None


def sentence(owner: str, schema: type[BaseModel], error: ValidationError) -> InputError:
    """``owner.field must be …, got …`` for the first complaint of a validation."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    name = ".".join(part for part in (owner, path) if part)
    if first["type"] == "extra_forbidden":
        *inside, last = map(str, first["loc"])
        fields = _fields(schema, first["loc"])
        return unknown(f"field in {'.'.join(inside) or owner}", last, sorted(fields), _meant(last, fields))
    if first["type"] == "missing":
        return InputError(f"{name} is missing; {_hint(schema, first['loc']) or 'give it a value'}.")
    return invalid(name, allowed(first), first["input"], _sentence(_hint(schema, first["loc"])))


def allowed(complaint: Any) -> str:
    """What a field takes, in words, from one pydantic complaint."""
    context = complaint.get("ctx", {})
    words: dict[str, Callable[[], str]] = {
        "greater_than": lambda: f"a number above {context['gt']:g}",
        "greater_than_equal": lambda: f"a number of at least {context['ge']:g}",
        "less_than": lambda: f"a number below {'2^63' if context['lt'] == 2**63 else format(context['lt'], 'g')}",
        "less_than_equal": lambda: f"a number of at most {context['le']:g}",
        "literal_error": lambda: f"one of {context['expected']}",
        "int_parsing": lambda: "a whole number",
        "int_type": lambda: "a whole number",
        "int_from_float": lambda: "a whole number",
        "float_parsing": lambda: "a number",
        "float_type": lambda: "a number",
        "finite_number": lambda: "a finite number",
        "bool_parsing": lambda: "true or false",
        "bool_type": lambda: "true or false",
        "string_type": lambda: "text",
        "model_type": lambda: "a table of fields",
        "dict_type": lambda: "a table of fields",
        "list_type": lambda: "a list",
    }
    kind = complaint["type"]
    if kind == "value_error":
        return str(context.get("error", complaint["msg"])).removeprefix("must be ")
    return words[kind]() if kind in words else str(complaint["msg"]).removeprefix("Input should be ")


def _field(schema: type[BaseModel], path: tuple[int | str, ...]) -> tuple[Any, Any]:
    model: Any = schema
    field = None
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            return model, None
        field = fields[part]
        model = field.annotation
    return model, field


def _fields(schema: type[BaseModel], path: tuple[int | str, ...]) -> dict[str, Any]:
    model, _ = _field(schema, path[:-1])
    return dict(getattr(model, "model_fields", {}))


def _meant(name: str, fields: dict[str, Any]) -> str:
    """The field whose meaning is what somebody took for its name: lr for learning_rate."""
    words = name.replace("_", " ").lower()
    found = [known for known, field in fields.items() if len(words) > 3 and words in (field.description or "").lower()]
    return f"Did you mean {found[0]!r}?" if len(found) == 1 and not get_close_matches(name, fields, n=1) else ""


def _hint(schema: type[BaseModel], path: tuple[int | str, ...]) -> str:
    _, field = _field(schema, path)
    return str(field.description) if field is not None and field.description else ""


def _sentence(text: str) -> str:
    return f"Meaning: {text}." if text else ""
