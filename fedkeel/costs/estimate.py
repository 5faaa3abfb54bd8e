"""What an experiment would cost with N clients, S of them a round, for R rounds; and what would stop it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedkeel.costs.calibration import ZERO, Calibration, Seconds
from fedkeel.costs.memory import Memory, simulator_memory
from fedkeel.costs.structure import Structure
from fedkeel.costs.trial import Trial
from fedkeel.errors import invalid

SELDOM = 0.01
"""Share of clients called at least twice below which what clients remember is as good as never used."""


@dataclass(frozen=True)
class Scale:
    """What is asked for."""

    N: int
    S: int
    R: int
    memory: int
    """Bytes of one machine."""
    cores: int
    """Of one machine."""


@dataclass(frozen=True)
class Calls:
    """How often clients are called, on average over clients: each round draws S of N, whoever was drawn before."""

    wait: float
    """Rounds from one call of a client to its next, on average."""
    once: float
    """Share of clients called at least once."""
    twice: float
    """Share of clients called at least twice."""


def calls(N: int, S: int, R: int) -> Calls:
    """The number of a client's calls is binomial, R draws with probability q = S/N.

    P(≥ 1) = 1 − (1 − q)^R;  P(≥ 2) = 1 − (1 − q)^R − R q (1 − q)^(R−1), which is the incomplete beta function
    I_q(2, R − 1) and loses no digits where q is small.
    """
    from scipy.special import betainc

    q = S / N
    if q == 1:
        return Calls(1.0, 1.0, float(R >= 2))
    return Calls(1 / q, -math.expm1(R * math.log1p(-q)), float(betainc(2, R - 1, q)) if R >= 2 else 0.0)


@dataclass(frozen=True)
class Limit:
    """Something that stops an algorithm at this scale, or makes it pointless."""

    what: str
    """A word for programs: table, rows, full, unused, state, one_client."""
    stops: bool
    why: str
    """One sentence."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one algorithm at one scale."""

    algorithm: str
    title: str
    scale: Scale
    structure: Structure
    calls: Calls
    memory: Memory
    on_disk: int
    """Bytes of rows that go to disk on one machine, beyond ``run.memory_mb`` (a quarter of its memory)."""
    down: int
    """Bytes that the server sends in a round."""
    up: int
    """Bytes that it receives in a round."""
    round_seconds: Seconds | None
    """Of a round here, on average over all rounds; None: not calibrated."""
    all_seconds: Seconds | None
    machines: int
    """Machines of ``scale.memory`` that hold all of the simulator in memory."""
    their_seconds: Seconds | None
    """All rounds with these machines' cores."""
    calibration: Calibration | None
    limits: tuple[Limit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        seconds = {
            name: None if value is None else asdict(value)
            for name, value in (
                ("round", self.round_seconds),
                ("all", self.all_seconds),
                ("all_on_machines", self.their_seconds),
            )
        }
        memory = asdict(self.memory) | {"whole": self.memory.whole, "on_disk": self.on_disk}
        return {
            "algorithm": self.algorithm,
            "clients": self.scale.N,
            "clients_a_round": self.scale.S,
            "rounds": self.scale.R,
            "structure": self.structure.as_dict(),
            "calls": asdict(self.calls),
            "memory_bytes": memory,
            "site_bytes": self.structure.client_bytes,
            "bytes_a_round": {"down": self.down, "up": self.up},
            "bytes_in_all": {"down": self.down * self.scale.R, "up": self.up * self.scale.R},
            "seconds": seconds,
            "machines": self.machines,
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "limits": [asdict(limit) for limit in self.limits],
        }


def estimate(
    trial: Trial, structure: Structure, calibration: Calibration | None, N: int, S: int, R: int, memory: int, cores: int
) -> Estimate:
    """Compute what a scale costs, from what was found and timed at a small one."""
    least = trial.experiment.robust.least
    if not least <= S <= N:
        allowed = f"from {least} to the {N:,} clients that there are" if least > 1 else f"at most {N:,}, all clients"
        raise invalid("--per-round", allowed, S)
    if structure.most is not None and structure.most < S:
        allowed = f"at most the {structure.most:,} clients that {trial.algorithm.title} remembers"
        raise invalid("--per-round", allowed, S)
    asked, everybody = S, N
    if structure.one_client:
        N = S = 1
    elif structure.needs_all:
        S = N
    scale, often = Scale(N, S, R, memory, cores), calls(N, S, R)
    heard = round(N * often.once)
    workers = 1 if calibration is None else calibration.workers
    held = simulator_memory(trial, structure, everybody, S, heard, R, workers)
    given = trial.experiment.run.memory_mb
    budget = memory // 4 if given is None else given << 20
    numbers = heard * structure.client_bytes + structure.heard(heard) * structure.remembered
    on_disk = max(0, numbers - budget)
    machines = math.ceil(held.whole / memory)
    one, every, theirs = _times(trial, structure, calibration, scale, everybody, machines)
    return Estimate(
        trial.algorithm.name,
        trial.algorithm.title,
        scale,
        structure,
        often,
        held,
        on_disk,
        S * structure.down,
        S * structure.up,
        one,
        every,
        machines,
        theirs,
        calibration,
        limits(trial.algorithm.title, structure, scale, often, asked),
    )


def _times(
    trial: Trial, structure: Structure, found: Calibration | None, scale: Scale, everybody: int, machines: int
) -> tuple[Seconds | None, Seconds | None, Seconds | None]:
    """A round and all rounds here, and all rounds on the machines asked for."""
    if found is None:
        return None, None, None
    N, S, R = scale.N, scale.S, scale.R
    mean = trial.federation.n / trial.federation.N
    together = trial.training.local_steps(round(everybody * mean)) if structure.one_client else None
    training = found.training(S, together)
    b, squared = _mean_heard(structure, N, S, R) if structure.remembered else (0.0, 0.0)
    beside = found.server(S, N, b, squared) + found.commit(S, N)
    evaluated = math.ceil(R / trial.experiment.evaluation.every)
    evaluations = found.evaluation(N) * evaluated if evaluated else ZERO
    every = (training + beside) * R + evaluations
    faster = found.workers / (machines * scale.cores)
    theirs = (training * faster + beside) * R + evaluations
    return every * (1 / R), every, theirs


def _mean_heard(structure: Structure, N: int, S: int, R: int) -> tuple[float, float]:
    """Clients that the server remembers, and their square: means over all rounds, in which they grow from nothing."""
    at = {max(1, round(R * (k + 0.5) / 100)) for k in range(100)}
    heard = [structure.heard(round(N * calls(N, S, t).once)) for t in at]
    return sum(heard) / len(heard), sum(b * b for b in heard) / len(heard)


def limits(title: str, structure: Structure, scale: Scale, often: Calls, asked: int) -> tuple[Limit, ...]:
    """What stops an algorithm at a scale, or makes part of it pointless; each in a sentence.

    ``asked`` is the number of clients a round that was asked for, whether the algorithm can do with them or not.
    """
    N, R = scale.N, scale.R
    found = []
    if structure.one_client:
        return (Limit("one_client", False, f"{title} has all data in one place: the number of clients means nothing."),)
    table = structure.table_bytes(round(N * often.once))
    if structure.remembered and table > scale.memory:
        found.append(
            Limit(
                "table",
                True,
                f"The server keeps {amount(structure.remembered)} for every client that it has heard: {amount(table)} "
                f"after {R:,} rounds, {amount(structure.table_bytes(N))} when all were heard, more than "
                f"the {amount(scale.memory)} of a machine.",
            )
        )
    if structure.needs_all:
        found.append(
            Limit(
                "full",
                asked < N,
                f"Every client must take part in every round: {N:,} calls and {amount(N * structure.up)} of uploads "
                "each time, and one that does not answer stops all.",
            )
        )
    if structure.client_bytes:
        rows = round(N * often.once) * structure.client_bytes
        if rows > scale.memory:
            found.append(
                Limit(
                    "rows",
                    False,
                    f"A simulator keeps what clients remember: {amount(rows)} after {R:,} rounds, which goes to disk "
                    f"beyond run.memory_mb; real sites keep {amount(structure.client_bytes)} each.",
                )
            )
        if often.twice < SELDOM:
            found.append(
                Limit(
                    "unused",
                    True,
                    f"A client is called once in {rounded(often.wait)} rounds, and within {R:,} only "
                    f"{share(often.twice)} of all are called twice: what clients remember is hardly ever used, and "
                    f"{title} gains nothing by it.",
                )
            )
    return tuple(found)


def amount(size: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} PB"


def rounded(value: float) -> str:
    """A number with three digits at least, and never in powers of ten."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def share(value: float) -> str:
    """A small share in per cent."""
    return f"{value * 100:.2g} %"
