"""A virtual clock: how fast clients compute and send, when they are online, and for how long the server waits.

Nothing here takes real time. A client that is called at time T with n samples to go through answers at

    T + 2·latency + bytes down / its line down + n·work / (its speed · jitter) + bytes up / its line up

in virtual seconds, where work counts the gradients that its algorithm computes for each minibatch. Everything random
is keyed by (seed, round, client), so that a seed has one virtual history whatever computes it.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.validate import Settings
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.settings import Faults, Training
from fedkeel.errors import DataError, InputError, invalid

DAY = 86_400.0
BITS = 1e6 / 8
"""Bytes a second in a megabit a second."""
LARGEST_FILE = 256 << 20
"""Bytes of a file of devices or sessions."""
Floats = NDArray[np.float64]


class Clock(Settings):
    """How simulated clients differ in speed, line and presence, and what the server does about it; off by default."""

    speed: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="samples a second that a median client trains on; absent (and no devices): there is no clock",
    )
    speed_sigma: float = Field(
        0.0, ge=0, le=5, description="how speeds differ between clients: σ of their logarithm (normal); 0: all alike"
    )
    jitter: float = Field(
        0.0, ge=0, le=5, description="how a client's speed differs from round to round: σ of its logarithm (normal)"
    )
    up: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Mbit/s that a median client sends; absent: sending takes no time"
    )
    down: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Mbit/s that a median client receives; absent: that takes no time"
    )
    line_sigma: float = Field(
        0.0, ge=0, le=5, description="how lines differ between clients: σ of their logarithm, one draw for up and down"
    )
    latency: float = Field(0.0, ge=0, allow_inf_nan=False, description="seconds before a message arrives, each way")
    devices: str | None = Field(
        None,
        description="CSV file with the columns speed, up and down, a row for each device; column client says whose it "
        "is, else devices are drawn at random",
    )
    availability: float = Field(
        1.0, gt=0, le=1, description="share of a period that every client is online, at an hour of its own"
    )
    sessions: str | None = Field(
        None,
        description="CSV file with the columns client, start and end: seconds within a period at which clients are "
        "online; with other clients than 0 … N − 1 its patterns are drawn at random",
    )
    period: float = Field(DAY, gt=0, allow_inf_nan=False, description="seconds after which presence repeats")
    failure: float = Field(
        0.0, ge=0, lt=1, description="probability that a called client leaves at some moment before it has answered"
    )
    mode: Literal["synchronous", "buffered"] = Field(
        "synchronous",
        description="synchronous: rounds of a cohort; buffered: clients train at all times, and the server steps "
        "whenever `buffer` uploads are there (FedBuff)",
    )
    over_select: float = Field(
        0.0, ge=0, le=10, description="call this share more clients than a round needs, and close it without the last"
    )
    deadline: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds after which a round is closed; absent: it waits for all"
    )
    late: Literal["drop", "partial"] = Field(
        "drop",
        description="clients that cannot make the deadline: drop what they did, or let them take as many steps as fit",
    )
    buffer: int | None = Field(None, ge=1, description="uploads in a step of the buffered server")
    staleness: float = Field(
        0.5, ge=0, le=10, description="a of (1 + s)^−a, what the upload of a client counts that missed s server steps"
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a clock at all."""
        return self.speed is not None or self.devices is not None

    @property
    def is_buffered(self) -> bool:
        """Whether the server steps whenever a buffer is full."""
        return self.is_on and self.mode == "buffered"

    @property
    def may_miss(self) -> bool:
        """Whether a client that is called may not be heard, or one may not be there to be called."""
        misses = self.deadline is not None or bool(self.over_select) or bool(self.failure)
        return misses or self.availability < 1 or self.sessions is not None

    @model_validator(mode="after")
    def _heard(self) -> Clock:
        """Settings that nothing listens to would have no effect."""
        synchronous, drawn = self.mode == "synchronous", self.devices is None
        heard = {
            "speed": drawn,
            "speed_sigma": drawn,
            "up": drawn,
            "down": drawn,
            "line_sigma": drawn and (self.up is not None or self.down is not None),
            "availability": self.sessions is None,
            "period": self.sessions is not None or self.availability < 1,
            "over_select": synchronous,
            "deadline": synchronous,
            "late": synchronous and self.deadline is not None,
            "buffer": not synchronous,
            "staleness": not synchronous,
        }
        for name, info in type(self).model_fields.items():
            if getattr(self, name) != info.default and not (self.is_on and heard.get(name, True)):
                why = _DEAF.get(name, "here") if self.is_on else "unless speed or devices are given, too"
                raise ValueError(f"given without {name}, which has no effect {why}")
        if self.is_buffered and self.buffer is None:
            raise ValueError("given buffer, the uploads in a server step, with mode = 'buffered'")
        return self


_DEAF = {
    **dict.fromkeys(("speed", "speed_sigma", "up", "down"), "beside devices, which say it"),
    "line_sigma": "without up or down, nor beside devices",
    "availability": "beside sessions, which say it",
    "period": "without availability below 1 or sessions",
    **dict.fromkeys(("over_select", "deadline"), "with mode = 'buffered'"),
    "late": "without deadline",
    **dict.fromkeys(("buffer", "staleness"), "with mode = 'synchronous'"),
}


def check_clock(algorithm: type[Algorithm], clock: Clock, faults: Faults, training: Training) -> None:
    """Refuse a clock that would make an algorithm, or what else is asked for, quietly wrong."""
    if not clock.is_on:
        return
    for name in ("dropout", "lost", "late", "stragglers"):
        if getattr(faults, name):
            hint = "With a clock, clock.failure, clock.availability and clock.deadline decide who answers in time."
            raise invalid(f"faults.{name}", "0 with a clock", getattr(faults, name), hint)
    if training.sampling != "exact" and (clock.may_miss or clock.is_buffered):
        hint = "Who is there decides the number of clients; leave it out."
        raise invalid("training.sampling", "'exact' where the clock says who can be called", training.sampling, hint)
    if "full" in algorithm.needs and (clock.may_miss or clock.is_buffered):
        raise InputError(
            f"{algorithm.title} needs every client in every round, but clock.mode, over_select, deadline, failure, "
            "availability or sessions leave some out; remove these, or take another algorithm."
        )
    if "equal_steps" in algorithm.needs and clock.late == "partial":
        hint = "Take 'drop', or another algorithm."
        raise invalid("clock.late", f"'drop' with {algorithm.name}, which needs equal steps", clock.late, hint)
    if clock.is_buffered and not takes_stale_uploads(algorithm):
        hint = "Algorithms that do: `fedkeel algorithms NAME` says it of each."
        allowed = f"'synchronous' with {algorithm.name}, which does not say that it takes stale uploads (any_staleness)"
        raise invalid("clock.mode", allowed, clock.mode, hint)


def takes_stale_uploads(algorithm: type[Algorithm]) -> bool:
    """Whether an algorithm says ``any_staleness``: one of somebody's own for itself, whatever it is derived from."""
    saying = next(cls for cls in algorithm.__mro__ if "any_staleness" in vars(cls))
    own = not algorithm.__module__.startswith("fedkeel.")
    return algorithm.any_staleness and not (own and saying.__module__.startswith("fedkeel."))


@dataclass(frozen=True)
class Presence:
    """When clients are online: intervals within a period that repeats."""

    period: float
    pattern: NDArray[np.int64]
    """Of each client the pattern that it follows [N]."""
    shift: Floats
    """Of each client the seconds by which its pattern is early [N]."""
    sessions: tuple[Floats, ...]
    """Of each pattern, starts and ends [k, 2] within [0, period], in order and apart."""

    def online(self, clients: NDArray[np.int64], at: float) -> NDArray[np.bool_]:
        """Which of some clients are online."""
        hours = np.mod(at + self.shift[clients], self.period)
        if len(self.sessions) == 1:
            return _inside(self.sessions[0], hours)
        return np.array([_inside(self.sessions[self.pattern[c]], h) for c, h in zip(clients, hours, strict=True)], bool)

    def leaves(self, client: int, at: float) -> float:
        """When a client goes offline; infinite if it never does.

        At once if it is offline already: an algorithm may call whom it likes (MIFA's program calls everybody).
        """
        if not self.online(np.array([client]), at)[0]:
            return at
        sessions = self.sessions[self.pattern[client]]
        hour = float(np.mod(at + self.shift[client], self.period))
        end = float(sessions[np.searchsorted(sessions[:, 0], hour, side="right") - 1, 1])
        if end < self.period or sessions[0, 0] > 0:
            return at + end - hour
        # Its last session goes on with the first of the next period.
        return math.inf if len(sessions) == 1 else at + end - hour + float(sessions[0, 1])

    def next_online(self, at: float, but: Collection[int] = ()) -> float:
        """The first moment from now on at which a client (but some) is online."""
        others = np.setdiff1d(np.arange(len(self.shift)), np.fromiter(but, np.int64, len(but)))
        hours = np.mod(at + self.shift[others], self.period)
        waits = np.full(len(others), math.inf)
        for number, sessions in enumerate(self.sessions):
            mine = self.pattern[others] == number
            at_hour = hours[mine]
            following = np.searchsorted(sessions[:, 0], at_hour, side="right")
            starts = np.append(sessions[:, 0], sessions[0, 0] + self.period)
            waits[mine] = np.where(_inside(sessions, at_hour), 0.0, starts[following] - at_hour)
        if not len(others) or math.isinf(float(waits.min())):
            raise InputError("clock: no client is ever online; give others in clock.sessions.")
        return at + float(waits.min())


def _inside(sessions: Floats, hours: Floats) -> NDArray[np.bool_]:
    """Whether hours lie within a pattern's sessions; an end is outside."""
    before = np.searchsorted(sessions[:, 0], hours, side="right") - 1
    inside: NDArray[np.bool_] = (before >= 0) & (hours < sessions[np.maximum(before, 0), 1])
    return inside


@dataclass(frozen=True)
class Devices:
    """What N clients compute and send with."""

    clock: Clock
    seed: int
    speed: Floats
    """Samples a second [N]."""
    up: Floats
    """Bytes a second [N]; infinite where sending takes no time."""
    down: Floats
    presence: Presence | None
    """None: everybody is always online."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of the files that they were read from."""

    @property
    def N(self) -> int:
        return len(self.speed)

    @cached_property
    def weighs_uploads(self) -> bool:
        """Whether anybody's upload takes time, so that its size has to be known before it is made."""
        return bool(np.isfinite(self.up).any())

    def compute(self, client: int, round: int, samples: float) -> float:
        """Seconds that a client takes to go through so many samples in a round (from 0)."""
        rate = float(self.speed[client])
        if self.clock.jitter:
            rate *= math.exp(self.clock.jitter * float(self._rng(client, round, 0).standard_normal()))
        return samples / rate

    def transfer(self, client: int, bytes_down: int, bytes_up: int) -> float:
        """Seconds that a client's messages are on their way."""
        return 2 * self.clock.latency + bytes_down / float(self.down[client]) + bytes_up / float(self.up[client])

    def fails_after(self, client: int, round: int) -> float:
        """The share of its time after which a client gives up in a round; infinite if it does not."""
        if not self.clock.failure:
            return math.inf
        falls, when = self._rng(client, round, 1).random(2).tolist()
        return float(when) if falls < self.clock.failure else math.inf

    def leaves(self, client: int, at: float) -> float:
        """When a client that is online goes offline; infinite if it never does."""
        return math.inf if self.presence is None else self.presence.leaves(client, at)

    def next_online(self, at: float, but: Collection[int] = ()) -> float:
        """The first moment from now on at which a client (but some) is online."""
        return at if self.presence is None else self.presence.next_online(at, but)

    def draw(self, wanted: int, at: float, rng: np.random.Generator, but: Collection[int] = ()) -> list[int]:
        """Clients that are online, at random and in the order of the draw: as many as are wanted, or all there are."""
        size = wanted if self.presence is None and not but else 2 * wanted + 16
        while True:
            drawn = rng.choice(self.N, size=min(size, self.N), replace=False)
            there = drawn if self.presence is None else drawn[self.presence.online(drawn, at)]
            found = [int(client) for client in there if int(client) not in but][:wanted]
            if len(found) == wanted or size >= self.N:
                return found
            size *= 4

    def _rng(self, client: int, round: int, what: int) -> np.random.Generator:
        return generator(self.seed, Purpose.CLOCK, round + 1, client, what)


def make_devices(clock: Clock, N: int, seed: int) -> Devices:
    """What N clients have, drawn by seed or read from files; a client's draws do not depend on how many others are."""

    def normal(part: int) -> Floats:
        return generator(seed, Purpose.CLOCK, part=part).standard_normal(N)

    digests: dict[str, str] = {}
    if clock.devices is not None:
        table, digests["devices"] = _table(clock.devices, "clock.devices", ("speed", "up", "down"), ("client",))
        rows = _whose(table.pop("client", None), len(table["speed"]), N, generator(seed, Purpose.CLOCK, part=4))
        for name, values in table.items():
            if not (np.isfinite(values) & (values > 0)).all():
                raise DataError(f"column {name} of {clock.devices} must hold numbers above 0 only; check the file.")
        speed, up, down = table["speed"][rows], table["up"][rows] * BITS, table["down"][rows] * BITS
    else:
        assert clock.speed is not None
        line = np.exp(clock.line_sigma * normal(2))
        speed = clock.speed * np.exp(clock.speed_sigma * normal(1))
        up, down = (np.full(N, math.inf) if rate is None else rate * BITS * line for rate in (clock.up, clock.down))
    return Devices(clock, seed, speed, up, down, _presence(clock, N, seed, digests), digests)


def _presence(clock: Clock, N: int, seed: int, digests: dict[str, str]) -> Presence | None:
    rng = generator(seed, Purpose.CLOCK, part=3)
    if clock.sessions is None:
        if clock.availability == 1:
            return None
        one = np.array([[0.0, clock.availability * clock.period]])
        return Presence(clock.period, np.zeros(N, np.int64), rng.random(N) * clock.period, (one,))
    table, digests["sessions"] = _table(clock.sessions, "clock.sessions", ("client", "start", "end"))
    names, owner = np.unique(table["client"], return_inverse=True)
    spans = np.column_stack([table["start"], table["end"]])
    if not ((spans[:, 0] >= 0) & (spans[:, 0] < spans[:, 1]) & (spans[:, 1] <= clock.period)).all():
        raise DataError(
            f"every row of {clock.sessions} must have 0 ≤ start < end ≤ clock.period, {clock.period:g}; check the file."
        )
    patterns = tuple(_merged(spans[owner == number]) for number in range(len(names)))
    follows = _whose(names, len(names), N, rng)
    return Presence(clock.period, follows, np.zeros(N), patterns)


def _merged(spans: Floats) -> Floats:
    """Intervals in order, those that touch as one."""
    found: list[list[float]] = []
    for start, end in sorted(spans.tolist()):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return np.array(found)


def _whose(clients: Floats | None, rows: int, N: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which row each client has: its own where the rows are those of 0 … N − 1, else one drawn at random [N]."""
    if clients is not None and len(clients) == N and np.array_equal(np.sort(clients), np.arange(N)):
        return np.argsort(clients)
    return rng.integers(0, rows, N)


def _table(name: str, whose: str, columns: Sequence[str], may: Sequence[str] = ()) -> tuple[dict[str, Floats], str]:
    """The columns of a CSV file as numbers, and the digest of the file."""
    path = Path(name)
    try:
        if not path.is_file():
            raise DataError(f"{whose} names the file {name}, which is not there; check the path.")
        if path.stat().st_size > LARGEST_FILE:
            raise DataError(f"{whose} must be a file of at most {LARGEST_FILE:,} bytes, {name} has more.")
        content = path.read_bytes()
        lines = list(csv.reader(content.decode("utf-8").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{whose}: {name} cannot be read as CSV: {error}.") from None
    head = [one.strip() for one in lines[0]] if lines else []
    if not set(columns) <= set(head) <= {*columns, *may} or len(set(head)) != len(head):
        raise DataError(f"{whose} must have the columns {', '.join(columns)}, {name} has {', '.join(head) or 'none'}.")
    rows = [row for row in lines[1:] if row]
    try:
        numbers = np.array([[float(value) for value in row] for row in rows], dtype=np.float64)
        numbers = numbers.reshape(len(rows), len(head))
    except ValueError:
        raise DataError(f"{whose}: every row of {name} must have {len(head)} numbers; check the file.") from None
    if not len(rows) or not np.isfinite(numbers).all():
        raise DataError(f"{whose}: {name} must have at least one row, of finite numbers only; check the file.")
    return dict(zip(head, numbers.T, strict=True)), hashlib.sha256(content).hexdigest()
