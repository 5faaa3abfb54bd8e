"""Algorithms outside the package: short, right by hand, and the count of what an author has to know."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from fedkeel.algorithms.contract import Algorithm, Local, Uploads
from fedkeel.check import check_algorithm
from tests.algorithms.quadratic import path, simulation
from tests.test_docs import module_at

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "own_algorithms"
FedExP = module_at(FOLDER / "fedexp.py").FedExP
FedCM = module_at(FOLDER / "fedcm.py").FedCM


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_they_are_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.parametrize("algorithm", [FedExP, FedCM], ids=lambda cls: cls.name)
def test_they_keep_the_contract(algorithm: type[Algorithm]) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize(("epsilon", "expected"), [(1e-30, -0.25), (0.03, -0.1), (0.005, -0.2)])
def test_fedexp_steps_further_where_updates_differ(epsilon: float, expected: float) -> None:
    """b = (1, −3), h = 1, η = 0.1, one step from 0, in two equal coordinates: Δ = (0.1, −0.3), Δ̄ = −0.1.

    mean ‖Δ_i‖² = 2·(0.01 + 0.09)/2 = 0.1 and ‖Δ̄‖² = 0.02, so η_g = max(1, 0.05/(0.02 + ε)): 2.5, 1 and 2.
    """
    run = simulation(FedExP(epsilon=epsilon), [(1, 1), (1, -3)], lr=0.1, steps=1)
    assert path(run, 1)[1] == pytest.approx(expected)


def test_fedexp_of_clients_that_agree_is_the_mean() -> None:
    """Equal updates have ½ mean ‖Δ_i‖²/‖Δ̄‖² = ½, and the server's step is never shorter than the mean."""
    assert path(simulation(FedExP(), [(1, 1), (1, 1)], lr=0.1, steps=1), 1)[1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("steps", "clients", "expected"),
    [
        (1, [(1, 1)], [0, 0.05, 0.1225]),
        (2, [(1, 1)], [0, 0.0975, 0.233025]),
        (1, [(1, 1), (1, -3)], [0, -0.05, -0.1225]),
    ],
)
def test_fedcm_follows_the_last_round(steps: int, clients: list[Any], expected: list[float]) -> None:
    """F = ½(w − 1)², η = 0.1, a = ½, one step: q = −½, y = 0.05, g = −0.05/0.1; then q = ½(−0.95) + ½(−0.5) = −0.725.

    Two steps: to 0.05 and 0.0975, g = −0.0975/0.2; then −0.695 and −0.66025. Two clients of one step: the mean of
    F_0 and F_1 is that of b = −1, so that everything has the opposite sign.
    """
    assert path(simulation(FedCM(a=0.5), clients, lr=0.1, steps=steps), 2) == pytest.approx(expected)


def public(cls: type) -> set[str]:
    return {name for name in [*vars(cls), *inspect.get_annotations(cls)] if not name.startswith("_")}


def test_the_page_counts_what_an_author_has_to_know() -> None:
    """And which of these names the two files use."""
    arguments = set(inspect.signature(Local.train).parameters) - {"self"}
    parts = [public(Algorithm), public(Local), public(Uploads), arguments]
    text = (ROOT / "docs" / "adding-an-algorithm.md").read_text(encoding="utf-8")
    assert f"{sum(map(len, parts))} ({' + '.join(str(len(part)) for part in parts)})" in text
    for file in FOLDER.glob("*.py"):
        source = file.read_text(encoding="utf-8")
        (said,) = re.findall(rf"own_algorithms/{file.name}\) (?:uses )?(\d+)\s+in (\d+)", text)
        code = source.split('"""')[2]
        words = set(re.findall(r"[a-z_A-Z]+", code))
        assert (len(words & set.union(*parts)), len(source.splitlines())) == tuple(map(int, said))
