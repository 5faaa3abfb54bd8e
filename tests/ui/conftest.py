"""Runs to look at; where the extra ``ui`` is not installed, the tests skip and say so."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from fedkeel.ui.app import Site


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three algorithms, one of which noted values of clients."""
    from fedkeel import api
    from tests.ui.looking import experiment

    folder = tmp_path_factory.mktemp("made")
    for name in ("fedavg", "feddc", "fedveca"):
        one = experiment(algorithm={"name": name})
        with warnings.catch_warnings(action="ignore"):  # FedVeca has much to say about such a short run
            api.run(one, folder / one.label)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the runs that a test may do with as it likes."""
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def site(folder: Path) -> Site:
    from tests.ui.looking import site_of

    return site_of(folder)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    from tests.ui.looking import client_of

    with client_of(site) as client:
        yield client
