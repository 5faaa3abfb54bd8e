"""The papers' tables and figures: as data, run and judged.

``fedkeel.papers.exhibits()`` are all of them by id; ``fedkeel.papers.run("feddc.table1")`` runs one,
``fedkeel.papers.verdict("feddc.table1")`` judges it, ``fedkeel.papers.figure("feddc.figure3")`` draws it.
"""

from __future__ import annotations

from typing import Any

_LATER = {"exhibits": "format", "papers": "format", "run": "api", "verdict": "api", "figure": "api"}
"""Functions that need more than these few lines, by the module that has them."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
