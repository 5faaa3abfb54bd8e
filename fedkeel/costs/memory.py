"""What a simulator holds in memory: numbers, and the objects around them."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.costs.structure import Structure
from fedkeel.costs.trial import Trial
from fedkeel.engine.samples import CACHE_BYTES

ROW = 2050
"""Bytes of the objects around each row (tensor, array, finaliser, places in dicts): Python 3.11, torch 2.13."""
LIST = 120
"""Bytes of the object around each client's list of samples."""
COUNTS = 24
"""Bytes of three whole numbers for each client: how many samples it has, for the data, the server and the batches."""
LINE = 64
"""Rows begin at multiples of so many bytes."""
PROCESS = 180_000_000
"""Bytes of a process with torch and fedkeel, before any data."""
WORKER = 90_000_000
"""Bytes that a worker process adds; most of its pages are shared."""
COPIES = 3
"""Of what travels in a round, while it is gathered: as trained, as gathered, and as kept."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a simulator needs, by what for."""

    process: int
    data: int
    """Samples of all clients, as read and (below a gigabyte) as prepared, and who has which."""
    rows: int
    """What clients remember that were called so far."""
    server: int
    """The server's state, tables included."""
    round: int
    """Messages of one round on their way."""

    @property
    def whole(self) -> int:
        return self.process + self.data + self.rows + self.server + self.round


def row_bytes(size: int) -> int:
    """What a row of so many bytes takes in memory."""
    return -(-size // LINE) * LINE + ROW if size else 0


def simulator_memory(
    trial: Trial, structure: Structure, N: int, S: int, heard: int, rounds: int, workers: int
) -> Memory:
    """Of N clients like those of the trial, of whom so many were called so far."""
    dataset, size = trial.federation.dataset, trial.federation.n / trial.federation.N
    sample = dataset.train.x[:1].nbytes + dataset.train.y[:1].nbytes
    prepared = int(N * size) * dataset.train.x[:1].size * trial.task.dtype.itemsize
    kept = prepared + int(N * size) * dataset.train.y[:1].nbytes if prepared <= CACHE_BYTES else 0
    test = dataset.test.x.nbytes + dataset.test.x.size * trial.task.dtype.itemsize
    tables = structure.heard(heard) * structure.vectors * (row_bytes(1) - LINE)
    return Memory(
        PROCESS + (workers * WORKER if workers > 1 else 0),
        int(N * size) * (sample + 8) + kept + test + N * (LIST + COUNTS),
        heard * sum(row_bytes(one) for one in structure.client.values()),
        structure.server_bytes(N, heard, rounds) + tables,
        COPIES * S * (structure.up + structure.client_bytes),
    )
