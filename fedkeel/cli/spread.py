"""``fedkeel run --spread``: the runs of a sweep beside each other on a Ray cluster, behind a table that fills."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer
from rich.live import Live
from rich.text import Text

from fedkeel import config
from fedkeel.cli.experiments import Options, planned_runs, resume_command, show_results, stored_result
from fedkeel.cli.main import complain
from fedkeel.cli.screen import console, duration, fitted, say
from fedkeel.errors import InputError, invalid
from fedkeel.papers.fleet import sail
from fedkeel.papers.worker import SweepJob
from fedkeel.runs.interrupt import StopRequest
from fedkeel.runs.store import rounds_done


@dataclass
class Progress:
    """How far a run is."""

    label: str
    rounds: int
    round: int = 0
    pace: float = 0.0
    """Seconds of a round, as lately seen; 0: not seen yet."""
    runs: bool = False
    ended: str = ""
    """``finished``, ``until``, ``diverged``, ``failed`` or ``stopped``."""
    why: str = ""

    def line(self, width: int) -> str:
        """A line of the table."""
        state = self.ended or (f"round {self.round}/{self.rounds}" if self.runs else "waits")
        left = f"about {duration((self.rounds - self.round) * self.pace)} left" if self.runs and self.pace else ""
        return fitted([(0, state), (1, self.label), (2, left)], width)


@dataclass
class Desk:
    """The runs of a sweep by their number: who waits, how far they are, what became of them."""

    runs: list[config.Planned]
    options: Options
    states: list[Progress] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _waiting: list[int] = field(default_factory=list)
    _live: Live | None = None

    def __post_init__(self) -> None:
        self._waiting = list(range(len(self.runs)))
        for run in self.runs:
            done = rounds_done(self.directory(run)) if self.options.resume else 0
            self.states.append(Progress(run.experiment.label, run.experiment.training.rounds, done))

    def directory(self, run: config.Planned) -> Path:
        """Where a run lies."""
        return self.options.out / run.experiment.label

    def __enter__(self) -> Desk:
        if not self.options.quiet and console.is_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def next(self) -> tuple[int, SweepJob] | None:
        """A run that can begin."""
        if not self._waiting:
            return None
        number = self._waiting.pop(0)
        self.states[number].runs = True
        run, options = self.runs[number], self.options
        return number, SweepJob(
            str(self.directory(run)),
            config.dump(run.experiment),
            str(Path.cwd()),
            options.resume,
            options.fork,
            options.allow_plugins,
            None if options.data_dir is None else str(options.data_dir.resolve()),
        )

    def told(self, run: int, news: dict[str, Any]) -> bool:
        """Take in what is said of a run; whether that was the last word."""
        state = self.states[run]
        if "round" in news:
            seconds = float(news["seconds"])
            state.round, state.pace = news["round"], 0.8 * state.pace + 0.2 * seconds if state.pace else seconds
            return False
        if "ended" in news:
            state.round = news["rounds"]
            self._over(run, news["ended"])
        elif "stopped" in news:
            state.round = news["stopped"]
            self._over(run, "stopped")
        elif "diverged" in news:
            self._over(run, "diverged", news["diverged"])
        else:
            self._over(run, "failed", str(news["failed"]))
        return True

    def failed(self, run: int, why: str) -> None:
        """A run has no result."""
        self._over(run, "failed", why)

    def _over(self, run: int, ended: str, why: str = "") -> None:
        state = self.states[run]
        state.ended, state.why, state.runs = ended, why, False
        if not self.options.quiet and self._live is None:
            over = sum(bool(one.ended) for one in self.states)
            told = f"{ended} after {state.round} rounds" if ended != "failed" else why
            say(f"[{over}/{len(self.states)}] {state.label}: {told}", soft_wrap=True)

    def _render(self) -> Text:
        """Runs at work first, as many as there is room for, and a line of life."""
        over = [state for state in self.states if state.ended]
        busy = [state for state in self.states if state.runs]
        shown = [*busy, *reversed(over)][: max(1, console.height - 3)]
        head = [
            (0, f"{len(over)} of {len(self.states)} runs"),
            (1, f"{duration(time.monotonic() - self.began)} so far"),
        ]
        lines = [*(state.line(console.width) for state in shown), fitted(head, console.width)]
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def run_spread(path: Path, settings: list[str], options: Options, address: str | None) -> None:
    """Run every experiment that a file stands for, several at once, and end with a line for each.

    What fails in one run is told, and the others go on; the exit code is then 1.
    """
    if options.track:
        raise InputError("--track cannot go with --spread: trackers write from one process.")
    options = replace(options, out=options.out.resolve())
    runs = [_one_core(run) for run in planned_runs(path, settings, options)]
    desk = Desk(runs, options)
    with StopRequest() as stop:
        with desk:
            sail(desk, len(runs), options.out, address, None, stop)
        done = [number for number, state in enumerate(desk.states) if state.ended not in ("", "stopped", "failed")]
        if done:
            errors = [desk.states[number].why or None for number in done]
            found = zip(done, errors, strict=True)
            show_results([stored_result(runs[i], desk.directory(runs[i]), error) for i, error in found], options)
        for state in desk.states:
            if state.ended in ("failed", "diverged"):
                complain(f"{state.label}: {state.why}")
        if stop():
            complain(f"stopped after {len(done)} of {len(runs)} runs, all rounds kept; go on with: {resume_command()}")
            raise typer.Exit(128 + (stop.signal or 0))
    if len(done) < len(runs) or any(desk.states[number].ended == "diverged" for number in done):
        raise typer.Exit(1)


def _one_core(run: config.Planned) -> config.Planned:
    """The run as one process of the cluster computes it: its bits depend on no number of cores."""
    how = run.experiment.run
    if how.executor not in ("auto", "serial"):
        raise invalid("run.executor", "serial or absent with --spread", how.executor, "Each run has one processor.")
    serial = run.experiment.model_copy(update={"run": how.model_copy(update={"executor": "serial"})})
    return replace(run, experiment=serial)
