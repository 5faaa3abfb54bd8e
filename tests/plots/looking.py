"""What a browser would make of a page."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page in order with their attributes, and its text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "hr"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def loads(self) -> list[str]:
        """Everything that a browser would fetch."""
        wanted = [a.get(key) for _, a in self.elements for key in ("src", "href", "xlink:href", "data", "srcset")]
        return [one for one in wanted if one is not None and not one.startswith("#")]

    @property
    def handlers(self) -> list[str]:
        """Attributes that would run a program."""
        return [key for _, attributes in self.elements for key in attributes if key.startswith("on")]
