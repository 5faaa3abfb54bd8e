"""What an algorithm sends and remembers, in bytes, as functions of the number of clients.

Nothing here knows an algorithm. It is run for a few rounds with a handful of clients, one sample or two each, and its
messages and states are weighed:

    server state = own + N·registered + b·remembered + b²·pairs + t·grown

with N registered clients, b clients of whom the server remembers something, and t rounds. The coefficients come from
five states, whole numbers of bytes; further ones with other N, b and t must agree to the byte, or there is no answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fedkeel.algorithms.state import State, size_in_bytes
from fedkeel.costs.trial import Trial, stepped
from fedkeel.engine.rounds import RunState
from fedkeel.engine.server import RoundRecord
from fedkeel.errors import FedkeelError
from fedkeel.state.rows import Rows

SAMPLES = 2
"""Of each client of a trial: BatchNorm wants two."""
LATER = 24
"""Further rounds of algorithms that follow the accuracy, whose messages may change with it."""
CALLED = {1: 1, 2: 2, 3: 3, 4: 3, 5: 4}
"""Cohorts that were called so far after each round of a trial: in the fourth the third is called again."""
COUNTED = 4
"""Bytes for each registered client that every server keeps: the last round in which its upload counted."""


class StructureError(FedkeelError):
    """What an algorithm remembers grows in a way that is not known here."""


@dataclass(frozen=True)
class Structure:
    """Bytes, but for ``d`` and ``most``."""

    d: int
    """Trainable parameters."""
    down: int
    """To one client in one round, BatchNorm statistics included."""
    up: int
    """From one client in one round."""
    least_down: int
    """Where messages change their size in the course of a run, the smallest seen; else the same."""
    least_up: int
    client: dict[str, int]
    """What each client remembers from round to round, by name."""
    own: int
    """What the server remembers whoever takes part: the model, momenta, control variates."""
    registered: int
    """What the server remembers for each registered client."""
    remembered: int
    """What it remembers further for each client that it has heard, as far as it remembers them."""
    pairs: int
    """The same for each pair of these."""
    grown: int
    """What its state grows by in a round."""
    vectors: int
    """Rows of the server's tables that it keeps for each such client."""
    most: int | None
    """Clients that the server remembers at most; None: all."""
    needs_all: bool
    """Whether every client must take part in every round."""
    one_client: bool
    gradients_a_step: float
    passes_a_round: float

    @property
    def client_bytes(self) -> int:
        """What one client remembers."""
        return sum(self.client.values())

    def heard(self, clients: int) -> int:
        """How many clients the server remembers when it has heard so many."""
        return clients if self.most is None else min(clients, self.most)

    def server_bytes(self, N: int, heard: int, rounds: int) -> int:
        """The server's state after so many rounds in which so many of N clients were heard."""
        return self.own + N * self.registered + self.table_bytes(heard) + rounds * self.grown

    def table_bytes(self, heard: int) -> int:
        """What of it is about clients that were heard."""
        b = self.heard(heard)
        return b * self.remembered + b * b * self.pairs

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_structure(trial: Trial) -> Structure:
    """Weigh an algorithm's messages and states in a few short rounds."""
    needs = trial.algorithm.needs
    everybody = bool(needs & {"full", "one_client"})
    at_once = trial.experiment.robust.least
    most = trial.algorithm.most_remembered
    few, more = (1, 1) if "one_client" in needs else (4 * at_once + 1, 4 * at_once + 4)
    first, second = _Watched(trial, few, at_once, everybody), _Watched(trial, more, at_once, everybody)
    if "one_client" in needs:
        own, N, b, pairs, grown, rows = _bytes(first.states[-1]), 0, 0, 0, 0, 0
    else:
        grown = _bytes(first.states[4]) - _bytes(first.states[3])
        one, two, three = (_bytes(first.states[t]) - t * grown for t in (1, 2, 3))
        other = _bytes(second.states[3]) - 3 * grown
        N = (other - three) // (more - few)
        fixed = everybody or (most is not None and most < 3 * at_once)
        pairs = 0 if fixed else (three - 2 * two + one) // (2 * at_once**2)
        b = 0 if fixed else (two - one - 3 * at_once**2 * pairs) // at_once
        own = three - few * N - 3 * at_once * b - 9 * at_once**2 * pairs
        rows = 0 if fixed else _rows(first.states[3]) // (3 * at_once)
        found = Structure(0, 0, 0, 0, 0, {}, own, N, b, pairs, grown, 0, most, False, False, 1, 0)
        for watched, clients in ((first, few), (second, more)):
            for t, heard in CALLED.items():
                if fixed and t < 3:  # a small table is still being filled
                    continue
                expected = found.server_bytes(clients, heard * at_once, t)
                if min(own, N, b, pairs, grown) < 0 or _bytes(watched.states[t]) != expected:
                    raise _unknown(trial, expected, watched.states[t], clients)
    return Structure(
        trial.task.d,
        max(record.bytes_down // len(record.cohort) for record in first.records),
        max(record.bytes_up // len(record.cohort) for record in first.records),
        min(record.bytes_down // len(record.cohort) for record in first.records),
        min(record.bytes_up // len(record.cohort) for record in first.records),
        _of_a_client(first.states[-1]),
        own,
        N + COUNTED,
        b,
        pairs,
        grown,
        rows,
        most,
        everybody,
        "one_client" in needs,
        trial.algorithm.gradients_a_step,
        trial.algorithm.passes_a_round,
    )


class _Watched:
    """The states of a few rounds with cohorts as in ``CALLED``."""

    def __init__(self, trial: Trial, clients: int, at_once: int, everybody: bool) -> None:
        simulation, called = trial.simulation(clients, SAMPLES, epochs=None, steps=1, drop_last=False)
        state = simulation.start()
        self.states = [state]
        self.records: list[RoundRecord] = []
        for t in range(1, 1 + len(CALLED) + (LATER if trial.algorithm.observes else 0)):
            first = at_once * (CALLED.get(t, 1) - 1)
            called.ids = range(clients) if everybody else range(first, first + at_once)
            state, record = stepped(simulation, state)
            self.states.append(state)
            self.records.append(record)


def _bytes(state: RunState) -> int:
    """Of the server's own state and the global BatchNorm statistics."""
    return sum(_weight(value) for value in state.server.values()) + size_in_bytes(state.b)


def _weight(value: Any) -> int:
    if isinstance(value, Rows):
        return sum(size_in_bytes(row) for row in value.values())
    return size_in_bytes(value) if isinstance(value, Tensor) else 8


def _rows(state: RunState) -> int:
    server: State = state.server
    return sum(len(value) for value in server.values() if isinstance(value, Rows))


def _of_a_client(state: RunState) -> dict[str, int]:
    tables = {**state.clients, "buffers": state.client_buffers}
    return {name: size_in_bytes(next(iter(rows.values()))) for name, rows in tables.items() if rows}


def _unknown(trial: Trial, expected: int, state: RunState, clients: int) -> StructureError:
    return StructureError(
        f"what {trial.algorithm.title} remembers at the server does not grow by clients, pairs of clients and rounds: "
        f"{_bytes(state):,} bytes after round {state.t} with {clients} clients, where {expected:,} were expected; its "
        "cost cannot be computed for other numbers of clients."
    )
