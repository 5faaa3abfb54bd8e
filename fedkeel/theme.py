"""How every picture looks: colours, dashes, type and the file it is saved in.

The colours follow Okabe and Ito, who chose them to stay apart for colour-blind readers; dashes and weights keep lines
apart in grey. Altair is imported only when a picture is drawn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.errors import InputError, invalid, printable

INK, FAINT, GRID, BAR = "#1f2933", "#6b7682", "#e9edf1", "#9db4c8"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#4d4d4d", "#7f3b08", "#a0a000")
"""Blue and vermilion, which differ most in every kind of sight, come first; black is left to text."""
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3))
"""Solid, dashed, dotted, dash-dotted: together with the colours, 40 lines that differ."""
SUFFIXES = ("png", "svg", "pdf", "html")
ADDRESSES = 64 << 30
"""Bytes of address space that drawing may reserve: 35 GB were seen."""
LINE, STRONG = 1.5, 2.75
"""Widths of a line, and of one that the picture is about."""


def looks(names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A colour and a dash for each name, by its place: neighbours differ in both, so that grey does not merge them."""
    return {
        name: (COLOURS[at % len(COLOURS)], DASHES[(at + at // len(COLOURS)) % len(DASHES)])
        for at, name in enumerate(names)
    }


PAPER, NIGHT = "#ffffff", "#14181d"
"""Grounds of light and dark pages."""
LEGIBLE = 4.5
"""Least contrast of text to its ground (WCAG 2, level AA)."""


def contrast(one: str, two: str) -> float:
    """Between two colours, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(two)))
    return (high + 0.05) / (low + 0.05)


@cache
def legible(colour: str, ground: str = PAPER) -> str:
    """The colour, as much darker or lighter as text on a ground must be to be read."""
    towards = 0 if _luminance(ground) > 0.5 else 255
    parts = _parts(colour)
    for step in range(101):
        mixed = [round(part + (towards - part) * step / 100) for part in parts]
        found = "#" + "".join(f"{part:02x}" for part in mixed)
        if contrast(found, ground) >= LEGIBLE:
            return found
    return INK if towards == 0 else PAPER


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _luminance(colour: str) -> float:
    shares = [part / 255 for part in _parts(colour)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def heading(title: str, subtitle: str | Sequence[str] = "") -> Any:
    """The title of a whole picture, at its left edge."""
    import altair as alt

    return alt.TitleParams(
        title,
        subtitle=subtitle if isinstance(subtitle, str) else list(subtitle),
        anchor="start",
        offset=14,
        fontSize=16,
        color=INK,
        subtitleColor=FAINT,
        subtitleFontSize=12,
        subtitlePadding=5,
    )


def styled(chart: Any, title: Any, **axis: Any) -> Any:
    """A finished picture: white ground, quiet grid, no frame; ``axis`` adds to what all axes have."""
    quiet: dict[str, Any] = {"labelColor": INK, "titleColor": FAINT, "titleFontWeight": "normal", "gridColor": GRID}
    quiet |= {"labelFontSize": 11, "ticks": False, "labelPadding": 5, "domainColor": GRID}
    return (
        chart.properties(title=title, padding=18, background="white")
        .configure_view(stroke=None)
        .configure_axis(**(quiet | axis))
        .configure_legend(labelColor=INK, titleColor=FAINT, titleFontWeight="normal", labelFontSize=12)
    )


def apart(heights: Mapping[str, float], least: float, low: float, high: float) -> dict[str, float]:
    """Heights for labels that keep ``least`` between them and stay inside [low, high], each near where it wants to be.

    Labels that touch become one block around the mean of their wishes, and blocks that touch become one again.
    """
    blocks: list[tuple[list[str], float]] = []
    for name in sorted(heights, key=lambda name: heights[name]):
        names, middle = [name], heights[name]
        while True:
            half = (len(names) - 1) * least / 2
            middle = min(max(middle, low + half), high - half)
            if not blocks or middle - half - (blocks[-1][1] + (len(blocks[-1][0]) - 1) * least / 2) >= least - 1e-9:
                break
            names = blocks.pop()[0] + names
            middle = sum(heights[one] for one in names) / len(names)
        blocks.append((names, middle))
    return {
        name: middle + (at - (len(names) - 1) / 2) * least for names, middle in blocks for at, name in enumerate(names)
    }


def check_suffix(path: Path) -> str:
    """The kind of file that a name asks for: one of ``SUFFIXES``."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in SUFFIXES:
        raise invalid("chart path", f"a file name ending in {', '.join('.' + s for s in SUFFIXES)}", str(path))
    return kind


def save_chart(chart: Any, path: str | os.PathLike[str]) -> Path:
    """Write a chart as ``.png``, ``.svg``, ``.pdf`` or ``.html``, by the suffix of ``path``."""
    target = Path(path)
    kind = check_suffix(target)
    converter()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind == "html":
            target.write_text(as_page(chart), encoding="utf-8")
        else:
            plain = type(chart).from_dict(specification(chart))
            plain.save(str(target), format=kind, scale_factor=2 if kind == "png" else 1)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}; choose another place.") from None
    return target


def converter() -> Any:
    """vl-convert, which draws; an error where it would end the whole process.

    Its JavaScript engine reserves addresses for far more memory than it uses, and ends the process if it may not.
    """
    allowed = _addresses()
    if allowed is not None and allowed < ADDRESSES:
        raise InputError(
            f"pictures need room for {ADDRESSES >> 30} GB of addresses (not of memory), this process may have "
            f"{allowed / (1 << 30):.1f}; lift the limit (ulimit -v unlimited)."
        )
    import vl_convert

    return vl_convert


def _addresses() -> int | None:
    """Bytes of address space that this process is limited to, if it is."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def specification(chart: Any) -> dict[str, Any]:
    """A chart as Vega-Lite in which every text is printable.

    Names of runs and classes may come from anybody, and a character that XML has no place for ends the whole process
    that draws it.
    """
    found: dict[str, Any] = _spelt_out(chart.to_dict())
    return found


def _spelt_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _spelt_out(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelt_out(one) for one in value]
    return printable(value) if isinstance(value, str) else value


def as_page(chart: Any) -> str:
    """A chart as a whole HTML page with tooltips, which loads nothing from a network.

    Names of runs may be anything: in the specification no ``<`` stands as such, so that none can end the script.
    """
    spec = json.dumps(specification(chart)).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>fedkeel</title>\n'
        f'</head>\n<body>\n<div id="picture"></div>\n<script type="module">\n{_viewer()}\nembed({spec});\n</script>\n'
        "</body>\n</html>\n"
    )


@cache
def _viewer() -> str:
    """The program that draws a specification in a browser, whole."""
    actions = "{export: true, source: false, compiled: false, editor: false}"
    options = f"{{renderer: 'svg', mode: 'vega-lite', actions: {actions}}}"
    start = f"window.embed = (spec) => vegaEmbed('#picture', spec, {options});"
    return str(converter().javascript_bundle(start))
