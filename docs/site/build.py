"""Builds the site into build/site and looks through it: `make docs`, or `python docs/site/build.py`.

Every warning of the generator is an error. The built pages are then compared with each other: a link, an anchor or a
picture that leads nowhere in the site fails the build, as does anything that a page would load from elsewhere. Links to
other sites, which a person may click, are not fetched.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
_LOADED_BY_HREF = (
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
)
"""What a browser fetches without being asked, by the `rel` of a link."""
_IN_STYLES = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])([^"')\s]+)""")


@dataclass
class Page:
    """What a built page holds, and where it leads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    """What a person may click."""
    loaded: list[str] = field(default_factory=list)
    """What a browser loads by itself."""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.page.anchors |= {named[name] for name in ("id", "name") if named.get(name)}
        if tag == "a" and "href" in named:
            self.page.links.append(named["href"])
        elif tag == "link" and "href" in named:
            loads = any(rel in _LOADED_BY_HREF for rel in named.get("rel", "").lower().split())
            (self.page.loaded if loads else self.page.links).append(named["href"])
        for name in ("src", "poster", "data"):
            if named.get(name) and tag != "a":
                self.page.loaded.append(named[name])
        if named.get("srcset"):
            self.page.loaded += [one.split()[0] for one in named["srcset"].split(",") if one.strip()]
        if "style" in named:
            self.page.loaded += _IN_STYLES.findall(named["style"])


def read(path: Path) -> Page:
    """A built page."""
    reader = _Reader()
    text = path.read_text(encoding="utf-8")
    reader.feed(text)
    for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL):
        reader.page.loaded += _IN_STYLES.findall(style)
    return reader.page


def complaints(site: Path) -> Iterator[str]:
    """Everything in a built site that leads nowhere, or that would be loaded from elsewhere."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        here = path.relative_to(site)
        for target in page.loaded:
            if _is_elsewhere(target):
                yield f"{here} would load {target}"
        for target in (*page.links, *page.loaded):
            if not _is_elsewhere(target) and (why := _dead(path, target, site, pages)):
                yield f"{here} leads to {target}: {why}"
    for path in sorted(site.rglob("*.css")):
        for target in _IN_STYLES.findall(path.read_text(encoding="utf-8")):
            if _is_elsewhere(target):
                yield f"{path.relative_to(site)} would load {target}"


def _is_elsewhere(target: str) -> bool:
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme not in ("", "data", "file")


def _dead(path: Path, target: str, site: Path, pages: dict[Path, Page]) -> str:
    """Why a link inside the site leads nowhere; empty if it does not."""
    parts = urlsplit(target)
    if parts.scheme == "data":
        return ""
    if parts.scheme == "file" or parts.path.startswith("/"):
        return "it is a place on the machine that built the site"
    found = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    if not found.is_relative_to(site) or not found.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and found in pages and anchor not in pages[found].anchors:
        return "there is no such anchor"
    return ""


def build(site: Path = SITE) -> int:
    """Build the site anew; how many pages it has."""
    words = ["-q", "-W", "--keep-going", "-E", "-a", "-b", "html", "-c", str(Path(__file__).parent)]
    trees = site.with_name(f"{site.name}-trees")
    done = subprocess.run([sys.executable, "-m", "sphinx", *words, "-d", str(trees), str(ROOT), str(site)], check=False)
    found = list(complaints(site)) if done.returncode == 0 else ["the generator complained, see above"]
    if found:
        sys.exit("\n".join([f"docs: {one}" for one in found[:50]] + [f"docs: {len(found)} found, nothing to publish."]))
    return len(list(site.rglob("*.html")))


if __name__ == "__main__":
    began = time.monotonic()
    count = build()
    print(f"{count} pages in {time.monotonic() - began:.0f} s: open {SITE / 'index.html'}")
