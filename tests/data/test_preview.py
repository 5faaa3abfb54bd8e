"""The picture of a federation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedkeel.data import Dataset, from_arrays, load, preview_chart, save_chart
from fedkeel.errors import InputError


def test_the_chart_shows_every_cell_and_its_rule() -> None:
    federation = load("mnist5k").partition("dirichlet", clients=50, alpha=0.3)
    spec = preview_chart(federation).to_dict()
    cells = spec["datasets"][spec["vconcat"][1]["data"]["name"]]
    assert sum(cell["samples"] for cell in cells) == 4000
    assert len(cells) == (federation.counts() > 0).sum()
    assert spec["title"]["text"] == "mnist5k · 50 clients · dirichlet (alpha 0.3)"


def test_many_classes_become_a_heat_map() -> None:
    y = np.arange(400) % 40
    x = np.zeros((400, 2))
    federation = from_arrays(x, y, x, y).partition("iid", clients=100)
    assert preview_chart(federation).to_dict()["vconcat"][1]["mark"]["type"] == "rect"


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF"), ("html", b"<")])
def test_charts_are_saved_by_suffix(tiny: Dataset, tmp_path: Path, suffix: str, begin: bytes) -> None:
    path = save_chart(preview_chart(tiny.partition("iid", 3)), tmp_path / "new" / f"chart.{suffix}")
    assert path.read_bytes().lstrip().startswith(begin)


def test_other_suffixes_are_refused(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"chart path must be a file name ending in \.png, \.svg, \.pdf, \.html"):
        save_chart(preview_chart(tiny.partition("iid", 3)), tmp_path / "chart.gif")
