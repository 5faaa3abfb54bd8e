"""The tables on Keel's page that records decide: beside the best others, without its parts, and with less memory."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks.own_method.ablation import FILE, WHOLE, of_the_whole
from benchmarks.own_method.ablation import table as ablation_table
from benchmarks.own_method.memory import FILE as MEMORY_FILE
from benchmarks.own_method.memory import MANY, SETTING
from docs.pages.data import RESULTS
from docs.pages.leaderboard import published
from fedkeel.papers.markdown import table
from fedkeel.tuning.board import SURE, Board, Row, percent, said_of_p
from fedkeel.tuning.contest import contest
from fedkeel.tuning.overall import support
from fedkeel.tuning.records import Collected
from fedkeel.tuning.results import Leaderboard
from fedkeel.tuning.statistics import Interval, paired

OWN = "keel"
PARENTS = ("gradma_s", "fedacg")
"""What it is made of, shown whatever their place."""
SEARCHED = ("fashion-mnist", "two-percent")
"""Where it was found, on held-out samples (``benchmarks.own_method.search``)."""
OTHERS = 3
"""The best so many beside it."""
HEAD = ("", "last 10 %", "Keel's lead", "p", "rounds to", "MB to", "gradients a step")


def made(name: str) -> str:
    """What stands in the place of ``<!-- made: name -->`` in the notes."""
    return {"comparison": comparison, "overall": over_all, "ablation": ablation, "memory": memory}[name]()


def comparison(about: Leaderboard | None = None) -> str:
    """A table for each setting that Keel has finished."""
    about = about or published()
    found = [board for board in about.boards() if any(row.algorithm == OWN for row in board.ranked)]
    if not found:
        return "It is not on the leaderboard yet."
    return "\n\n".join(_compared(board, about.records(board.contest.name)) for board in found)


def over_all(about: Leaderboard | None = None) -> str:
    """Who is first over all settings, and over those that had no part in how Keel was found."""
    about = about or published()
    found, apart = about.overall(), about.overall(without=SEARCHED)
    if found is None:
        return "There are too few settings to say anything over all of them."
    said = [f"{support(found)} [The table](../leaderboard.md#over-all-settings)."]
    if apart is not None:
        said.append(f"Without the settings on whose held-out samples it was found: {support(apart)}")
        said += [
            f"Beside {apart.standings[0].title}, {one.title} is {percent(one.lead)} points behind there."
            for one in apart.standings[1:]
            if one.p >= SURE
        ]
    return " ".join(said)


def _compared(board: Board, records: Collected) -> str:
    others = [row.algorithm for row in board.ranked if row.algorithm != OWN]
    shown = {OWN, *others[:OTHERS], *PARENTS}
    late = {name: [one.reported.late for one in records.finals(name)] for name in [*others, OWN]}
    places = {row.algorithm: place for place, row in enumerate(board.ranked, start=1)}
    rows = [_cells(row, late) for row in board.ranked if row.algorithm in shown]
    about = board.contest
    title = (
        f"**{about.title}**, {about.rounds} rounds, to {about.target:.0%}: Keel is number {places[OWN]} of "
        f"{len(board.ranked)}."
    )
    return f"{title}\n\n{table(HEAD, rows)}"


def _cells(row: Row, late: dict[str, list[float]]) -> list[str]:
    mine, theirs = late[OWN], late[row.algorithm]
    alone = row.algorithm == OWN or row.diverged
    lead = Interval.of([a - b for a, b in zip(mine, theirs, strict=True)])
    p = paired(theirs, mine).t
    return [
        row.title,
        percent(row.late) if not row.diverged else f"{row.diverged} of {row.seeds} diverged",
        "–" if alone else percent(lead),
        said_of_p(math.nan if alone else p),
        f"{row.rounds_to:.0f}" if not math.isnan(row.rounds_to) else f"{row.reached} of {row.seeds} seeds",
        f"{row.bytes_to / 1e6:,.0f}" if not math.isnan(row.bytes_to) else "–",
        f"{row.gradients:.2g}",
    ]


def ablation(file: Path = RESULTS / FILE.name, about: Leaderboard | None = None) -> str:
    """A table for each setting that it was done in, which must be of the runs that the leaderboard has."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not found:
        return "It has not been taken apart yet."
    parts, board = [], about or published()
    for setting, measured in found.items():
        played, late = contest(setting), measured["late"]
        if (measured["chosen"], late[WHOLE]) != of_the_whole(played, board.records(setting)):
            raise SystemExit(
                f"{file.name} has {setting} with other values of Keel than the leaderboard: remove that entry and "
                f"run it again (python -m benchmarks.own_method.ablation {setting})."
            )
        parts.append(f"{played.title}:\n\n{ablation_table(late)}")
    return "\n\n".join(parts)


def memory(file: Path = RESULTS / MEMORY_FILE.name, about: Leaderboard | None = None) -> str:
    """The table of memories for many clients, which must be at the values that the leaderboard chose."""
    found = json.loads(file.read_text(encoding="utf-8"))
    chosen, _ = of_the_whole(contest(SETTING), (about or published()).records(SETTING))
    if found["values"] != chosen | MANY:
        raise SystemExit(
            f"{file.name} has other values of Keel than the leaderboard: remove it and run it again (python -m "
            "benchmarks.own_method.memory)."
        )
    return ablation_table(found["late"])
