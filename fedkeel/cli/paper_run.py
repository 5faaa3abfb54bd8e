"""What ``fedkeel paper`` does: lists tables and figures, runs them behind a table that fills, publishes records."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from fedkeel.cli import output
from fedkeel.cli.main import complain, print_json
from fedkeel.cli.screen import a_few, console, duration, fitted, say, show_table, wrapped
from fedkeel.errors import unknown
from fedkeel.papers.api import plan_of
from fedkeel.papers.format import BestOf, Exhibit, Measure, Scale, exhibits, papers
from fedkeel.papers.measures import Number, number, shown, summary
from fedkeel.papers.plan import Cell, Plan, Planned, plan, said
from fedkeel.papers.records import Record, Records, name_of, publish
from fedkeel.papers.times import CALCULATED, MEASURED, Clock
from fedkeel.papers.work import News, Outcome, work
from fedkeel.runs.interrupt import StopRequest


def show_list(out: Path, results: Path, as_json: bool) -> None:
    """Every table and figure: what it takes to run it, and what is there already."""
    records = Records.of(out, results)
    rows = [_listed(one, records, Clock.of(records)) for one in exhibits().values()]
    if as_json:
        print_json(rows)
        return
    for paper in papers().values():
        say(f"\n{paper.title}", style="bold")
        say(f"{paper.authors}, {paper.venue}")
        show_table(
            ["id", "kind", ("cells", "right"), ("run", "right"), ("time", "right"), "shows"],
            [
                [row["id"], row["kind"], row["cells"] or "–", row["run"] or "–", _time(row), row["title"]]
                for row in rows
                if row["paper"] == paper.id
            ],
        )
    say(
        "\nrun: cells with records at full scale; time: all others on one core, one seed each, roughly (~: calculated)."
    )


def _time(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    return "–" if seconds is None else f"{'' if row['how'] == MEASURED else '~'}{duration(seconds)}"


def _listed(exhibit: Exhibit, records: Records, clock: Clock) -> dict[str, Any]:
    everything = plan([exhibit], "full", only=[part.id for part in exhibit.parts], seeds=1)
    settings = [papers()[exhibit.paper].settings[cell.line.setting] for cell in everything.cells]
    scales: list[Scale] = ["smoke", *(["reduced"] if any(one.reduced for one in settings) else []), "full"]  # type: ignore[list-item]
    there = [
        cell
        for cell in everything.cells
        if _is_there(cell, records.seeds(exhibit.paper, cell.line.setting, cell.line.method))
    ]
    smaller = [
        cell
        for cell in everything.cells
        if cell not in there and records.seeds(exhibit.paper, cell.line.setting, cell.line.method, "reduced")
    ]
    missing = {run.name: run for cell in everything.cells if cell not in there for run in cell.runs}
    estimates = [clock.estimate(run) for run in missing.values()]
    runs = bool(everything.runs)
    return {
        "paper": exhibit.paper,
        "id": exhibit.id,
        "where": exhibit.where,
        "kind": exhibit.kind,
        "title": exhibit.title,
        "scales": scales if runs else [],
        "cells": len(everything.cells),
        "run": len(there),
        "run_reduced": len(smaller),
        "needs": sorted({said(need) for one in settings for need in one.needs}),
        "seconds": round(sum(one.seconds for one in estimates)) if runs else None,
        "how": (MEASURED if all(one.how == MEASURED for one in estimates) else CALCULATED) if runs else None,
    }


def _is_there(cell: Cell, found: Sequence[Record]) -> bool:
    """Whether one of its records has all rounds that the cell needs."""
    return any(run.is_whole(record) for run in cell.runs for record in found)


@dataclass(frozen=True)
class Choice:
    """What the command line says to be run."""

    names: Sequence[str]
    only: Sequence[str]
    algorithms: str | None
    scale: str
    seeds: int | None
    quiet: bool
    published: bool = False
    """Whether published records count as finished."""
    rounds: int | None = None
    """No more than so many."""

    def plan(self) -> Plan:
        """The cells and runs."""
        methods = [name.strip() for name in (self.algorithms or "").split(",") if name.strip()]
        return plan_of(self.names, self.scale, self.only, methods, self.seeds, self.rounds)


def run_chosen(
    choice: Choice,
    out: Path,
    results: Path,
    workers: int | None,
    data_dir: Path | None,
    address: str | None = None,
) -> None:
    """Run tables and figures, or go on with them; in processes of this machine, or of a Ray cluster."""
    whole = choice.plan()
    show = Board(whole, Clock.of(Records.of(out, results)), choice.quiet)
    with StopRequest() as stop, show:
        try:
            finished = results if choice.published else None
            outcome = work(whole.runs, out, workers, data_dir, show.hear, stop, address, finished)
        except OSError as error:
            if not output.is_lost(error):
                raise
            raise typer.Exit(output.give_up(error, "; what is done is kept, the same command goes on")) from None
    show.result(outcome)
    if outcome.stopped and stop.signal is not None:
        complain(f"stopped; every whole round is kept, go on with: {shlex.join(['fedkeel', *sys.argv[1:]])}")
        raise typer.Exit(128 + stop.signal)
    if outcome.failures:
        raise typer.Exit(1)


def publish_chosen(source: Path, target: Path, chosen_papers: Sequence[str], replace: bool, as_json: bool) -> None:
    """Copy records to where they are published, and say what became of each."""
    for name in chosen_papers:
        if name not in papers():
            raise unknown("paper", name, list(papers()))
    done = publish(source, target, replace, chosen_papers)
    if as_json:
        print_json([{"paper": o.record.paper, "record": o.record.name, "done": o.done, "why": o.why} for o in done])
        return
    for one in done:
        if one.done != "same":
            say(f"{one.record.paper}/{one.record.name}: {one.done}{': ' + one.why if one.why else ''}", soft_wrap=True)
    same = sum(one.done == "same" for one in done)
    say(f"{len(done)} records of {source}; {same} were published already.")


@dataclass
class _State:
    """How far a run is."""

    rounds: int
    round: int = 0
    pace: float = 0.0
    """Seconds of a round, as lately seen; 0: not seen yet."""
    is_over: bool = False
    runs: bool = False


@dataclass
class Board:
    """Follows the work: a table that fills cell by cell on a terminal, a line for each run elsewhere."""

    plan: Plan
    clock: Clock
    quiet: bool = False
    states: dict[str, _State] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _live: Live | None = None
    _done: int = 0
    _of: int = 0

    def __post_init__(self) -> None:
        self.states = {_id(run): _State(run.rounds) for run in self.plan.runs}
        self._of = len(self.states)

    def __enter__(self) -> Board:
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
        state = self.states[_id(news.run)]
        state.round = max(state.round, news.round)
        state.runs = news.kind in ("began", "round")
        if news.kind == "round":
            state.pace = news.seconds if state.pace == 0 else 0.8 * state.pace + 0.2 * news.seconds
        if news.kind in ("kept", "done", "failed"):
            state.is_over, self._done = True, self._done + 1
        if news.record is not None:
            self.clock.learn(news.record)
            self.records[_id(news.run)] = news.record
        if self.quiet or self._live is not None or news.kind in ("round", "began"):
            return
        said_of = {"kept": "was there", "failed": news.why, "stopped": f"stopped after round {news.round}"}
        told = said_of.get(news.kind, _how_it_ended(news))
        say(f"[{self._done}/{self._of}] {news.run.paper} {news.run.name}: {told}{self._left()}", soft_wrap=True)

    def _left(self) -> str:
        seconds = self.left()
        return f" · about {duration(seconds)} left" if seconds >= 1 else ""

    def left(self) -> float:
        """Seconds until all is done, if as many runs go on beside each other as now."""
        going = sum(state.runs for state in self.states.values())
        return sum(map(self._left_of, self.plan.runs)) / max(1, going)

    def _left_of(self, run: Planned) -> float:
        state = self.states[_id(run)]
        if state.is_over:
            return 0.0
        if state.pace:
            return (state.rounds - state.round) * state.pace
        return self.clock.estimate(run, state.round).seconds

    def _render(self) -> Text:
        """The table as far as there is room for it, lines at work first, and a line of life."""
        rows = self._rows()
        busy = [row for row in rows if any("▸" in text for _, text in row.entries)]
        by_interest = [*busy, *(row for row in rows if row not in busy)]
        lines = grid(rows, console.width)
        while len(lines) > max(2, console.height - 3) and len(by_interest) > 1:
            by_interest.pop()
            lines = grid([row for row in rows if row in by_interest], console.width)
        head = [(0, f"{self._done} of {self._of} runs"), (1, f"{duration(time.monotonic() - self.began)} so far")]
        life = fitted([*head, (2, self._left().removeprefix(" · "))], console.width)
        return Text("\n".join([*lines, life]), no_wrap=True, overflow="ellipsis")

    def _rows(self) -> list[Row]:
        """A row for each column or panel of an exhibit, an entry for each method."""
        several = len({cell.exhibit for cell in self.plan.cells}) > 1
        rows: dict[tuple[str, str], Row] = {}
        for cell in self.plan.cells:
            name = f"{cell.exhibit.partition('.')[2]} {cell.part}" if several else cell.part
            row = rows.setdefault((cell.exhibit, cell.part), Row(name))
            row.entries.append((_short(cell), self._shown(cell)))
        return list(rows.values())

    def _shown(self, cell: Cell) -> str:
        states = [self.states[_id(run)] for run in cell.runs]
        if not states or all(state.is_over for state in states):
            return _number(cell, self.records)
        if any(state.runs for state in states):
            share = sum(state.round for state in states) / max(1, sum(state.rounds for state in states))
            return f"▸{share:.0%}"
        return f"{sum(state.is_over for state in states)}/{len(states)}" if any(s.is_over for s in states) else "·"

    def result(self, outcome: Outcome) -> None:
        """What came of every cell, and why some have nothing."""
        for exhibit in dict.fromkeys(cell.exhibit for cell in self.plan.cells):
            rows: dict[str, Row] = {}
            for cell in self.plan.cells:
                if cell.exhibit == exhibit:
                    row = rows.setdefault(cell.part, Row(cell.part))
                    row.entries.append((_short(cell), _number(cell, outcome.records)))
            say(f"\n{exhibit}", style="bold")
            say("\n".join(grid(list(rows.values()), console.width)))
        reasons: dict[str, list[str]] = {}
        for cell in self.plan.cells:
            why = cell.why_not or next((outcome.failures[_id(r)] for r in cell.runs if _id(r) in outcome.failures), "")
            if why:
                reasons.setdefault(why, []).append(f"{cell.part} {cell.line.method}")
        for why, cells in reasons.items():
            say(f"{a_few(cells)}:")
            say(wrapped(why))
        if cut := [run for run in self.plan.runs if run.cut_from is not None]:
            far = max(run.rounds for run in cut)
            say(f"{_counted(len(cut), 'run')} only up to round {far}; the same command without --rounds goes on.")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


@dataclass
class Row:
    """A line of a table: its name, and what stands under which heading."""

    name: str
    entries: list[tuple[str, str]] = field(default_factory=list)


def _id(run: Planned) -> str:
    return f"{run.paper}/{run.name}"


def _short(cell: Cell) -> str:
    """The name of a line, with its setting where a panel has several."""
    return cell.line.label.partition(" (")[0] if cell.line.label else cell.line.method


def _how_it_ended(news: News) -> str:
    record = news.record
    if record is None:
        return news.kind
    if record.ended == "diverged":
        return f"diverged after round {record.rounds}"
    accuracy = record.series.get("accuracy", ((), ()))[1]
    last = f", accuracy {accuracy[-1]:.2%}" if accuracy and accuracy[-1] is not None else ""
    return f"{_counted(record.rounds, 'round')}{last}, {duration(record.seconds)}"


def _number(cell: Cell, records: Mapping[str, Record]) -> str:
    """What a cell shows, in the units of print, over its seeds; of a curve, its last accuracy."""
    if not any(_id(run) in records for run in cell.runs):
        return "–"
    measures = cell.measures or (Measure(kind="final", metric="accuracy"),)
    return " / ".join(_over_seeds(measure, cell.runs, records) for measure in measures)


def _over_seeds(measure: Measure, runs: Sequence[Planned], records: Mapping[str, Record]) -> str:
    found = {
        run.seed: number(record, measure, run.budget, _reference(measure, run, records))
        for run in runs
        if (record := records.get(_id(run))) is not None
    }
    numbers = {seed: one for seed, one in found.items() if isinstance(one, Number)}
    if len(numbers) < len(found):
        return "–"
    result = summary(numbers, measure.lower_is_better)
    return "diverged" if math.isinf(result.value) else f"{'>' if result.beyond else ''}{shown(result.value)}"


def _reference(measure: Measure, run: Planned, records: Mapping[str, Record]) -> Record | None:
    if not isinstance(measure.target, BestOf):
        return None
    return records.get(f"{run.paper}/{name_of(run.setting, measure.target.best_of, run.seed, run.scale)}")


def grid(rows: Sequence[Row], width: int) -> list[str]:
    """Rows as a table with a heading where all have the same entries, else each entry with its own name before it.

    What does not fit beside each other goes on below.
    """
    if not rows:
        return []
    first = min(max(cell_len(row.name) for row in rows), width // 3)
    names = [label for label, _ in rows[0].entries]
    if any([label for label, _ in row.entries] != names for row in rows):
        return [line for row in rows for line in _inline(row, first, width)]
    widths = [
        max(cell_len(text) for text in (name, *(row.entries[i][1] for row in rows))) for i, name in enumerate(names)
    ]
    lines, start = [], 0
    while start < len(names):
        stop, used = start, first
        while stop < len(names) and (stop == start or used + 2 + widths[stop] <= width):
            used += 2 + widths[stop]
            stop += 1
        for head, texts in [("", names), *((row.name, [text for _, text in row.entries]) for row in rows)]:
            cells = (_right(texts[i], widths[i]) for i in range(start, stop))
            lines.append("  ".join([_left(head, first), *cells])[:width].rstrip())
        start = stop
    return lines


def _inline(row: Row, first: int, width: int) -> list[str]:
    entries = [f"{label} {text}" for label, text in row.entries]
    widest = max(map(cell_len, entries), default=0)
    per_line = max(1, (width - first) // (widest + 2))
    parts = [entries[i : i + per_line] for i in range(0, max(1, len(entries)), per_line)]
    return [
        "  ".join([_left(row.name if i == 0 else "", first), *(_left(text, widest) for text in part)])[:width].rstrip()
        for i, part in enumerate(parts)
    ]


def _left(text: str, width: int) -> str:
    text = text if cell_len(text) <= width else f"{text[: width - 1]}…"
    return text + " " * (width - cell_len(text))


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
