"""HTML in which text stays text: whatever is not made here is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fedkeel.errors import printable


class Markup(str):
    """A piece of HTML that was made by this module."""

    __slots__ = ()


Content = str | Markup | Iterable["Content"]
"""Text (which is escaped), HTML, or a row of these."""
_EMPTY = frozenset({"meta", "br", "hr"})


def inner(content: Content) -> Markup:
    """Content as HTML; characters that cannot be seen are spelt out, line ends are kept."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(escape("\n".join(printable(line) for line in content.split("\n"))))
    return Markup("".join(inner(one) for one in content))


def tag(name: str, /, *content: Content, **attributes: str) -> Markup:
    """An element; ``class_`` is the attribute class, ``aria_label`` is aria-label."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"' for key, value in attributes.items()
    )
    if name in _EMPTY:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{inner(content)}</{name}>")


def table(caption: str, heads: Sequence[Content], rows: Sequence[Sequence[Content]], numbers: int = 0) -> Markup:
    """A table whose first column names the row; ``numbers`` is how many columns at the end are set to the right."""
    first = len(heads) - numbers

    def cell(at: int, content: Content) -> Markup:
        if at == 0:
            return tag("th", content, scope="row")
        return tag("td", content, class_="number") if at >= first else tag("td", content)

    top = [
        tag("th", head, scope="col", class_="number") if at >= first else tag("th", head, scope="col")
        for at, head in enumerate(heads)
    ]
    body = [tag("tr", [cell(at, one) for at, one in enumerate(row)]) for row in rows]
    made = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", top)), tag("tbody", body))
    return tag("div", made, class_="wide", tabindex="0", role="region", aria_label=caption)


def hidden(summary: str, *content: Content) -> Markup:
    """What is shown when it is asked for, and always in print."""
    return tag("details", tag("summary", summary), *content)
