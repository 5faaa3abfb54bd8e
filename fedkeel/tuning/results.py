"""The leaderboard's settings with what is on record of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from fedkeel.errors import unknown
from fedkeel.tuning import records as kept
from fedkeel.tuning.board import Board, Ranking, board, ranking
from fedkeel.tuning.contest import Contest, Entrants, contest, entrants, settings
from fedkeel.tuning.overall import Overall, overall
from fedkeel.tuning.plan import budgeted
from fedkeel.tuning.records import Collected


def board_of(about: Contest, found: Collected, where: Path = Path()) -> Board:
    """A setting's table; every record is compared with the setting as it is now, and budgets with each other."""
    return board(budgeted(about, found, where), found)


class Leaderboard:
    """The settings with what some folders have on record of them.

    Each setting is read, and its records compared with it, once: this is how things were when it was first asked for.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._records: dict[str, Collected] = {}
        self._boards: dict[str, Board] = {}

    def records(self, name: str) -> Collected:
        """Of one setting."""
        if name not in self._records:
            self._records[name] = Collected.of(name, *self._folders)
        return self._records[name]

    def board(self, name: str) -> Board:
        """The table of one setting."""
        if name not in settings():
            raise unknown("setting of the leaderboard", name, list(settings()))
        if name not in self._boards:
            self._boards[name] = board_of(contest(name), self.records(name), self._folders[0])
        return self._boards[name]

    def boards(self, names: Sequence[str] = ()) -> list[Board]:
        """Of some settings, or of all."""
        return [self.board(name) for name in names or settings()]

    def ranking(self, names: Sequence[str] = ()) -> Ranking | None:
        """Mean ranks over the settings (of these, or of all) that have results: those open to all, where there is one.

        Others have only the best of them, and a ranking takes the methods that all its settings have. So a setting with
        which not everybody is through waits while there is another.
        """
        found = self.boards(names)
        for_all = [one for one in found if one.ranked and settings()[one.contest.name].entrants == "all"]
        return self._ranked([one for one in for_all if self._has_all(one)] or for_all or found)

    def ranking_of_best(self) -> Ranking | None:
        """Mean ranks over the settings that only the best take part in, of those through with all of them.

        The setting that they were chosen by is left out: there they were lucky, too.
        """
        chosen = [
            one for one in self.boards() if one.ranked and isinstance(settings()[one.contest.name].entrants, Entrants)
        ]
        return self._ranked([one for one in chosen if self._has_all(one)])

    def overall(self, without: Collection[str] = ()) -> Overall | None:
        """Over all settings that everybody who takes part is through with, but for those named.

        One that others choose from is left out: who takes part there was lucky in it, the first above all.
        """
        chosen_by = {one.entrants.of for one in settings().values() if isinstance(one.entrants, Entrants)}
        left_out = chosen_by.union(without)
        found = [one for one in self.boards() if one.contest.name not in left_out and one.ranked]
        through = [one for one in found if self._has_all(one)]
        return overall(through, [self.records(one.contest.name) for one in through])

    def entrants(self, name: str) -> list[str]:
        """Who takes part in a setting, by the results of the one that it chooses from."""
        wanted = settings()[name].entrants
        if not isinstance(wanted, Entrants):
            return entrants(name, None)
        return entrants(name, [row.algorithm for row in self.board(wanted.of).ranked])

    def missing(self, found: Board) -> list[str]:
        """Who has yet to run in a setting that others have begun; empty while it is not known who takes part."""
        wanted = settings()[found.contest.name].entrants
        begun = bool(found.rows or found.unfinished)
        if not begun or (isinstance(wanted, Entrants) and not self.board(wanted.of).ranked):
            return []
        known = {*(row.algorithm for row in found.rows), *found.unfinished, *found.not_run}
        return [name for name in self.entrants(found.contest.name) if name not in known]

    def _ranked(self, found: Sequence[Board]) -> Ranking | None:
        return ranking(found, [self.records(one.contest.name) for one in found])

    def _has_all(self, found: Board) -> bool:
        """Whether everybody who takes part is through; not before it is known who does."""
        wanted = settings()[found.contest.name].entrants
        if isinstance(wanted, Entrants) and not self.board(wanted.of).ranked:
            return False
        return {*self.entrants(found.contest.name)} <= {*(row.algorithm for row in found.rows), *found.not_run}


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
