"""The table of a contest, from its records: who did how well, how sure that is, and who is not in it, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.tuning.contest import Contest, is_yardstick, why_not
from fedkeel.tuning.records import Collected, Tried, best
from fedkeel.tuning.spaces import Value
from fedkeel.tuning.statistics import Interval, critical_difference, holm, paired, ranks

SURE = 0.05
"""The p below which one method counts as better than another."""
FEWEST_BLOCKS = 5
"""Seeds (of all settings together) below which mean ranks say too little to be drawn."""


@dataclass(frozen=True)
class Row:
    """One algorithm, tuned, over the fresh seeds."""

    algorithm: str
    title: str
    is_yardstick: bool
    last: Interval
    """Test accuracy of the last round."""
    late: Interval
    """Mean over the last 10 % of the rounds, by which rows are ordered."""
    diverged: int
    """Seeds that ended without a usable model; each counts as accuracy 0."""
    survivors: float
    """Mean over the last 10 % of the rounds, of the other seeds alone; NaN if there are none."""
    seeds: int
    reached: int
    """Seeds that reached the target."""
    rounds_to: float
    """Mean over seeds; NaN unless all reached it."""
    bytes_to: float
    """Sent in both directions until then."""
    rank: float
    """Mean over seeds, 1 is best; NaN for a yardstick."""
    p: float
    """That it is as good as the first row: paired t-test over seeds, Holm-corrected; NaN for the first."""
    p_wilcoxon: float
    steps: float
    """Local steps of all clients in a round, on average."""
    gradients: float
    """What a local step costs, in gradients of a minibatch."""
    validation: float
    """Of the trial that was chosen."""
    chosen: dict[str, Value]
    trial: int
    diverged_trials: int


@dataclass(frozen=True)
class Board:
    """One contest as far as it has come."""

    contest: Contest
    rows: tuple[Row, ...]
    """Best first."""
    unfinished: dict[str, str]
    """How far those are that have begun."""
    not_run: dict[str, str]
    """Why an algorithm cannot take part."""
    absent: tuple[str, ...]
    """Registered algorithms without a record."""
    commits: tuple[str, ...]
    seconds: float
    """Spent in the rounds of all runs."""

    @property
    def ranked(self) -> list[Row]:
        """Those that are compared."""
        return [row for row in self.rows if not row.is_yardstick]


def board(contest: Contest, found: Collected) -> Board:
    """From the records of a contest; who has not finished has no row."""
    rows, unfinished, not_run = {}, {}, {}
    for algorithm in found.algorithms():
        trials, finals = found.trials(algorithm), _finals(contest, found, algorithm)
        if algorithm not in ALGORITHMS:
            unfinished[algorithm] = "it is not registered any more"
        elif len(trials) < contest.trials or len(finals) < contest.seeds:
            unfinished[algorithm] = (
                f"{len(trials)} of {contest.trials} trials and {len(finals)} of {contest.seeds} runs are done"
            )
        else:
            rows[algorithm] = (trials, finals)
    for algorithm in ALGORITHMS:
        if algorithm not in found.algorithms() and (why := why_not(contest, algorithm)):
            not_run[algorithm] = why
    ranked = [name for name in rows if not is_yardstick(ALGORITHMS[name])]
    late = {name: [one.reported.late for one in finals] for name, (_, finals) in rows.items()}
    places = ranks([{name: late[name][at] for name in ranked} for at in range(contest.seeds)]) if ranked else {}
    order = sorted(rows, key=lambda name: (-fmean(late[name]), name))
    leader = next((name for name in order if name in ranked), None)
    tests = {name: paired(late[name], late[leader]) for name in ranked if leader is not None and name != leader}
    by_t, by_w = (holm({name: getattr(test, kind) for name, test in tests.items()}) for kind in ("t", "wilcoxon"))
    return Board(
        contest,
        tuple(
            _row(
                contest,
                name,
                *rows[name],
                places.get(name, math.nan),
                by_t.get(name, math.nan),
                by_w.get(name, math.nan),
            )
            for name in order
        ),
        unfinished,
        not_run,
        tuple(name for name in ALGORITHMS if name not in found.algorithms() and name not in not_run),
        tuple(sorted({one.commit for one in found.found.values() if one.commit})),
        math.fsum(one.seconds for one in found.found.values()),
    )


def _finals(contest: Contest, found: Collected, algorithm: str) -> list[Tried]:
    return [one for one in found.finals(algorithm) if one.number in contest.final_seeds]


def _row(
    contest: Contest, name: str, trials: list[Tried], finals: list[Tried], rank: float, p: float, p_wilcoxon: float
) -> Row:
    cls, winner = ALGORITHMS[name], best(trials)
    arrivals = [arrival for one in finals if (arrival := reach(one, contest.target)) is not None]
    all_arrived = len(arrivals) == len(finals)
    done = sum(one.rounds for one in finals)
    return Row(
        name,
        cls.title,
        is_yardstick(cls),
        Interval.of([one.reported.last for one in finals]),
        Interval.of([one.reported.late for one in finals]),
        sum(one.has_diverged for one in finals),
        fmean(sound) if (sound := [one.reported.late for one in finals if not one.has_diverged]) else math.nan,
        len(finals),
        len(arrivals),
        fmean(round for round, _ in arrivals) if all_arrived else math.nan,
        fmean(sent for _, sent in arrivals) if all_arrived else math.nan,
        rank,
        p,
        p_wilcoxon,
        sum(one.steps for one in finals) / done if done else math.nan,
        cls.gradients_a_step,
        winner.value,
        winner.choice,
        winner.number,
        sum(one.has_diverged for one in trials),
    )


def reach(record: Tried, target: float) -> tuple[int, float] | None:
    """The first evaluated round whose accuracy is the target's, and the bytes sent until then; None if none is."""
    rounds, accuracy = record.series["accuracy"]
    sent = dict(zip(*record.series["bytes"], strict=True))
    for t, value in zip(rounds, accuracy, strict=True):
        if t > 0 and value is not None and value >= target:
            return t, float(sent[t] or 0)
    return None


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of the methods that several contests have in common."""

    contests: tuple[str, ...]
    blocks: int
    """Seeds of all contests together."""
    ranks: dict[str, float]
    """By algorithm, best first."""
    difference: float
    """Nemenyi's critical difference."""


def ranking(boards: Sequence[Board], records: Sequence[Collected]) -> Ranking | None:
    """Over every seed of every contest; None where there is too little to say."""
    full = [(one, found) for one, found in zip(boards, records, strict=True) if one.ranked]
    if not full:
        return None
    common = [row for row in full[0][0].ranked if all(row.algorithm in _names(other.ranked) for other, _ in full)]
    blocks = [
        {row.algorithm: found.found[row.algorithm, "final", seed].reported.late for row in common}
        for one, found in full
        for seed in one.contest.final_seeds
    ]
    if len(common) < 2 or len(blocks) < FEWEST_BLOCKS:
        return None
    means = ranks(blocks)
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))
    difference = critical_difference(len(common), len(blocks))
    return Ranking(tuple(one.contest.name for one, _ in full), len(blocks), ordered, difference)


def _names(rows: Iterable[Row]) -> set[str]:
    return {row.algorithm for row in rows}


def percent(interval: Interval) -> str:
    """``84.12 ± 0.31``."""
    if math.isnan(interval.mean):
        return "–"
    half = "" if math.isnan(interval.half) else f" ± {100 * interval.half:.2f}"
    return f"{100 * interval.mean:.2f}{half}"


def said_of_p(p: float) -> str:
    """``0.034``, ``< 0.001`` or a dash."""
    return "–" if math.isnan(p) else ("< 0.001" if p < 0.001 else f"{p:.3f}")


HEAD = ("#", "algorithm", "last 10 %", "last round", "rounds to", "MB to", "rank", "p", "steps", "chosen")


def cells(board: Board) -> list[list[str]]:
    """The table as text, a row for each algorithm under ``HEAD``."""
    made, place = [], 0
    for row in board.rows:
        place += not row.is_yardstick
        others = "" if math.isnan(row.survivors) else f", else {100 * row.survivors:.2f}"
        late = percent(row.late) if not row.diverged else f"{row.diverged} of {row.seeds} diverged{others}"
        last = percent(row.last) if not row.diverged else "–"
        lacking = f"{row.reached} of {row.seeds} reached" if row.reached else "–"
        made.append(
            [
                "" if row.is_yardstick else str(place),
                f"{row.title}{' (yardstick)' if row.is_yardstick else ''}",
                late,
                last,
                f"{row.rounds_to:.0f}" if not math.isnan(row.rounds_to) else lacking,
                f"{row.bytes_to / 1e6:,.0f}" if not math.isnan(row.bytes_to) else "–",
                "–" if math.isnan(row.rank) else f"{row.rank:.1f}",
                said_of_p(row.p),
                f"{row.steps:.0f}{'' if row.gradients == 1 else f' × {row.gradients:.2g}'}",
                said(row.chosen),
            ]
        )
    return made


def support(board: Board) -> str:
    """Who is first, ahead of whom, and of whom that cannot be said; empty without two that are compared."""
    if len(board.ranked) < 2 or board.contest.seeds < 2:
        return ""
    first, *others = board.ranked
    return f"{first.title} comes first over {first.seeds} seeds: {ahead(others)}."


class Compared(Protocol):
    """A method beside the first."""

    @property
    def title(self) -> str: ...

    @property
    def p(self) -> float:
        """That it is as good as the first; NaN where that was not tested."""

    @property
    def diverged(self) -> int:
        """Seeds."""


def ahead(others: Sequence[Compared]) -> str:
    """Of whom the first is ahead, and of whom that cannot be said."""
    level = [row.title for row in others if not (row.p < SURE or row.diverged)]
    broken = [row.title for row in others if row.diverged and not row.p < SURE]
    behind = len(others) - len(level) - len(broken)
    parts = [
        *([f"significantly ahead of {behind} of {len(others)} others (p < {SURE:g})"] if behind else []),
        *([f"statistically level with {listed(level)}"] if level else []),
        *([f"not compared with {listed(broken)}, some of whose seeds diverged"] if broken else []),
    ]
    return "; ".join(parts)


def listed(names: Sequence[str]) -> str:
    """``A``, ``A and B`` or ``A, B and C``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def said(chosen: dict[str, Value]) -> str:
    """The values of a trial in a few words; what was left out is not named."""
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in chosen.items() if value is not False)


def as_table(board: Board) -> dict[str, Any]:
    """Plain values, as JSON takes them."""
    from dataclasses import asdict

    return {
        "contest": board.contest.name,
        "title": board.contest.title,
        "trials": board.contest.trials,
        "trial_rounds": board.contest.trial_rounds,
        "rounds": board.contest.rounds,
        "seeds": list(board.contest.final_seeds),
        "target": board.contest.target,
        "rows": [_finite(asdict(row)) for row in board.rows],
        "unfinished": board.unfinished,
        "not_run": board.not_run,
        "without_records": list(board.absent),
        "hours": round(board.seconds / 3600, 2),
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
