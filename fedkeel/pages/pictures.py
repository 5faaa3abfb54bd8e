"""Charts as parts of a page: drawings without a program, which scale, print and follow the colours of the page."""

from __future__ import annotations

import re
from typing import Any

from fedkeel import theme
from fedkeel.pages.markup import Markup, tag

NARROW = 360
"""Pixels that a telephone has for a picture beside the page's margins."""
LEAST = 150
"""Pixels of a panel, however much its names need beside it."""


def figure(chart: Any, number: int, known: str = "") -> Markup:
    """A chart with its title and notes as a caption; ``number`` keeps names inside apart from other pictures'.

    ``known`` is a note that the page has already. A chart that is wider than a narrow screen is there a second time,
    laid out for one: shrunk, its text would be too small to read. The style sheet shows one of the two.
    """
    spec = theme.specification(chart)
    title, notes = _told(spec.pop("title", {}))
    spec["background"], spec["padding"] = None, 4
    spec["config"] = {**spec.get("config", {}), "aria": False}
    drawn = _drawn(spec)
    ways = {"picture": drawn}
    if _width(drawn) > NARROW:
        ways = {"picture on-wide": drawn, "picture on-narrow": _drawn(_narrow(spec, _width(drawn)))}
    words = ". ".join([title, *notes])
    head = f"{tag('svg', role='img', aria_label=words)[:-7]} "
    caption = tag("figcaption", tag("strong", title), " · ".join(note for note in notes if note != known))
    pictures = [
        tag("div", Markup(re.sub(r"^<svg ", lambda _: head, _own_names(svg, f"{number}{letter}"), count=1)), class_=way)
        for (way, svg), letter in zip(ways.items(), ("", "n"), strict=False)
    ]
    return tag("figure", caption, *pictures)


def _drawn(spec: dict[str, Any]) -> str:
    return _without_ground(str(theme.converter().vegalite_to_svg(spec)))


def _width(svg: str) -> float:
    found = re.match(r'<svg [^>]*?\bwidth="([\d.]+)"', svg)
    return float(found[1]) if found else 0.0


def _narrow(spec: dict[str, Any], width: float) -> dict[str, Any]:
    """The same chart for a narrow screen: panels one below the other, each as wide as the names beside it allow.

    ``width`` is that of the whole drawing, of which a row of panels and the space between them is a part.
    """
    across = max((_across(row) for row in _rows(spec)), default=0.0)
    beside = max(0.0, width - across)
    several = max((len(row) for row in _rows(spec)), default=1)
    return _with_panels(spec, max(LEAST, NARROW - beside / several))


def _rows(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Panels as they stand beside each other."""
    if "hconcat" in spec:
        return [spec["hconcat"]]
    return [row for part in spec["vconcat"] for row in _rows(part)] if "vconcat" in spec else [[spec]]


def _across(row: list[dict[str, Any]]) -> float:
    return sum(float(panel.get("width", 0)) for panel in row)


def _with_panels(spec: dict[str, Any], widest: float) -> dict[str, Any]:
    narrow = {("vconcat" if name == "hconcat" else name): value for name, value in spec.items()}
    if "vconcat" in narrow:
        narrow["vconcat"] = [_with_panels(part, widest) for part in narrow["vconcat"]]
    elif isinstance(spec.get("width"), int | float) and spec["width"] > widest:
        narrow["width"] = widest
    if "legend" in spec.get("config", {}):
        narrow["config"] = {**spec["config"], "legend": {**spec["config"]["legend"], "columns": 2}}
    return narrow


def _told(title: Any) -> tuple[str, list[str]]:
    """What a specification's title says, and the lines below it."""
    if isinstance(title, str):
        return title, []
    below = title.get("subtitle", [])
    return str(title.get("text", "")), [below] if isinstance(below, str) and below else list(below)


def _without_ground(svg: str) -> str:
    """The page is the ground, by day and by night."""
    return re.sub(r'<rect width="[\d.]+" height="[\d.]+" fill="(?:white|transparent)"/>', "", svg, count=1)


def _own_names(svg: str, number: str) -> str:
    """Clips and gradients are found by name on the whole page, and every picture calls its own the same."""
    svg = re.sub(r'\bid="([\w-]+)"', rf'id="p{number}-\1"', svg)
    return re.sub(r"url\(#([\w-]+)\)", rf"url(#p{number}-\1)", svg)
