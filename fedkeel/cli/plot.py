"""``fedkeel plot``: a picture of runs in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkeel.cli.screen import say
from fedkeel.plots import chart
from fedkeel.theme import check_suffix, save_chart


def draw_runs(runs: list[Path], kind: str, out: Path | None, data_dir: Path | None, **options: Any) -> None:
    """Draw, save, and say where; what a reader must know of the runs is warned of."""
    out = out or Path(f"{kind}.png")
    check_suffix(out)
    say(f"Picture: {save_chart(chart(runs, kind, data_dir=data_dir, **options), out)}")
