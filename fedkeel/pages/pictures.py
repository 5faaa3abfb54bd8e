"""Charts as parts of a page: drawings without a program, which scale, print and follow the colours of the page."""

from __future__ import annotations

import re
from typing import Any

from fedkeel import theme
from fedkeel.pages.markup import Markup, tag


def figure(chart: Any, number: int, known: str = "") -> Markup:
    """A chart with its title and notes as a caption; ``number`` keeps names inside apart from other pictures'.

    ``known`` is a note that the page has already.
    """
    spec = theme.specification(chart)
    title, notes = _told(spec.pop("title", {}))
    spec["background"], spec["padding"] = None, 4
    spec["config"] = {**spec.get("config", {}), "aria": False}
    drawn = _own_names(_without_ground(str(theme.converter().vegalite_to_svg(spec))), number)
    words = ". ".join([title, *notes])
    picture = Markup(re.sub(r"^<svg ", f"{tag('svg', role='img', aria_label=words)[:-7]} ", drawn, count=1))
    caption = tag("figcaption", tag("strong", title), " · ".join(note for note in notes if note != known))
    return tag("figure", caption, tag("div", picture, class_="picture"))


def _told(title: Any) -> tuple[str, list[str]]:
    """What a specification's title says, and the lines below it."""
    if isinstance(title, str):
        return title, []
    below = title.get("subtitle", [])
    return str(title.get("text", "")), [below] if isinstance(below, str) and below else list(below)


def _without_ground(svg: str) -> str:
    """The page is the ground, by day and by night."""
    return re.sub(r'<rect width="[\d.]+" height="[\d.]+" fill="(?:white|transparent)"/>', "", svg, count=1)


def _own_names(svg: str, number: int) -> str:
    """Clips and gradients are found by name on the whole page, and every picture calls its own the same."""
    svg = re.sub(r'\bid="([\w-]+)"', rf'id="p{number}-\1"', svg)
    return re.sub(r"url\(#([\w-]+)\)", rf"url(#p{number}-\1)", svg)
