"""The leaderboard's settings with what is on record of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedkeel.errors import unknown
from fedkeel.tuning import records as kept
from fedkeel.tuning.board import Board, Ranking, board, ranking
from fedkeel.tuning.contest import Contest, Entrants, contest, entrants, settings
from fedkeel.tuning.plan import budgeted
from fedkeel.tuning.records import Collected


def board_of(about: Contest, found: Collected, where: Path = Path()) -> Board:
    """A setting's table; every record is compared with the setting as it is now, and budgets with each other."""
    return board(budgeted(about, found, where), found)


def boards(names: Sequence[str], folders: Sequence[Path]) -> list[Board]:
    """Of some settings, or of all."""
    for name in names:
        if name not in settings():
            raise unknown("setting of the leaderboard", name, list(settings()))
    return [board_of(contest(name), Collected.of(name, *folders), folders[0]) for name in names or settings()]


def ranking_of(found: Sequence[Board], folders: Sequence[Path]) -> Ranking | None:
    """Mean ranks over the settings that have results: those open to all, where there is one.

    Others have only the best of them, and a ranking takes the methods that all its settings have. So a setting with
    which not everybody is through waits while there is another.
    """
    for_all = [one for one in found if one.ranked and settings()[one.contest.name].entrants == "all"]
    ranked = [one for one in for_all if _has_all(one, folders)] or for_all or found
    return ranking(ranked, [Collected.of(one.contest.name, *folders) for one in ranked])


def ranking_of_best(found: Sequence[Board], folders: Sequence[Path]) -> Ranking | None:
    """Mean ranks over the settings that only the best take part in, of those through with all of them.

    The setting that they were chosen by is left out: there they were lucky, too.
    """
    ranked = [one for one in found if one.ranked and isinstance(settings()[one.contest.name].entrants, Entrants)]
    through = [one for one in ranked if _has_all(one, folders)]
    return ranking(through, [Collected.of(one.contest.name, *folders) for one in through])


def _has_all(found: Board, folders: Sequence[Path]) -> bool:
    """Whether everybody who takes part is through."""
    name = found.contest.name
    return {*entrants_of(name, folders)} <= {*(row.algorithm for row in found.rows), *found.not_run}


def entrants_of(name: str, folders: Sequence[Path]) -> list[str]:
    """Who takes part in a setting, by the results of the one that it chooses from."""
    wanted = settings()[name].entrants
    if not isinstance(wanted, Entrants):
        return entrants(name, None)
    (first,) = boards([wanted.of], folders)
    return entrants(name, [row.algorithm for row in first.ranked])


def publish(names: Sequence[str], source: Path, target: Path, replace: bool = False) -> Iterator[str]:
    """Copy the records of every algorithm that is through; others that are published stay, unless ``replace``.

    An algorithm is published whole or not at all: a run belongs to the trials that its values were chosen from.
    """
    for name in names:
        found = Collected.of(name, source)
        if not found.found:
            continue
        through = board_of(contest(name), found, source)
        there = Collected.of(name, target)
        for row in through.rows:
            mine = [*found.trials(row.algorithm), *found.finals(row.algorithm)]
            before = [*there.trials(row.algorithm), *there.finals(row.algorithm)]
            if before == mine:
                yield f"{name} {row.algorithm}: was published already"
            elif before and not replace:
                yield f"{name} {row.algorithm}: kept, other records of it are published (--replace takes these)"
            else:
                for old in before:
                    (target / name / f"{old.name}.json").unlink()
                for record in mine:
                    kept.write(target, record)
                yield f"{name} {row.algorithm}: {len(mine)} records"
        for algorithm, why in through.unfinished.items():
            yield f"{name} {algorithm}: not published, {why}"
