"""``fedkeel conformal``: prediction sets of a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkeel.api import conformal
from fedkeel.cli.main import print_json


def show_conformal(
    run: Path, method: Any, alpha: float, by: str, seed: int, data_dir: Path | None, as_json: bool
) -> None:
    """Coverage and size in words with the curve below, or everything as JSON."""
    found = conformal(run, method, alpha, by=by, seed=seed, data_dir=data_dir)
    if as_json:
        print_json(found.as_dict())
        return
    print(found)
    print("  asked for  coverage  mean size")
    for level in found.curve:
        print(f"  {1 - level.alpha:9.0%}  {level.coverage:8.1%}  {level.size:9.2f}")
