"""``fedkeel plot`` and ``fedkeel report``: a picture of runs, or all that is known of them, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkeel.cli.screen import say
from fedkeel.pages import report
from fedkeel.plots import chart
from fedkeel.theme import check_suffix, save_chart


def draw_runs(runs: list[Path], kind: str, out: Path | None, data_dir: Path | None, **options: Any) -> None:
    """Draw, save, and say where; what a reader must know of the runs is warned of."""
    out = out or Path(f"{kind}.png")
    check_suffix(out)
    say(f"Picture: {save_chart(chart(runs, kind, data_dir=data_dir, **options), out)}", soft_wrap=True)


def write_report(runs: list[Path], out: Path, target: float, title: str, data_dir: Path | None) -> None:
    """Write, and say where and how large."""
    file = report(runs, out, target=target, title=title, data_dir=data_dir)
    say(f"Report: {file} ({file.stat().st_size / 1e6:.2f} MB)", soft_wrap=True)
