"""Charts as SVG, drawn here and not in the browser: no script, no evaluation of code, and the same picture everywhere.

A picture is kept for as long as what it shows has not changed.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from fedkeel import theme

Shade = Literal["light", "dark"]
MOST = 300
"""Pictures that are kept, of some 10 kB each."""
GROUND = "#171c22"
"""Of pictures on a dark page."""
DARK = {
    "white": GROUND,
    theme.INK: "#e6ebf0",
    theme.FAINT: "#a5b0bb",
    theme.GRID: "#2c343d",
    theme.BAR: "#5d7890",
    **{colour: theme.legible(colour, GROUND) for colour in theme.COLOURS},
    **{theme.legible(colour): theme.legible(colour, GROUND) for colour in theme.COLOURS},
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
    svg: str = theme.converter().vegalite_to_svg(theme.specification(chart))
    return (_dark(svg) if shade == "dark" else svg).encode()


def _dark(svg: str) -> str:
    """A picture with every colour of the common look replaced. Colours are looked for in tags alone, not in texts."""
    return _TAG.sub(lambda tag: _COLOUR.sub(lambda found: f'{found[1]}="{DARK.get(found[2], found[2])}"', tag[0]), svg)


_TAG = re.compile(r"<[^<>]+>")
_COLOUR = re.compile(r'(?<= )(fill|stroke)="([^"]*)"')
