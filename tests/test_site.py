"""The site of `make docs`: what its own look through the built pages finds, and that it knows every page there is."""

import re
from pathlib import Path

import pytest

import fedkeel
from docs.site import build, conf

ROOT = Path(__file__).parents[1]
MEMBERS = re.compile(r":members: (.+)\n")
SOUND = """<html><head><link rel="stylesheet" href="look.css"><link rel="next" href="b.html"></head><body>
<h1 id="top">A</h1><a href="b.html#below">b</a> <a href="#top">up</a> <a href="https://example.org/x">elsewhere</a>
<a href="mailto:a@example.org">write</a><img src="p%20q.png"><img src="data:image/png;base64,AA==">
<script src="s.js"></script></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "a.html").write_text(SOUND)
    (tmp_path / "b.html").write_text('<p id="below">b</p><a href="a.html">a</a>')
    (tmp_path / "look.css").write_text("p { background: url(p%20q.png) }")
    (tmp_path / "p q.png").write_bytes(b"x")
    (tmp_path / "s.js").write_text("")
    return tmp_path


def test_a_sound_site_has_no_complaints(site: Path) -> None:
    assert list(build.complaints(site)) == []


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("b.html#below", "c.html", "no such file"),
        ("b.html#below", "b.html#above", "no such anchor"),
        ("#top", "#bottom", "no such anchor"),
        ("p%20q.png", "gone.png", "no such file"),
        ("s.js", "gone.js", "no such file"),
        ("s.js", "https://cdn.example.org/s.js", "would load"),
        ("s.js", "//cdn.example.org/s.js", "would load"),
        ("look.css", "https://fonts.example.org/f.css", "would load"),
        ('<img src="p%20q.png">', '<img srcset="p%20q.png 1x, http://x.org/2.png 2x">', "would load"),
        ("<body>", "<style>@import 'https://x.org/f.css';</style><body>", "would load"),
        ('id="top"', 'id="top" style="background: url(http://x.org/a.png)"', "would load"),
        ("b.html#below", "../outside.html", "no such file"),
        ("b.html#below", "/etc/passwd", "machine that built"),
    ],
)
def test_what_leads_nowhere_or_is_loaded_from_elsewhere_is_found(site: Path, was: str, becomes: str, said: str) -> None:
    assert was in SOUND
    (site / "a.html").write_text(SOUND.replace(was, becomes, 1))
    found = list(build.complaints(site))
    assert found
    assert all(said in one for one in found), found


def test_styles_load_nothing_from_elsewhere(site: Path) -> None:
    (site / "look.css").write_text('@font-face { src: url("https://fonts.example.org/f.woff2") }')
    assert list(build.complaints(site)) == ["look.css would load https://fonts.example.org/f.woff2"]


def test_every_page_is_in_the_menu() -> None:
    listed = {page for pages in conf.contents().values() for page in pages}
    listed |= {f"{Path(one).parent}/{path.stem}" for one in conf.LISTS for path in (ROOT / one).parent.glob("*.md")}
    ours = {path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in ours if "/notes/" not in page} == listed - {"CONTRIBUTING", "CHANGELOG"}


def test_links_to_folders_become_text() -> None:
    text = "see [results](../../results) and [it](../../fedkeel/api.py#x), ![](../pictures)"
    assert conf._without_folders("docs/papers/README.md", text) == (
        "see results and [it](../../fedkeel/api.py#x), ![](../pictures)"
    )


def test_everything_public_is_on_the_page_about_the_code() -> None:
    """By its own name, or with all of the module that it comes from."""
    page = (ROOT / "docs" / "site" / "api.md").read_text()
    whole = set(re.findall(r"automodule:: (\S+)\n   :members:\n", page))
    named = set(re.findall(r":: fedkeel\.(\w+)\n", page)) | set(re.findall(r"\w+", " ".join(MEMBERS.findall(page))))
    assert {name for name in fedkeel.__all__ if name not in named and fedkeel._HOMES[name] not in whole} == set()
