"""How long a round takes here, from a few short rounds of the experiment itself.

    round      = fixed + S·(client + K·step) + S·upload + b·row + S·b·row_upload + b²·pair + N·registered
    commit     = commit + S·commit_client + N·commit_registered
    evaluation = test + N·client_score

in seconds, with S clients called that take K steps each, b clients that the server remembers and N registered ones.
The rounds are run in turns, and every turn gives coefficients of its own (least squares, none negative). A prediction
is the median of the turns' predictions; how far these are apart is its spread.

What a client costs is the wall-clock time with the executor and the workers of the experiment: with twice the cores
it is taken to be half.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkeel.costs.structure import Structure
from fedkeel.costs.trial import Called, Trial
from fedkeel.engine.names import TIMED
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.simulation import Simulation
from fedkeel.runs.store import Store

TURNS = 5
LARGEST_TABLE = 64 << 20
"""Bytes of rows that the server remembers in a calibration."""
MANY = 200_000
"""Registered clients with which the server's own lists are timed."""
MOST_CLIENTS = 64
"""Registered clients of a calibration."""
MOST_ROWS = 512
"""The same where the server remembers clients, and the calibration has to see how its time grows with them."""
LARGEST_DATA = 64 << 20
"""Bytes of their samples."""
ENOUGH = 0.3
"""Seconds of training after which a larger cohort tells nothing more."""

Turn = dict[str, float]


@dataclass(frozen=True)
class Seconds:
    """A time with the half of what the turns' predictions spread over."""

    value: float
    spread: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.value + other.value, self.spread + other.spread)

    def __mul__(self, factor: float) -> Seconds:
        return Seconds(self.value * factor, self.spread * factor)


ZERO = Seconds(0.0, 0.0)


@dataclass(frozen=True)
class Calibration:
    """Coefficients of every turn, in seconds."""

    turns: tuple[Turn, ...]
    workers: int
    """Processes that the clients' time is shared by."""
    executor: str
    steps: float
    """Local steps of an average client."""

    def training(self, S: int, steps: float | None = None) -> Seconds:
        """What the clients of a round take with this machine's workers."""
        K = self.steps if steps is None else steps
        return self._over(lambda one: S * (one["client"] + K * one["step"]))

    def server(self, S: int, N: int, b: float, squared: float | None = None) -> Seconds:
        """What a round takes beside its clients, with b clients remembered.

        Where b is a mean over rounds, ``squared`` is that of b².
        """
        pairs = b * b if squared is None else squared
        return self._over(
            lambda one: (
                one["fixed"]
                + S * (one["upload"] + b * one["row_upload"])
                + b * one["row"]
                + pairs * one["pair"]
                + N * one["registered"]
            )
        )

    def commit(self, S: int, N: int) -> Seconds:
        """What it takes to write a round down."""
        return self._over(lambda one: one["commit"] + S * one["commit_client"] + N * one["commit_registered"])

    def evaluation(self, N: int) -> Seconds:
        """What it takes to evaluate once."""
        return self._over(lambda one: one["test"] + N * one["client_score"])

    def coefficients(self) -> dict[str, Seconds]:
        """Every coefficient with its spread."""
        return {name: self._over(lambda one, name=name: one[name]) for name in self.turns[0]}  # type: ignore[misc]

    def as_dict(self) -> dict[str, Any]:
        found = {name: asdict(one) for name, one in self.coefficients().items()}
        return {"executor": self.executor, "workers": self.workers, "steps": self.steps, "seconds": found}

    def _over(self, predicted: Callable[[Turn], float]) -> Seconds:
        values = [predicted(one) for one in self.turns]
        return Seconds(statistics.median(values), (max(values) - min(values)) / 2)


def calibrate(trial: Trial, structure: Structure, turns: int = TURNS) -> Calibration:
    """Time an experiment's algorithm on an experiment's model with small cohorts."""
    with closing(trial.executor()) as executor, tempfile.TemporaryDirectory(prefix="fedkeel-cost-") as folder:
        bench = _Bench(trial, structure, executor, Path(folder))
        with closing(bench):
            found = tuple(bench.turn() for _ in range(turns))
        return Calibration(found, executor.lanes, executor.describe(), bench.steps)


@dataclass(frozen=True)
class _Timed:
    """One round: who took part and what it took."""

    S: int
    steps: float
    """Local steps of a client."""
    b: int
    training: float
    server: float
    commit: float
    feedback: float


class _Bench:
    """An experiment with its own local work and with a single step, in one and the same state."""

    def __init__(self, trial: Trial, structure: Structure, executor: Any, folder: Path) -> None:
        self.structure = structure
        self.trial = trial
        self.at_least = trial.experiment.robust.least
        N = self._clients()
        self.whole, self.called = trial.simulation(N, trial.mean_size, executor)
        self.short, self.called_short = trial.simulation(N, trial.mean_size, executor, epochs=None, steps=1)
        self.state = self.whole.start()
        self.store = Store.create(folder)
        self.store.commit(self.state, None, None, [])
        self._next = 0
        most = N if structure.most is None else min(N, structure.most)
        self._round(self.whole, self.called, min(most, 16))  # threads, caches, processes; and ``auto`` chooses
        small = min(most, max(executor.lanes, self.at_least))
        self._round(self.short, self.called_short, small)
        took = self._round(self.whole, self.called, small)
        times = min(max(2, int(ENOUGH / max(took.training, 1e-6))), 16)
        self.cohorts = (N,) if structure.needs_all else (small, min(most, small * times))
        self.steps = took.steps if trial.algorithm.sets_steps else trial.mean_steps

    def _clients(self) -> int:
        """Registered clients of the calibration: enough for cohorts, and for a table that grows."""
        if self.structure.one_client:
            return 1
        dataset = self.trial.federation.dataset
        sample = dataset.train.x[:1].nbytes + dataset.train.y[:1].nbytes
        least = 4 * max(self.at_least, 2)
        room = LARGEST_DATA // (sample * self.trial.mean_size)
        if self.structure.needs_all:
            return least
        if not self.structure.remembered:
            return max(least, min(MOST_CLIENTS, room))
        row = self.structure.remembered + self.structure.client_bytes
        return max(least, min(MOST_ROWS, room, LARGEST_TABLE // row))

    def close(self) -> None:
        self.store.close()

    def turn(self) -> Turn:
        """Coefficients from a handful of rounds."""
        timed: list[_Timed] = []
        if self.structure.remembered:
            self._forget()
            for _ in range(max(2, self.whole.N // self.cohorts[-1])):  # the table grows
                timed.append(self._round(self.short, self.called_short, self.cohorts[-1]))
        for S in self.cohorts:
            timed.append(self._round(self.whole, self.called, S))
            timed.append(self._round(self.short, self.called_short, S))
        return _fitted(timed, self.structure) | self._registered() | self._evaluated()

    def _forget(self) -> None:
        """Begin anew, with nobody remembered."""
        self.state = replace(self.whole.start(), t=self.state.t)
        self._next = 0

    def _remembered(self) -> set[int]:
        return set(self.state.counted.nonzero().flatten().tolist())

    def _round(self, simulation: Simulation, called: Called, S: int) -> _Timed:
        N, state = simulation.N, self.state
        S = N if self.structure.needs_all else min(S, N)
        called.ids = sorted((self._next + k) % N for k in range(S))
        self._next = (self._next + S) % N
        began = time.perf_counter()
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        asked = time.perf_counter() - began
        self.state, record = simulation.step(state)
        began = time.perf_counter()
        self.store.commit(self.state, record, None, [])
        took = time.perf_counter() - began
        b = self.structure.heard(len(self._remembered())) if self.structure.remembered else 0
        steps = statistics.fmean(record.steps)
        training, server = record.times[f"{TIMED}training"], record.times[f"{TIMED}aggregation"]
        return _Timed(S, steps, b, training, server, took, asked)

    def _registered(self) -> Turn:
        """What every further registered client costs: the server's lists of them, drawn from and written down."""
        if self.structure.needs_all:
            return {"registered": 0.0, "commit_registered": 0.0}
        server = self.whole.server
        sizes = torch.ones(MANY, dtype=torch.int64)
        share = server.training.model_copy(update={"participation": self.at_least / MANY})
        schedule = RandomSchedule(share, server.seed)
        many = replace(server, problem=replace(server.problem, sizes=sizes), training=share, schedule=schedule)
        first = many.start()
        took = []
        for _ in range(3):
            began = time.perf_counter()
            many.open(first)
            first.counted.clone()
            took.append(time.perf_counter() - began)
        per_byte = self._per_byte()
        return {
            "registered": statistics.median(took) / MANY,
            "commit_registered": per_byte * self.structure.registered,
        }

    def _per_byte(self) -> float:
        """Seconds that a byte of a server's list takes to be written down."""
        took = []
        for _ in range(3):
            lists = torch.full((MANY,), self.state.t, dtype=torch.int32)
            short, long = (self._committed(counted) for counted in (self.state.counted, lists))
            took.append(max(0.0, long - short))
        return statistics.median(took) / (4 * MANY)

    def _committed(self, counted: torch.Tensor) -> float:
        """Seconds of a commit in which nothing but a list may have changed."""
        self.state = replace(self.state, t=self.state.t + 1)
        began = time.perf_counter()
        self.store.commit(replace(self.state, counted=counted), None, None, [])
        return time.perf_counter() - began

    def _evaluated(self) -> Turn:
        """The test set; and what clients evaluate, where the experiment or the algorithm wants that."""
        simulation, asked = self.whole, self.trial.experiment.evaluation
        began = time.perf_counter()
        for w, b in simulation.candidates(self.state).values():
            simulation.who(self.state).evaluate(w, b)
        test = time.perf_counter() - began
        each = 0.0
        if asked.train or asked.clients or simulation.server.tells_clients_apart(self.state.at_server):
            began = time.perf_counter()
            simulation.evaluate(self.state)
            if asked.train:
                simulation.evaluate(self.state, "train")
            if asked.clients:
                simulation.evaluate_clients(self.state)
            each = max(0.0, time.perf_counter() - began - test) / simulation.N
        return {"test": test, "client_score": each}


def _fitted(timed: Sequence[_Timed], structure: Structure) -> Turn:
    """Least squares of a turn's rounds, no coefficient negative.

    Where every client takes part in every round, there is one size of cohorts, and all goes to the clients.
    """
    S = np.array([float(one.S) for one in timed])
    K = np.array([one.steps for one in timed])
    b = np.array([float(one.b) for one in timed]) if structure.remembered else np.zeros(len(timed))
    one = np.zeros(len(timed)) if structure.needs_all else np.ones(len(timed))
    fixed, client, step = _least([one, S, S * K], [t.training for t in timed])
    pairs = b * b if structure.pairs else np.zeros(len(timed))
    own, upload, row, row_upload, pair = _least([one, S, b, S * b, pairs], [t.server for t in timed])
    commit, commit_client = _least([one, S], [t.commit for t in timed])
    return {
        "fixed": fixed + own + statistics.median(t.feedback for t in timed),
        "client": client,
        "step": step,
        "upload": upload,
        "row": row,
        "row_upload": row_upload,
        "pair": pair,
        "commit": commit,
        "commit_client": commit_client,
    }


def _least(columns: Sequence[Any], seconds: Sequence[float]) -> list[float]:
    """Coefficients of columns; relative errors count, so that long rounds do not hide short ones."""
    from scipy.optimize import nnls

    weights = 1 / np.maximum(np.array(seconds), 1e-6)
    matrix = np.stack(columns, axis=1) * weights[:, None]
    # Columns are brought to one length: what nnls takes for zero depends on it.
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = np.inf
    found, _ = nnls(matrix / lengths, np.array(seconds) * weights)
    return [float(value) for value in found / lengths]
