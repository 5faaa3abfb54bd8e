"""One measurement: fedkeel and the plain loop taking turns on the whole machine, in short blocks of rounds.

Whatever else the machine does while this runs hits all of them alike, so that ratios hold where seconds do not. While
one computes, the processes of the others sleep. What is reported of each is the median over its blocks.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from fedkeel.bench import flops, process
from fedkeel.bench.gemm import SIDES, MatrixPeak
from fedkeel.bench.plain import PlainLoop
from fedkeel.bench.simulator import DEFAULT_EXECUTOR, Simulator, make_federation
from fedkeel.bench.works import FULL, SIDE, Images, Size, Work, find, make_images, make_model
from fedkeel.data import Federation
from fedkeel.errors import invalid
from fedkeel.runs.directory import environment
from fedkeel.system import cores

BASE = "fedavg"
"""What compared algorithms are measured against."""
SLOW_ROUND = 4.0
"""From this many seconds a round on, there are fewer turns."""

Tell = Callable[[str, int, int], None]
"""Told before every block: who is at work, blocks done, blocks in all."""


class Contender(Protocol):
    """Something whose rounds can be timed."""

    name: str

    def run(self, rounds: int) -> list[float]:
        """Seconds of each round."""

    def close(self) -> None:
        """Let its processes go."""


@dataclass(frozen=True)
class Turns:
    """How contenders take turns."""

    blocks: int
    few_blocks: int
    """Where a round takes longer than ``SLOW_ROUND``."""
    block_seconds: float
    """How long a block lasts at least."""

    def number(self, seconds: float, rounds: int | None) -> int:
        """Of turns, where the longest round takes so many seconds and everybody is to have so many rounds."""
        blocks = self.few_blocks if seconds > SLOW_ROUND else self.blocks
        return blocks if rounds is None else min(blocks, rounds)

    def length(self, seconds: float, blocks: int, rounds: int | None) -> int:
        """Rounds of a block: enough for ``block_seconds``, or so that all blocks together have ``rounds`` at least."""
        wanted = self.block_seconds / seconds if rounds is None else rounds / blocks
        return max(1, int(-(-wanted // 1)))


REFERENCE = Turns(5, 3, 2.0)
"""Of fedkeel and the plain loop: everybody is measured for ten seconds and more."""
COMPARISON = Turns(9, 3, 1.2)
"""Of an algorithm and FedAvg, whose difference is small: more and shorter turns."""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    work: str = "W2"
    algorithm: str = "scaffold"
    executor: str = DEFAULT_EXECUTOR
    rounds: int | None = None
    """Rounds of each contender; None: as many as ten seconds hold."""
    workers: int | None = None
    """Processes, of fedkeel and of the plain loop; None: one per core."""
    durable: bool = False
    """Also with every round committed to disk."""
    compare: tuple[str, ...] = ()
    """Further algorithms whose training and aggregation are measured against FedAvg's."""
    size: Size = FULL
    matrix_sides: tuple[int, ...] = SIDES


@dataclass(frozen=True)
class Timing:
    """The blocks of one contender, in seconds per round."""

    blocks: tuple[float, ...]
    rounds: int

    @property
    def seconds(self) -> float:
        """Median over the blocks."""
        return statistics.median(self.blocks)

    def times(self, other: Timing) -> float:
        """How many times as long as another's rounds these take: the median over turns, in each of which both ran.

        A machine that slows down for a while slows both blocks of a turn, which the medians over all would not see.
        """
        return statistics.median(mine / theirs for mine, theirs in zip(self.blocks, other.blocks, strict=True))


def measure(settings: Settings, tell: Tell = lambda who, done, total: None) -> dict[str, Any]:
    """Everything that ``fedkeel bench --json`` prints."""
    work, size = find(settings.work), settings.size
    if settings.rounds is not None and settings.rounds < 1:
        raise invalid("bench.rounds", "a number of at least 1", settings.rounds)
    workers = settings.workers or cores()
    torch.set_num_threads(1)  # as a run does; the workers fill the cores
    images = make_images(size)
    federation = make_federation(size, images)
    with closing(Simulator(work, size, federation, settings.algorithm, settings.executor, workers)) as ours:
        tell(ours.name, 0, 1)
        with process.PeakMemory() as at_first:
            ours.run(1)
        startup = process.age()
        timings, gflops = _everybody(settings, ours, work, images, federation, workers, tell)
        compared = _compared(settings, ours.executor, work, federation, workers, tell)
        process.give_back()
        # Once more alone: by now many clients have left their state here, and no other process shares our pages.
        with process.PeakMemory() as at_last:
            ours.run(1)
        choice = ours.choice
    own, plain, last = (timings.get(name) for name in (ours.name, "plain loop", "plain loop, channels last"))
    assert own is not None
    assert plain is not None
    once = flops.count(make_model(work), (1, SIDE, SIDE))
    operations = once.train * size.samples_per_round + once.evaluate * size.test

    def rate(timing: Timing | None) -> float | None:
        return None if timing is None else size.samples_per_round / timing.seconds

    return {
        "work": work.name,
        "model": work.title,
        "algorithm": settings.algorithm,
        "executor": settings.executor,
        "executor_choice": choice,
        "workers": workers,
        "rounds": own.rounds,
        "blocks": len(own.blocks),
        "seconds_per_round": own.seconds,
        "samples_per_s": rate(own),
        "plain_loop_seconds_per_round": plain.seconds,
        "plain_loop_samples_per_s": rate(plain),
        "ratio_to_plain_loop": plain.times(own),
        "plain_loop_channels_last_samples_per_s": rate(last),
        "ratio_to_plain_loop_channels_last": None if last is None else last.times(own),
        "startup_seconds": startup,
        "peak_rss_mb": max(at_first.bytes, at_last.bytes) / 1e6,
        "gemm_gflops": gflops,
        "gflop_per_round": operations / 1e9,
        "arithmetic_share": operations / 1e9 / gflops / own.seconds,
        "durable_overhead": _overhead(timings, ours.name),
        "compared": compared,
        "block_seconds": {name: timing.blocks for name, timing in timings.items()},
        "environment": environment(),
    }


def _everybody(
    settings: Settings,
    ours: Simulator,
    work: Work,
    images: Images,
    federation: Federation,
    workers: int,
    tell: Tell,
) -> tuple[dict[str, Timing], float]:
    """Timings of all contenders by name, and the matrix peak; all but ``ours`` are gone afterwards."""
    size = settings.size
    contenders: list[Contender] = [ours]
    with ExitStack() as stack:

        def join(contender: Contender) -> None:
            contenders.append(stack.enter_context(closing(contender)))

        if settings.durable:
            # As ours, so that a difference between them is none between executors.
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            join(Simulator(work, size, federation, settings.algorithm, ours.executor, workers, directory))
        for channels_last in (False, True) if work.convolutional else (False,):
            join(PlainLoop(work, size, images, workers, channels_last))
        peak = stack.enter_context(closing(MatrixPeak(workers, settings.matrix_sides)))
        return take_turns(REFERENCE, contenders, settings.rounds, peak.run, tell), peak.gflops


def take_turns(
    turns: Turns, contenders: Sequence[Contender], rounds: int | None, between: Callable[[], None], tell: Tell
) -> dict[str, Timing]:
    """Blocks of everybody in turn, there and back; ``between`` is done before each turn."""
    usual = {contender.name: _warm_up(contender, turns.block_seconds) for contender in contenders}
    blocks = turns.number(max(usual.values()), rounds)
    lengths = {name: turns.length(seconds, blocks, rounds) for name, seconds in usual.items()}
    seen: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    total = blocks * len(contenders)
    for turn in range(blocks):
        between()
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            tell(contender.name, sum(map(len, seen.values())), total)
            seen[contender.name].append(statistics.median(contender.run(lengths[contender.name])))
    return {name: Timing(tuple(times), lengths[name] * blocks) for name, times in seen.items()}


def _warm_up(contender: Contender, enough: float) -> float:
    """Seconds of a round once everything is in place."""
    (first,) = contender.run(1)
    return first if first > enough else min(contender.run(2))


def _overhead(timings: dict[str, Timing], name: str) -> float | None:
    durable = timings.get(f"{name}, durable")
    return None if durable is None else durable.times(timings[name]) - 1


def _compared(
    settings: Settings, executor: str, work: Work, federation: Federation, workers: int, tell: Tell
) -> dict[str, dict[str, float]]:
    """Training and aggregation of all algorithms against FedAvg's.

    Nothing is evaluated on the test set: some algorithms offer several models to evaluate, which is not their work.
    """
    if not settings.compare:
        return {}

    def simulator(name: str) -> Simulator:
        return Simulator(work, settings.size, federation, name, executor, workers, evaluate=False)

    compared: dict[str, dict[str, float]] = {}
    with closing(simulator(BASE)) as base:
        for name in dict.fromkeys((settings.algorithm, *settings.compare)):
            if name == BASE:
                continue
            # In pairs, one after the other: a machine that changes its pace does so within seconds.
            with closing(simulator(name)) as other:
                timings = take_turns(COMPARISON, [base, other], settings.rounds, lambda: None, tell)
            theirs, own = timings[base.name], timings[other.name]
            compared.setdefault(BASE, {"seconds_per_round": theirs.seconds, f"relative_to_{BASE}": 1.0})
            compared[name] = {"seconds_per_round": own.seconds, f"relative_to_{BASE}": own.times(theirs)}
    return compared
