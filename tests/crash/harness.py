"""Kills real runs at random instants, resumes them, and counts what was lost.

One warm process forks every run, so that torch is imported once; it computes nothing itself, so that it has no threads
when it forks. A run says through a pipe which round it has committed. After each kill the store must open, pass its
checksums and hold every round that was reported; at the end the run must equal one that nobody touched.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel import api, config
from fedkeel.data import Federation, load
from fedkeel.runs.directory import MODEL
from fedkeel.runs.store import FILE, Store, holds_run

ALGORITHMS = ("scaffold", "feddc", "gradma_s", "mifa", "fedavg")
EXECUTORS = ("serial", "pool")
PATIENCE = 60
"""Seconds after which a run that should end, or workers that should leave, count as hanging."""


@dataclass
class Tally:
    """What the soak found."""

    kills: int = 0
    resumes: int = 0
    rounds_lost: int = 0
    bit_differences: int = 0


def federation() -> Federation:
    return load("mnist5k").partition("dirichlet", clients=20, alpha=0.3, seed=0)


def experiment(algorithm: str, executor: str, rounds: int) -> config.Experiment:
    """Rounds of little work and large states (a vector has 0.8 MB), so that much of the time is spent in commits."""
    table = {
        "partition": {"clients": 20, "alpha": 0.3},
        "algorithm": {"name": algorithm},
        "training": {"rounds": rounds, "participation": 0.4, "steps": 2, "batch_size": 20, "lr": 0.05},
        "evaluation": {"every": 5},
        "run": {"executor": executor, "workers": 2 if executor == "pool" else None, "checkpoint_every": 7},
    }
    return config.expand(table, [])[0]


class Child:
    """A run in a process of its own; ``reported`` is the last round that it said was committed."""

    def __init__(self, setup: config.Experiment, directory: Path, data: Federation) -> None:
        self.reported = 0
        self.status: int | None = None
        self._pipe, write = os.pipe()
        self._text = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            _run_and_leave(setup, directory, data, write)
        os.close(write)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def ended(self) -> bool:
        """Whether the run came to its end by itself."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.status = status
        self._drain()
        return True

    def wait(self) -> int:
        """The end of the process; then that of its workers, who hold the pipe open as long as they live."""
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)
            self._drain()
        return self.status

    def _drain(self) -> None:
        while True:
            ready, _, _ = select.select([self._pipe], [], [], PATIENCE)
            assert ready, "workers outlived their run"
            piece = os.read(self._pipe, 4096)
            if not piece:
                break
            self._text += piece
        os.close(self._pipe)
        lines = self._text.split(b"\n")[:-1]  # a line is written at once, or not at all
        self.reported = int(lines[-1]) if lines else 0


def _run_and_leave(setup: config.Experiment, directory: Path, data: Federation, write: int) -> None:
    code = 1
    try:
        api.run(
            setup,
            directory,
            federation=data,
            resume=True,
            watch=lambda seen: os.write(write, b"%d\n" % seen.round) and None,
        )
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def soak(kills: int, rounds: int, seed: int, folder: Path, say: Callable[[str], None]) -> Tally:
    """``kills`` kills, spread over algorithms and executors, at least four of each."""
    rng, tally, data = random.Random(seed), Tally(), federation()
    pairs = [(a, e) for a in ALGORITHMS for e in EXECUTORS][: max(1, kills // 4)]
    for number, (algorithm, executor) in enumerate(pairs):
        quota = kills * (number + 1) // len(pairs) - kills * number // len(pairs)
        untouched = folder / f"{algorithm}-untouched"
        if not untouched.exists():
            assert Child(experiment(algorithm, "serial", rounds), untouched, data).wait() == 0
        setup = experiment(algorithm, executor, rounds)
        _torment(setup, folder / f"{algorithm}-{executor}", untouched, quota, rng, tally, data)
        say(f"{algorithm}, {executor}: {tally}")
    return tally


def _torment(
    setup: config.Experiment,
    folder: Path,
    untouched: Path,
    quota: int,
    rng: random.Random,
    tally: Tally,
    data: Federation,
) -> None:
    """Kill runs of one kind until the quota is met, and let every run come to its end."""
    killed = run = 0
    while killed < quota:
        directory = folder / str(run)
        finished = False
        while not finished:
            tally.resumes += directory.exists() and holds_run(directory)
            child = Child(setup, directory, data)
            if killed < quota and _wait_for_the_instant(child, directory, rng):
                child.kill()
                killed += 1
                tally.kills += 1
                tally.rounds_lost += max(0, child.reported - _committed(directory))
            else:
                assert child.wait() == 0, "a run failed"
                finished = True
        tally.bit_differences += differences(directory, untouched)
        run += 1


def _wait_for_the_instant(child: Child, directory: Path, rng: random.Random) -> bool:
    """Sleep to a random instant; every second time go on until a commit begins. False where the run ended before."""
    deadline = time.monotonic() + rng.expovariate(1 / 0.35)
    while time.monotonic() < deadline:
        if child.ended():
            return False
        time.sleep(0.002)
    if rng.random() < 0.5:
        log = directory / f"{FILE}-wal"
        before = _stamp(log)
        give_up = time.monotonic() + 1
        while _stamp(log) == before and time.monotonic() < give_up:
            time.sleep(0.0002)
        time.sleep(rng.random() * 0.008)
    return not child.ended()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _committed(directory: Path) -> int:
    """The last whole round; state and history must be readable, sound and of the same round."""
    if not directory.exists() or not holds_run(directory):
        return 0
    with closing(Store.reading(directory)) as store:
        state, history = store.read_state(), store.history()
        done = len(history.rounds)
        assert (0 if state is None else state.t) == done, "state and history are of different rounds"
        return done


def differences(one: Path, two: Path) -> int:
    """How many rows, vectors and files of two finished runs differ, times aside."""
    pairs = zip(_contents(one), _contents(two), strict=True)
    count = sum(len(mine ^ theirs) for mine, theirs in pairs)
    return count + ((one / MODEL).read_bytes() != (two / MODEL).read_bytes())


def _contents(directory: Path) -> list[set[tuple[Any, ...]]]:
    queries = (
        "SELECT round, lr, clients, steps, samples, train_loss, drift, bytes_down, bytes_up FROM rounds",
        "SELECT * FROM metrics",
        "SELECT * FROM clients",
        "SELECT owner, name, client, dtype, shape, data FROM tensors",
        "SELECT owner, name, client, round, dtype, shape, data FROM kept",
    )
    with closing(sqlite3.connect(directory / FILE)) as db:
        return [set(db.execute(query)) for query in queries]


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
