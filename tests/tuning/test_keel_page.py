"""The numbers on Keel's page, which people typed, are those of the records."""

from __future__ import annotations

import json

import pytest

from benchmarks.own_method.ablation import table
from docs.pages.data import NOTES, RESULTS
from docs.pages.leaderboard import RECORDS
from fedkeel.tuning.board import percent
from fedkeel.tuning.results import boards

PAGE = (NOTES / "keel.md").read_text(encoding="utf-8")


def test_the_ablation() -> None:
    found = json.loads((RESULTS / "keel_ablation.json").read_text(encoding="utf-8"))["fashion-mnist"]["late"]
    for line in table({part: list(values.values()) for part, values in found.items()}).splitlines()[2:]:
        assert line.split(" | ", 1)[1] in PAGE


@pytest.mark.parametrize("name", ["fashion-mnist", "two-percent"])
def test_the_comparison(name: str) -> None:
    (found,) = boards([name], [RECORDS])
    rows = {row.algorithm: row for row in found.rows}
    for algorithm in ("keel", "gradma", "gradma_s", "feddyn", "fedacg"):
        row = rows[algorithm]
        cells = [line for line in PAGE.splitlines() if line.startswith("|") and row.title in line.split("|")[1]]
        ending = f"| {row.rounds_to:.0f} | {row.bytes_to / 1e6:,.0f} |"
        assert any(percent(row.late) in line and line.endswith(ending) for line in cells)
