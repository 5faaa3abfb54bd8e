"""Templates, and how values look in them. Whatever comes from a run is text: it is escaped, and spelt out where a
screen would obey it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedkeel.errors import printable

HERE = Path(__file__).parent
STATIC = HERE / "static"
SPARK_WIDTH, SPARK_HEIGHT = 96, 24


class Exact(str):
    """Text that must come back as it is, such as that of a form's field: escaped, but not spelt out."""


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "share": share,
        "number": number,
        "megabytes": megabytes,
        "duration": duration,
        "clock": clock,
        "lines": lines,
        "exact": Exact,
    }
    made.globals |= {"sparkline": sparkline, "asset": asset, "nan": math.nan}
    return made


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def megabytes(value: int) -> str:
    return f"{value / 1e6:,.1f}" if value < 1e8 else f"{value / 1e6:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def clock(at: float | None) -> str:
    return "–" if at is None else time.strftime("%H:%M:%S", time.localtime(at))


def lines(text: str) -> Markup:
    """Text in lines, each of them printable."""
    return Markup("\n").join(escape(printable(line)) for line in text.splitlines())


def sparkline(values: Sequence[float]) -> Markup:
    """Accuracies as a small line over their own range, a tenth at least: a hint, beside which the number stands."""
    known = [(at, value) for at, value in enumerate(values) if math.isfinite(value)]
    if len(known) < 2:
        return Markup("")
    low, high = min(value for _, value in known), max(value for _, value in known)
    span = max(high - low, 0.1)
    middle = (high + low) / 2
    low = min(max(middle - span / 2, 0.0), low)
    x = (SPARK_WIDTH - 4) / max(known[-1][0], 1)
    points = " ".join(
        f"{2 + at * x:.1f},{SPARK_HEIGHT - 3 - (value - low) / span * (SPARK_HEIGHT - 6):.1f}" for at, value in known
    )
    return Markup(
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" '
        f'aria-hidden="true" focusable="false"><polyline points="{points}"></polyline></svg>'
    )


@cache
def asset(name: str) -> str:
    """The address of a file of the page, another one when it changes."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"
