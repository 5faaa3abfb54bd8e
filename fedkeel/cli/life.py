"""The life of a run on a terminal: its line of identity, and the line that moves while it goes on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.text import Text

from fedkeel.cli.screen import console, duration, fitted, say
from fedkeel.engine.names import TIME
from fedkeel.engine.rounds import Rounds
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.losses import Loss, cross_entropy, known_as
from fedkeel.runs.history import Measured
from fedkeel.runs.runner import Progress as RoundProgress

BLOCKS = "▁▂▃▄▅▆▇█"
LEAST_SPAN = 0.1
"""Of accuracy, from the lowest block to the highest: within it, ups and downs are drawn as small as they are."""
WARNINGS = 5
"""Bad updates that are told one by one; further ones only in the count at the end."""


def identity(simulation: Simulation) -> list[str]:
    """What runs, in a few words each."""
    federation, training = simulation.federation, simulation.training
    rule = dict(federation.rule)
    name = str(rule.get("name", "own clients"))
    alpha = f" {rule['alpha']:g}" if isinstance(rule.get("alpha"), int | float) else ""
    share = f", {training.participation:.0%} a round" if training.participation < 1 else ", all in every round"
    return [
        simulation.algorithm.title,
        federation.dataset.name,
        f"{federation.N} clients, {name}{alpha}{share}",
        f"{simulation.task.d:,} parameters{_minimised(simulation.task.loss)}",
        *reports(simulation),
        simulation.executor.describe(),
    ]


def reports(rounds: Rounds) -> list[str]:
    """Which model a run reports, where it is not the last one."""
    averaging = rounds.server.averaging
    return [] if averaging is None else [f"reports {averaging.kind.upper()}: {averaging}"]


def _minimised(loss: Loss) -> str:
    """The loss, where it is not the usual one."""
    return "" if loss.name.startswith(cross_entropy.name) else f", {known_as(loss) or loss.name}"


def sparkline(values: Sequence[float], width: int = 10) -> str:
    """The last accuracies as a row of blocks; a span of less than ``LEAST_SPAN`` does not fill the height."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = max(high - low, LEAST_SPAN)
    low = max(0.0, (low + high - span) / 2) if high - low < LEAST_SPAN else low
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[min(top, int((value - low) / span * top + 0.5))] for value in shown)


class Clock:
    """How long a whole sweep still takes, judged by its rounds so far."""

    def __init__(self, rounds: int) -> None:
        self._to_go = rounds
        self._done = 0
        self._began = time.monotonic()

    def tick(self) -> None:
        """One more round is done."""
        self._done += 1
        self._to_go = max(0, self._to_go - 1)

    def skip(self, rounds: int) -> None:
        """So many rounds will not be run."""
        self._to_go = max(0, self._to_go - rounds)

    def left(self) -> float:
        """Seconds."""
        return (time.monotonic() - self._began) / max(1, self._done) * self._to_go


class _Life(ProgressColumn):
    """One line that fits: first the bar gives way, then what matters least."""

    def render(self, task: Task) -> Text:
        width = console.width - 1
        head = f"{task.fields.get('name', '')}round {task.completed:.0f}/{task.total or 0:.0f}"
        bar = min(30, max(6, width - 71))
        line = fitted(task.fields.get("life", []), width - len(head) - bar - 3)
        made = Text(f"{head} ")
        for segment in ProgressBar(task.total, task.completed, width=bar).__rich_console__(console, console.options):
            made.append(segment.text, segment.style)  # type: ignore[union-attr]
        return made.append(f"  {line}")


class Life:
    """Follows a run: a live line on a terminal, a plain line now and then elsewhere, nothing when quiet."""

    def __init__(
        self, rounds: int, done: int = 0, quiet: bool = False, sweep: Clock | None = None, name: str = ""
    ) -> None:
        self._name = f"  {name:<9} " if name else ""
        self._curve: list[float] = []
        self._last: Measured | None = None
        self._seconds = 0.0
        self._samples = 0
        self._begun_at = done
        self._to_go = rounds - done
        self._quiet = quiet
        self._sweep = sweep
        self._faults: Counter[str] = Counter()
        self._executor = ""
        self._live = None
        self._task: Any = None
        if not quiet and console.is_terminal:
            self._live = Progress(_Life(), console=console, transient=False)
            self._task = self._live.add_task("", total=rounds, completed=done, name=self._name)

    def __enter__(self) -> Life:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._sweep is not None:
            self._sweep.skip(self._to_go)
        if self._faults and not self._quiet:
            counts = ", ".join(f"{count} × {kind}" for kind, count in sorted(self._faults.items()))
            say(f"faults: {counts}")

    def __call__(self, progress: RoundProgress) -> None:
        self._seconds += progress.summary.seconds
        self._samples += progress.summary.samples
        reported = next((m for m in progress.measured if m.split == "test"), None)
        if reported is not None:
            self._last = reported
            if not math.isnan(reported.accuracy):
                self._curve.append(reported.accuracy)
        self._to_go -= 1
        if self._sweep is not None:
            self._sweep.tick()
        self._say_executor(progress.executor)
        self._warn(progress)
        parts = self._parts(progress)
        if self._live is not None:
            self._live.update(self._task, completed=progress.round, life=parts)
        elif not self._quiet and self._is_milestone(progress):
            head = f"{self._name}round {progress.round}/{progress.rounds}"
            print(f"{head}  {fitted(parts, console.width - len(head) - 2)}", flush=True)

    def _say_executor(self, described: str) -> None:
        """What ``auto`` chose, which is known only when the run has begun."""
        if described.startswith("auto: ") and described != self._executor and not self._quiet:
            say(f"executor {described}", style="dim")
        self._executor = described

    def _warn(self, progress: RoundProgress) -> None:
        """Say at once what a person should look into; faults that were asked for are only counted."""
        for fault in progress.faults:
            bad = fault.kind in ("skipped", "clipped")
            if bad and not self._quiet and self._faults["skipped"] + self._faults["clipped"] < WARNINGS:
                said = f"round {progress.round}: client {fault.client} {fault.kind}: {fault.detail}"
                say(f"warning: {said}", style="yellow", soft_wrap=True)
            self._faults[fault.kind] += 1

    def _is_milestone(self, progress: RoundProgress) -> bool:
        every = max(1, progress.rounds // 10)
        return progress.round % every == 0 or progress.round == progress.rounds

    def _parts(self, progress: RoundProgress) -> list[tuple[int, str]]:
        """The line of life in parts, each with how soon it may be left out."""
        done = progress.round - self._begun_at
        left = self._seconds / max(done, 1) * (progress.rounds - progress.round)
        parts = []
        if self._last is not None:
            judged = not math.isnan(self._last.accuracy)  # under some losses no answer is right or wrong
            if judged:
                parts += [(1, f"accuracy {self._last.accuracy:.1%}"), (4, sparkline(self._curve))]
            parts.append((5 if judged else 1, f"loss {self._last.loss:.3f}"))
            parts += [(8, f"{name} {value:.3g}") for name, value in self._last.metrics.items()]
        at = progress.noted.get(TIME)
        if at is not None and not isinstance(at, dict):
            parts.append((3, f"virtual {duration(at)}"))
        parts.append((6, f"drift {progress.summary.drift:.2g}"))
        parts.append((7, f"{self._samples / max(self._seconds, 1e-9) / 1000:.1f}k samples/s"))
        parts.append((2, f"{duration(left)} left" if left >= 1 else f"{self._seconds:.1f} s"))
        if self._sweep is not None:
            parts.append((3, f"sweep {duration(self._sweep.left())} left"))
        return parts
