"""Runs that all pictures are drawn of."""

from pathlib import Path

import pytest

from tests.plots import real


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedVeca with two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    return real.make(folder, {"algorithm": ["fedavg", "fedveca"], "seed": [0, 1]})
