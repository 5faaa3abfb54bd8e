"""Whole documents: the report of runs."""

from fedkeel.pages.document import report

__all__ = ["report"]
