"""Shared by the data tests: a private cache, no data folder from outside, and the optional folder of real data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedkeel.data import Dataset, from_arrays

GIVEN = os.environ.get("FEDKEEL_DATA")  # read before the fixture below hides it
REAL = Path(GIVEN) if GIVEN else Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)


@pytest.fixture
def real() -> Callable[[str], Path]:
    """``real(name)`` is the folder whose sub-folder ``name`` holds real files; without it the test is skipped."""

    def folder(name: str) -> Path:
        if not (REAL / name).is_dir():
            pytest.skip(f"no real data in a folder {name!r}: set FEDKEEL_DATA to the folder around it")
        return REAL

    return folder


@pytest.fixture
def tiny() -> Dataset:
    """40 vectors in 4 classes, ten of each in turn, and 4 for test."""
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    return from_arrays(x, np.arange(40) % 4, x[:4], np.arange(4), name="tiny")
