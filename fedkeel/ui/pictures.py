"""Charts as SVG, drawn here and not in the browser: no script, no evaluation of code, and the same picture everywhere.

A picture is kept for as long as what it shows has not changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from fedkeel import theme
from fedkeel.errors import printable

Shade = Literal["light", "dark"]
MOST = 300
"""Pictures that are kept, of some 10 kB each."""
DARK = {
    "white": "#171c22",
    theme.INK: "#e6ebf0",
    theme.FAINT: "#a5b0bb",
    theme.GRID: "#2c343d",
    theme.BAR: "#5d7890",
    "#0072b2": "#4aa8e0",
    "#d55e00": "#f08040",
    "#009e73": "#34c79b",
    "#cc79a7": "#dd95bd",
    "#7a5195": "#b48ad0",
    "#4d4d4d": "#b4b4b4",
    "#7f3b08": "#c98a55",
    "#a0a000": "#c0c040",
}
"""What takes the place of a colour of the common look on a dark ground."""


class Pictures:
    """Pictures by what they show; one is drawn at a time. May be used by any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], bytes | None] = OrderedDict()
        self._lock = threading.Lock()

    def picture(self, key: tuple[Any, ...], shade: Shade, chart: Callable[[], Any]) -> bytes | None:
        """The picture of a chart; None where there is nothing to draw. The key must say all that the chart shows."""
        with self._lock:
            if (shade, *key) in self._kept:
                self._kept.move_to_end((shade, *key))
                return self._kept[shade, *key]
            drawn = draw(chart(), shade)
            self._kept[shade, *key] = drawn
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
            return drawn


def draw(chart: Any, shade: Shade) -> bytes | None:
    """A chart of the common look as SVG."""
    if chart is None:
        return None
    import vl_convert

    spec = _spelt_out(chart.to_dict())
    svg: str = vl_convert.vegalite_to_svg(_dark(spec) if shade == "dark" else spec)
    return svg.encode()


def _spelt_out(value: Any) -> Any:
    """A specification in which every text is printable: characters that XML has no place for end the whole process."""
    if isinstance(value, dict):
        return {printable(key): _spelt_out(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelt_out(one) for one in value]
    return printable(value) if isinstance(value, str) else value


_WORDS = ("data", "datasets", "values", "domain", "sort", "field", "text", "subtitle")
"""Keys of a specification whose values are somebody's names and numbers, never colours."""


def _dark(value: Any) -> Any:
    """A specification with every colour of the common look replaced; words and data stay what they are."""
    if isinstance(value, dict):
        named = {key for key, one in value.items() if key in _WORDS or (key == "title" and isinstance(one, str))}
        return {key: one if key in named else _dark(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_dark(one) for one in value]
    return DARK.get(value, value) if isinstance(value, str) else value


def size(svg: bytes) -> tuple[int, int]:
    """Width and height that a picture says it has."""
    head = svg[:400].decode("utf-8", "replace")
    return _number(head, "width"), _number(head, "height")


def _number(head: str, name: str) -> int:
    return int(float(head.partition(f' {name}="')[2].partition('"')[0] or 0))
