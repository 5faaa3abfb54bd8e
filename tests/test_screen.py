"""What is printed holds at any width, and draws noise as small as it is."""

import random

import pytest
from rich.cells import cell_len

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli import listings, screen
from fedkeel.cli.life import BLOCKS, sparkline
from fedkeel.cli.screen import duration, fitted

WIDTHS = [60, 80, 120]


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(screen.console, "_width", request.param)
    return int(request.param)


@pytest.mark.parametrize("show", [listings.show_models, listings.show_rules, listings.show_algorithms])
def test_listings_fit_and_squeeze_no_sentence(width: int, show: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(show)
    show(False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= width
    # A sentence folded to a few letters would make very many lines.
    assert len(lines) < 200


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_pseudo_code_fits(width: int, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    listings.show_algorithm(name, False)
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= width


def test_a_headline_breaks_between_its_parts(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["run 1 of 4", "FedAvg", "mnist5k", "50 clients, dirichlet 0.3, 20% a round", "199,210 parameters", "auto"]
    screen.headline(parts)
    lines = capsys.readouterr().out.splitlines()
    assert [part for line in lines for part in line.strip().split(" · ")] == parts
    assert max(map(cell_len, lines)) <= width


def test_what_matters_least_is_left_out_first() -> None:
    parts = [(1, "accuracy 97.5%"), (4, "▁▂▃"), (7, "38k samples/s"), (2, "51 s left")]
    assert fitted(parts, 100) == "accuracy 97.5%  ▁▂▃  38k samples/s  51 s left"
    assert fitted(parts, 35) == "accuracy 97.5%  ▁▂▃  51 s left"
    assert fitted(parts, 25) == "accuracy 97.5%  51 s left"
    assert fitted(parts, 3) == "accuracy 97.5%"


def test_noise_does_not_look_like_collapse() -> None:
    rng = random.Random(0)
    noisy = [0.97 + rng.uniform(-0.005, 0.005) for _ in range(10)]
    heights = [BLOCKS.index(block) for block in sparkline(noisy)]
    assert max(heights) - min(heights) <= 1
    collapse = [BLOCKS.index(block) for block in sparkline([0.9, 0.9, 0.3])]
    assert collapse == [7, 7, 0]
    assert sparkline([]) == ""
    assert len(sparkline([0.0] * 30)) == 10
    assert set(sparkline([1.0] * 3)) <= set(BLOCKS)


def test_times_are_said_as_people_do() -> None:
    assert [duration(s) for s in (3, 99, 600, 7200)] == ["3 s", "99 s", "10 min", "2.0 h"]


def test_no_number_is_cut_where_a_table_is_wider_than_the_screen(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three columns of 30 characters, which fit no screen here: rather a ragged table than 0.03 for 0.036."""
    numbers = [f"{at + 1}0.0{'1' * 26}" for at in range(3)]
    screen.show_table(["name", *((number[:3], "right") for number in numbers), "why"], [["x", *numbers, "because"]])
    lines = capsys.readouterr().out.splitlines()
    shown = " ".join(lines).split()
    assert {*numbers, "because"} <= {*shown}
    assert max(map(cell_len, lines)) <= width
