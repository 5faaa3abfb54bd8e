"""Numbers as papers print them: exact, with a spread, beyond a budget, uncertain, or not there."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from fedkeel.errors import invalid

Kind = Literal["value", "beyond", "never", "missing"]
FORMS = 'a number, ">600" (not reached by then), "97.86 ± 0.2", "~77.07" (a digit is uncertain), "*" (never), or "?"'
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


@dataclass(frozen=True)
class Published:
    """One printed number."""

    kind: Kind
    """``value``; ``beyond``: not reached within ``value``; ``never``: the paper says so; ``missing``: not legible."""
    value: float = math.nan
    """As printed; NaN where there is none."""
    sd: float | None = None
    """The spread printed beside it."""
    uncertain: bool = False
    """Whether a digit is doubtful."""

    def __str__(self) -> str:
        if self.kind in ("never", "missing"):
            return "*" if self.kind == "never" else "?"
        text = f"{'~' if self.uncertain else ''}{'>' if self.kind == 'beyond' else ''}{self.value:g}"
        return text if self.sd is None else f"{text} ± {self.sd:g}"


MISSING = Published("missing")


def parsed(name: str, printed: object) -> Published:
    """What stands in a file about a paper; ``name`` is where, for the sentence about what cannot be understood."""
    if isinstance(printed, int | float) and not isinstance(printed, bool) and math.isfinite(printed):
        return Published("value", float(printed))
    text = printed.strip() if isinstance(printed, str) else ""
    if text in ("*", "?"):
        return Published("never") if text == "*" else MISSING
    if match := re.fullmatch(rf"(~?)(>?)\s*{_NUMBER}(?:\s*(?:±|\+-)\s*{_NUMBER})?", text):
        doubt, beyond, value, sd = match.groups()
        if not (beyond and sd):
            kind: Kind = "beyond" if beyond else "value"
            return Published(kind, float(value), None if sd is None else float(sd), bool(doubt))
    raise invalid(name, FORMS, printed)
