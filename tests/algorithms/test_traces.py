"""Every recorded trace, replayed: the authors' own numbers, and the specification's where no author code exists."""

from pathlib import Path

import pytest

from tests.replay.run import compare

TRACES = sorted(path for path in (Path(__file__).parents[1] / "golden").glob("*__*.npz"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    differences, unread = compare(path)
    out = [f"{d.array}: {d.largest:.1e} > {d.tolerance:.0e}" for d in differences if not d.within]
    assert not out, "; ".join(out)
    assert {"global", "uploads"} <= {d.array for d in differences}
    assert not unread, f"arrays that nothing is compared with: {', '.join(unread)}"
