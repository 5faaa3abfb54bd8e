"""Settings of the site that `make docs` builds: the Markdown of the repository as it lies there, and pages on the code.

The source folder is the repository itself, so that a link between pages is the same here and on GitHub.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fedkeel

ROOT = Path(__file__).parents[2]

project = "fedkeel"
author = "the fedkeel authors"
version = release = fedkeel.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md"]
exclude_patterns = ["docs/algorithms/notes/**", "docs/papers/notes/**"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages may begin a part at the level that reads best on GitHub

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"fedkeel {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path: list[str] = []

CONTENTS = {
    "Use": [
        *("docs/reference", "docs/algorithms/README", "docs/faults", "docs/robust", "docs/network", "docs/threats"),
        *("docs/adding-an-algorithm", "docs/glossary"),
    ],
    "Results": [
        *("docs/measurements", "docs/report", "docs/ui", "docs/export"),
        *(
            "docs/papers/README",
            "docs/leaderboard",
            "docs/tuning",
            "docs/benchmarks",
            "docs/scale",
            "docs/performance",
            "docs/reliability",
        ),
    ],
    "Code": ["docs/site/api", "docs/architecture", "docs/dependencies", "docs/releasing", "CONTRIBUTING", "CHANGELOG"],
}
"""The menu below the README. Pages on algorithms and papers come below their own lists, others under More."""
LISTS = ("docs/algorithms/README", "docs/papers/README")


def _menu(name: str) -> str:
    """The lists of pages that the menu shows below a page."""
    if name in LISTS:
        folder = ROOT / Path(name).parent
        pages = sorted(path.stem for path in folder.glob("*.md") if path.stem != "README")
        return _toctree("", pages)
    return "".join(_toctree(title, [f"/{page}" for page in pages]) for title, pages in contents().items())


def contents() -> dict[str, list[str]]:
    """What the menu lists: every page there is."""
    named = {page for pages in CONTENTS.values() for page in pages}
    others = [f"docs/{path.stem}" for path in sorted((ROOT / "docs").glob("*.md"))]
    more = [page for page in others if page not in named]
    there = {title: [page for page in pages if (ROOT / f"{page}.md").is_file()] for title, pages in CONTENTS.items()}
    return there | ({"More": more} if more else {})


def _toctree(title: str, pages: list[str]) -> str:
    caption = f":caption: {title}\n" if title else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(pages) + "\n```\n"


def _without_folders(name: str, text: str) -> str:
    """Links to folders as their text: a site has no page for them."""
    here = (ROOT / name).parent

    def mended(link: re.Match[str]) -> str:
        return link[1] if (here / link[2]).is_dir() else link[0]

    return re.sub(r"(?<!!)\[([^\]\n]*)\]\(([^)#:\s]+)\)", mended, text)


def _read(app: Any, name: str, source: list[str]) -> None:
    source[0] = _without_folders(name, source[0])
    if name == root_doc or name in LISTS:
        source[0] += _menu(name)


def _first_page(app: Any, error: Exception | None) -> None:
    """Whoever opens the folder lands on the README."""
    if error is None:
        moved = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        Path(app.outdir, "index.html").write_text(f'{moved}\n<a href="{root_doc}.html">fedkeel</a>\n', encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("build-finished", _first_page)
