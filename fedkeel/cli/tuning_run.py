"""What ``fedkeel tune`` and ``fedkeel leaderboard`` do: run behind a table that fills, show, publish."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer
from rich.live import Live
from rich.text import Text

from fedkeel import config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli import output
from fedkeel.cli.main import complain, print_json
from fedkeel.cli.paper_run import Row, grid
from fedkeel.cli.screen import a_few, console, duration, fitted, say, show_table, wrapped
from fedkeel.errors import InputError, unknown
from fedkeel.runs.interrupt import StopRequest
from fedkeel.theme import save_chart
from fedkeel.tuning import overall, results
from fedkeel.tuning.board import HEAD, Board, as_table, cells, said
from fedkeel.tuning.contest import Contest, contest, contest_of, settings, why_not
from fedkeel.tuning.overall import Overall
from fedkeel.tuning.records import best
from fedkeel.tuning.work import BEST, News, Outcome, work

WIDE = 120
"""Columns of a terminal that has room for the whole table."""
LEFT_OUT = ("last round", "MB to", "steps")
"""Columns of the table that a narrower one does without."""


@dataclass(frozen=True)
class Way:
    """Where and how something is run."""

    out: Path
    workers: int | None
    data_dir: Path | None
    quiet: bool
    finished: Path | None = None
    """A folder of published records that count as done."""


def tune_file(
    file: Path,
    algorithms: str | None,
    trials: int,
    rounds: int | None,
    validation: float,
    changed: list[str],
    way: Way,
    as_json: bool,
) -> None:
    """Tune the algorithms of an experiment file, or others in its setting."""
    runs = config.read(file, changed)
    chosen = named(algorithms) or [run.algorithm.name for run in runs]
    about = contest_of(runs, file.stem, trials, rounds, validation)
    outcome = conduct(about, chosen, way if not as_json else Way(way.out, way.workers, way.data_dir, True))
    found = {name: best(outcome.records.trials(name)) for name in chosen if outcome.records.trials(name)}
    order = sorted(found, key=lambda name: -found[name].value)
    if as_json:
        print_json(
            [
                {"algorithm": name, "accuracy": found[name].value, "trial": found[name].number}
                | {"trials": len(outcome.records.trials(name)), "chosen": found[name].choice}
                for name in order
            ]
        )
    else:
        head: list[str | tuple[str, str]] = [
            "algorithm",
            ("held-out accuracy", "right"),
            ("trial", "right"),
            ("defaults", "right"),
            "chosen",
        ]
        show_table(head, [_tuned(name, outcome) for name in order])
        say(f"\nAccuracies are those of {about.validation:.0%} held-out training samples; the test set was not seen.")
        say(f"Experiments with these values: {way.out / BEST / about.name}")
    finish(outcome, way.quiet or as_json)


def _tuned(name: str, outcome: Outcome) -> list[str]:
    trials = outcome.records.trials(name)
    winner = best(trials)
    return [name, f"{winner.value:.2%}", str(winner.number), f"{trials[0].value:.2%}", said(winner.choice)]


def run_chosen(
    name: str, algorithms: str | None, budget: tuple[int | None, int | None, int | None], way: Way, published: Path
) -> None:
    """Run a setting of the leaderboard."""
    about = contest(name).with_budget(*budget)
    chosen = named(algorithms) or results.Leaderboard(way.out, published).entrants(name)
    outcome = conduct(about, chosen, way)
    _show(results.board_of(about, outcome.records), [])
    finish(outcome, way.quiet)


def named(algorithms: str | None) -> list[str]:
    """Algorithms of an option."""
    found = [name.strip() for name in (algorithms or "").split(",") if name.strip()]
    for name in found:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, list(ALGORITHMS))
    return found


def conduct(about: Contest, algorithms: Sequence[str], way: Way) -> Outcome:
    """Run a contest before the eyes of whoever looks."""
    show = Watching(about, [name for name in algorithms if not why_not(about, name)], way.quiet)
    with StopRequest() as stop, show:
        try:
            outcome = work(about, algorithms, way.out, way.workers, way.data_dir, show.hear, stop, way.finished)
        except OSError as error:
            if not output.is_lost(error):
                raise
            raise typer.Exit(output.give_up(error, "; what is done is kept, the same command goes on")) from None
    if outcome.stopped and stop.signal is not None:
        complain(f"stopped; every whole round is kept, go on with: {shlex.join(['fedkeel', *sys.argv[1:]])}")
        raise typer.Exit(128 + stop.signal)
    return outcome


def finish(outcome: Outcome, quiet: bool) -> None:
    """Say why some have no result."""
    if not quiet:
        for name, why in outcome.not_run.items():
            say(f"{name} was not run: {why}", soft_wrap=True)
    reasons: dict[str, list[str]] = {}
    for name, why in outcome.failures.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        complain(f"{a_few(names)} did not come to an end: {why}")
    if outcome.failures:
        raise typer.Exit(1)


@dataclass
class Watching:
    """A table that fills on a terminal, a line for each run elsewhere."""

    contest: Contest
    algorithms: list[str]
    quiet: bool = False
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    shown: dict[str, str] = field(default_factory=dict)
    busy: dict[str, str] = field(default_factory=dict)
    computed: int = 0
    """Of the runs that are done, those that were not there before."""
    _live: Live | None = None

    @property
    def total(self) -> int:
        """Runs of all algorithms."""
        return len(self.algorithms) * (self.contest.trials + self.contest.seeds)

    def __enter__(self) -> Watching:
        if not self.quiet and console.is_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def hear(self, news: News) -> None:
        """Take in what happened."""
        run, record = news.run, news.record
        if news.kind in ("began", "round"):
            length = run.experiment.training.rounds
            self.busy[run.name] = f"▸{run.name.partition('--')[2]} {news.round / length:.0%}"
        else:
            self.busy.pop(run.name, None)
        self.done += news.kind in ("kept", "done")
        self.computed += news.kind == "done"
        if record is not None:
            judged = "held-out" if run.stage == "trial" else "test"
            result = f"diverged after round {record.rounds}" if record.has_diverged else f"{judged} {record.value:.2%}"
            self.shown[run.algorithm] = f"{run.name.partition('--')[2]} {result}"
        if self.quiet or self._live is not None or news.kind in ("began", "round"):
            return
        told = self.shown[run.algorithm].partition(" ")[2] if record is not None else news.why or news.kind
        again = " (was there)" if news.kind == "kept" else ""
        say(f"[{self.done}/{self.total}] {run.contest} {run.name}: {told}{again}{self._left()}", soft_wrap=True)

    def _left(self) -> str:
        if not self.computed:
            return ""
        left = (time.monotonic() - self.began) / self.computed * max(0, self.total - self.done)
        return f" · about {duration(left)} left" if left >= 1 else ""

    def _render(self) -> Text:
        rows = []
        for name in self.algorithms:
            at = next((text for run, text in self.busy.items() if run.partition("--")[0] == name), "")
            if at or name in self.shown:
                rows.append(Row(name, [("last", self.shown.get(name, "")), ("now", at)]))
        busy = [row for row in rows if row.entries[1][1]]
        room = max(2, console.height - 4)
        rows = [*busy, *[row for row in rows if row not in busy]][:room]
        head = [(0, f"{self.done} of {self.total} runs"), (1, f"{duration(time.monotonic() - self.began)} so far")]
        life = fitted([*head, (2, self._left().removeprefix(" · "))], console.width)
        return Text("\n".join([*grid(rows, console.width), life]), no_wrap=True, overflow="ellipsis")


def show_boards(names: list[str], folders: list[Path], plot: Path | None, as_json: bool) -> None:
    """The tables of some settings, or of all, and what is not there."""
    leaderboard = results.Leaderboard(*folders)
    boards = leaderboard.boards(names)
    if as_json:
        print_json([as_table(board) for board in boards])
    else:
        for board in boards:
            _show(board, leaderboard.missing(board))
        if not names and (over_all := leaderboard.overall()) is not None:
            _show_overall(over_all)
    if plot is not None:
        found = leaderboard.ranking(names)
        if found is None:
            raise InputError(
                "there is too little to rank: it takes two algorithms that are finished, and five runs of each."
            )
        from fedkeel.tuning.pictures import difference_chart

        say(f"written: {save_chart(difference_chart(found), plot)}")


def _show(board: Board, missing: list[str]) -> None:
    about = board.contest
    say(f"\n{about.name}: {about.title}", style="bold")
    if not board.rows and not board.unfinished:
        say(f"nothing is run yet; `fedkeel leaderboard run {about.name}` does.")
        return
    say(
        wrapped(
            f"{about.trials} trials of {about.trial_rounds} rounds each on held-out samples, then {about.seeds} fresh "
            f"seeds of {about.rounds} rounds; test accuracy in %, rounds and MB to {about.target:.0%}, p against the "
            "first (paired t-test, Holm).",
            "",
        )
    )
    shown = [at for at, column in enumerate(HEAD) if console.width >= WIDE or column not in LEFT_OUT]
    head: list[str | tuple[str, str]] = [
        HEAD[at] if HEAD[at] in ("algorithm", "chosen") else (HEAD[at], "right") for at in shown
    ]
    is_narrow = len(shown) < len(HEAD)
    show_table(head, [[_shortened(row[at]) if is_narrow else row[at] for at in shown] for row in cells(board)])
    if is_narrow:
        say(f"A terminal of {WIDE} columns shows {', '.join(LEFT_OUT)} as well; so does --json.", style="dim")
    for name, why in board.unfinished.items():
        say(f"not finished: {name}: {why}")
    for name, why in board.not_run.items():
        say(wrapped(f"cannot take part: {name}: {why}", ""))
    if missing:
        say(wrapped(f"not run yet, so first is first of those that have run: {', '.join(missing)}", ""))


def _show_overall(found: Overall) -> None:
    say("\nover all settings that everybody has finished, except the one by which they were chosen", style="bold")
    say(wrapped(overall.support(found), ""))
    columns = overall.head(found)
    show_table([one if one == "algorithm" else (one, "right") for one in columns], overall.cells(found))


def _shortened(cell: str) -> str:
    """A cell without what its column says as well: a yardstick has no number, and under "rounds to" are targets."""
    return cell.removesuffix(" (yardstick)").removesuffix(" reached")


def publish_chosen(names: list[str], source: Path, target: Path, replace: bool) -> None:
    """Copy the records of those that are finished."""
    for name in names:
        if name not in settings():
            raise unknown("setting of the leaderboard", name, list(settings()))
    for line in results.publish(names or list(settings()), source, target, replace):
        say(line, soft_wrap=True)
