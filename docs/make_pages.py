"""Builds docs/algorithms, docs/papers, docs/leaderboard.md, docs/reference.md. ``python docs/make_pages.py [--check]``

A page is put together from the registry (box, parameters, modes, laws, published numbers), from one measured round
(traffic and state, ``pages/measure.py``), from the recorded traces in tests/golden and docs/results/*.json
(``pages/data.py``), and from the notes in docs/algorithms/notes, which are written by hand; ``pages/render.py`` sets it
all as Markdown. The papers' pages come from what they printed and from results/ (``pages/papers.py``), the
leaderboard's from results/leaderboard (``pages/leaderboard.py``). With ``--check`` nothing is written; the exit code is
1 if a page on disk differs from what would be written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs.pages import leaderboard, papers  # noqa: E402
from docs.pages.data import PAGES, RESULTS  # noqa: E402
from docs.pages.measure import measure_all  # noqa: E402
from docs.pages.reference import PATH as REFERENCE  # noqa: E402
from docs.pages.reference import reference  # noqa: E402
from docs.pages.render import RESULTS_BEGIN, RESULTS_END, index, page  # noqa: E402
from fedkeel.algorithms.registry import ALGORITHMS  # noqa: E402


def build() -> dict[Path, str]:
    """Every page by its path."""
    measured = {name: measure_all(name) for name in ALGORITHMS}
    pages = {PAGES / f"{name}.md": page(name, measured[name]) for name in ALGORITHMS}
    board = {leaderboard.PATH: leaderboard.page()}
    return pages | {PAGES / "README.md": index(measured), REFERENCE: reference()} | papers.pages() | board


def stale(pages: Mapping[Path, str]) -> list[str]:
    """The pages on disk that differ; what comes from docs/results is compared only where there are results."""
    has_results = any(RESULTS.glob("*.json"))
    found = []
    for path, wanted in pages.items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if not has_results:
            wanted, there = _without_results(wanted), _without_results(there)
        if there != wanted:
            found.append(path.name)
    extra = {path for folder in (PAGES, papers.FOLDER) for path in folder.glob("*.md")} - set(pages)
    return found + sorted(path.name for path in extra)


def _without_results(text: str) -> str:
    return re.sub(f"{RESULTS_BEGIN}.*?{RESULTS_END}", "", text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write the pages of docs from registry, measurements, records and notes."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    checks = parser.parse_args().check
    pages = build()
    old = stale(pages)
    if checks:
        print("\n".join(f"out of date: {name}" for name in old) or f"{len(pages)} pages are up to date")
        return 1 if old else 0
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    papers.draw_pictures()
    leaderboard.draw_pictures()
    print(f"{len(pages)} pages written, {len(old)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
