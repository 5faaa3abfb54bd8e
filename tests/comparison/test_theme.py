"""The look that all pictures share."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import theme

HEIGHTS = st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1), max_size=12)


@given(heights=HEIGHTS)
def test_labels_that_find_room_keep_their_distance_their_order_and_the_frame(heights: dict[str, float]) -> None:
    least = 1 / 12
    placed = theme.apart(heights, least, 0.0, 1.0)
    assert placed.keys() == heights.keys()
    at = sorted(placed.values())
    assert all(upper - lower >= least - 1e-9 for lower, upper in pairwise(at))
    assert all(-1e-9 <= height <= 1 + 1e-9 for height in at)
    by_wish, by_place = sorted(heights, key=heights.__getitem__), sorted(placed, key=placed.__getitem__)
    assert [heights[name] for name in by_place] == [heights[name] for name in by_wish]


def test_labels_far_from_each_other_stay_where_they_want_to_be() -> None:
    assert theme.apart({"a": 0.2, "b": 0.8}, 0.1, 0.0, 1.0) == {"a": 0.2, "b": 0.8}


def test_labels_that_touch_share_the_middle_of_their_wishes() -> None:
    """0.50 and 0.52 want 0.51 on average; 0.1 apart around it: 0.46 and 0.56."""
    placed = theme.apart({"a": 0.50, "b": 0.52}, 0.1, 0.0, 1.0)
    assert [round(placed[name], 9) for name in "ab"] == [0.46, 0.56]


def test_forty_lines_look_different_and_neighbours_differ_in_colour_and_dash() -> None:
    looks = list(theme.looks([str(n) for n in range(40)]).values())
    assert len(set(looks)) == 40
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in pairwise(looks))


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "html"])
def test_characters_that_xml_has_no_place_for_are_spelt_out(tmp_path: Path, suffix: str) -> None:
    """Drawn as they are, they would end the process."""
    rows = [{"name": "a\x1b[31m\x00b\ufffe", "value": 1.0}]
    chart = alt.Chart(alt.InlineData(values=rows)).mark_bar().encode(x="name:N", y="value:Q")
    path = theme.save_chart(chart, tmp_path / f"x.{suffix}")
    assert path.stat().st_size > 1000
    if suffix == "svg":
        assert r"a\x1b[31m\x00b\ufffe" in path.read_text()


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_where_addresses_are_too_few_drawing_is_refused(tmp_path: Path, suffix: str) -> None:
    """The engine that draws would end the process: an address space of 8 GB (ulimit -v) is not enough for it."""
    pytest.importorskip("resource")
    program = (
        "import resource, sys, altair as alt\n"
        "from fedkeel import errors, theme\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "chart = alt.Chart(alt.InlineData(values=[{'a': 1}])).mark_bar().encode(x='a:Q')\n"
        "try:\n    theme.save_chart(chart, sys.argv[1])\n"
        "except errors.InputError as error:\n    print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / f"x.{suffix}")], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert "64 GB of addresses (not of memory), this process may have 8.0" in found.stdout
