"""Several settings in one table: who is best over all of them, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedkeel.tuning.board import Board, Row, ahead, listed, percent, said_of_p
from fedkeel.tuning.records import Collected
from fedkeel.tuning.statistics import Interval, Stratified, holm

FEWEST = 2
"""Settings, and methods that all of them have."""


@dataclass(frozen=True)
class Standing:
    """One method over all settings."""

    algorithm: str
    title: str
    mean: float
    """Of its accuracies over the last 10 % of the rounds; each setting counts alike."""
    lead: Interval
    """Of the first over this one; NaN for the first, and where a seed diverged."""
    p: float
    """That they are alike (``Stratified``), Holm-corrected; NaN as above."""
    places: tuple[int, ...]
    """In every setting, among all that took part there."""
    seeds: int
    """Of all settings."""
    diverged: int
    """How many of them ended without a usable model; each counts as accuracy 0."""


@dataclass(frozen=True)
class Overall:
    """The methods that several settings have in common, best first."""

    contests: tuple[str, ...]
    standings: tuple[Standing, ...]


def overall(boards: Sequence[Board], records: Sequence[Collected]) -> Overall | None:
    """Over every seed of these settings; None where there is nothing to compare."""
    places = [{row.algorithm: place for place, row in enumerate(board.ranked, start=1)} for board in boards]
    common = [row for row in boards[0].ranked if all(row.algorithm in own for own in places)] if boards else []
    if len(boards) < FEWEST or len(common) < FEWEST:
        return None
    late = {row.algorithm: [_late(row, *one) for one in zip(boards, records, strict=True)] for row in common}
    diverged = {
        row.algorithm: sum(own.diverged for board in boards for own in board.rows if own.algorithm == row.algorithm)
        for row in common
    }
    means = {name: fmean(map(fmean, settings)) for name, settings in late.items()}
    first, *others = sorted(common, key=lambda row: -means[row.algorithm])
    compared = {
        row.algorithm: Stratified.of(
            [
                [mine - theirs for mine, theirs in zip(*pair, strict=True)]
                for pair in zip(late[first.algorithm], late[row.algorithm], strict=True)
            ]
        )
        for row in others
        if not diverged[row.algorithm] and not diverged[first.algorithm]
    }
    p = holm({name: found.p for name, found in compared.items()})
    nothing = Interval(math.nan, math.nan)
    return Overall(
        tuple(board.contest.name for board in boards),
        tuple(
            Standing(
                row.algorithm,
                row.title,
                means[row.algorithm],
                compared[row.algorithm].lead if row.algorithm in compared else nothing,
                p.get(row.algorithm, math.nan),
                tuple(own[row.algorithm] for own in places),
                sum(map(len, late[row.algorithm])),
                diverged[row.algorithm],
            )
            for row in (first, *others)
        ),
    )


def _late(row: Row, board: Board, found: Collected) -> list[float]:
    return [found.found[row.algorithm, "final", seed].reported.late for seed in board.contest.final_seeds]


def head(about: Overall) -> tuple[str, ...]:
    """Of the columns of ``cells``."""
    return ("#", "algorithm", "mean", "behind the first", "p", *about.contests)


def cells(about: Overall) -> list[list[str]]:
    """The table as text."""
    return [
        [
            str(place),
            one.title,
            f"{100 * one.mean:.2f}" if not one.diverged else f"{one.diverged} of {one.seeds} seeds diverged",
            percent(one.lead),
            said_of_p(one.p),
            *(f"{own}." for own in one.places),
        ]
        for place, one in enumerate(about.standings, start=1)
    ]


def support(about: Overall) -> str:
    """Who is first over all, ahead of whom, and of whom that cannot be said."""
    first, *others = about.standings
    # Without a test nobody is level with it, either.
    said = "not compared with anybody, since some of its own seeds diverged" if first.diverged else ahead(others)
    return f"{first.title} comes first over {listed(about.contests)}: {said}."
