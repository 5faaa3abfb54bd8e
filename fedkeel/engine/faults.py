"""Clients that fail. What happens to whom is drawn before a round, as a function of (seed, round, client) alone.

    dropout     the client got the broadcast and never answers
    lost        it trained, but its upload never arrives
    late        its upload arrives after the round was closed and is discarded
    straggler   it takes only a share of its steps, at least one; its upload counts, with the true number of steps
    duplicate   its upload arrives twice and counts once

A client's new state counts only once the server has taken its upload (two phases: prepared, then acknowledged). So
whoever drops out, loses its upload or is late is as it was before the round, and need not be trained at all here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm
from fedkeel.engine.behind import Behind
from fedkeel.engine.exchange import Answers, Call, Fault, Model
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.settings import Faults
from fedkeel.errors import invalid


@dataclass(frozen=True)
class Fate:
    """What happens to one client in one round."""

    answer: Literal["arrives", "dropout", "lost", "late"] = "arrives"
    share: float = 1.0
    """Of its steps, how many it takes."""
    twice: bool = False
    """Whether its upload arrives a second time."""


@dataclass(frozen=True)
class Plan:
    """What the faults of a round make of its cohort; clients are meant by their row in it."""

    steps: Tensor
    """Local steps that each client takes [S]."""
    arrivals: tuple[int, ...]
    """The uploads in the order in which they reach the server in time."""
    strays: tuple[int, ...]
    """The uploads that were sent but come to nothing."""
    faults: tuple[Fault, ...]

    @property
    def sent(self) -> int:
        """Uploads that travelled."""
        return len(self.arrivals) + len(self.strays)


@dataclass(frozen=True)
class Faulty(Behind):
    """Whoever answers, seen through a network in which planned things go wrong."""

    settings: Faults
    seed: int

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        plan = plan_round(self.settings, self.seed, call.round.t, call.clients.ids, call.steps)
        if not plan.faults:
            return self.who.answers(call, exam)
        heard = self.who.answers(replace(call, steps=plan.steps).take(counted(plan.arrivals)), exam)
        weight = heard.upload_bytes
        if heard.outcome is None and plan.strays:  # what a lost upload weighs shows only when one is made
            weight = self.who.answers(call.take(plan.strays[:1])).upload_bytes
        return replace(heard, sent=plan.sent, upload_bytes=weight, faults=(*plan.faults, *heard.faults))


def plan_round(settings: Faults, seed: int, round: int, ids: tuple[int, ...], steps: Tensor) -> Plan:
    """The faults of a round (from 0) in which these clients are called for these steps [S]."""
    if not _any(settings):
        return Plan(steps, tuple(range(len(ids))), (), ())
    fates = [fate(settings, seed, round, client) for client in ids]
    taken = [shortened(K, one.share) for K, one in zip(steps.tolist(), fates, strict=True)]
    in_time = [row for row, one in enumerate(fates) if one.answer == "arrives"]
    faults: list[Fault] = []
    for client, one, K, k in zip(ids, fates, steps.tolist(), taken, strict=True):
        if one.answer != "arrives":
            faults.append(Fault(client, one.answer))
            continue
        if k < K:
            faults.append(Fault(client, "straggler", f"{k} of {K} steps"))
        if one.twice:
            faults.append(Fault(client, "duplicate"))
    return Plan(
        torch.tensor(taken, dtype=steps.dtype),
        (*in_time, *(row for row in in_time if fates[row].twice)),
        tuple(row for row, one in enumerate(fates) if one.answer in ("lost", "late")),
        tuple(faults),
    )


def fate(settings: Faults, seed: int, round: int, client: int) -> Fate:
    """What happens to a client in a round; a changed probability changes nobody's other draws."""
    drops, loses, delays, slows, within, repeats = generator(seed, Purpose.FAULTS, round, client).random(6).tolist()
    if drops < settings.dropout:
        return Fate("dropout")
    if loses < settings.lost:
        return Fate("lost")
    if delays < settings.late:
        return Fate("late")
    low, high = settings.straggler_share
    share = low + (high - low) * within if slows < settings.stragglers else 1.0
    return Fate("arrives", share, repeats < settings.duplicates)


def shortened(steps: int, share: float) -> int:
    """The whole steps within a share of them, at least one (none only where none were asked for)."""
    return max(min(steps, 1), math.floor(steps * share))


def counted(arrivals: Iterable[int]) -> list[int]:
    """The rows whose uploads count, each once and in the cohort's order, however often and whenever they arrive."""
    return sorted(set(arrivals))


def check_needs(algorithm: type[Algorithm], settings: Faults) -> None:
    """Refuse faults that would make an algorithm quietly wrong."""
    refused: dict[str, str] = {}
    if "full" in algorithm.needs:
        refused |= dict.fromkeys(("dropout", "lost", "late"), "every client in every round")
        if settings.bad_update != "stop":
            raise invalid(
                "faults.bad_update",
                f"'stop' with {algorithm.name}, which needs every client in every round",
                settings.bad_update,
                "Both alternatives may leave a client out.",
            )
    if "equal_steps" in algorithm.needs:
        refused["stragglers"] = "the same number of steps at every client"
    for name, need in refused.items():
        if getattr(settings, name):
            hint = "Leave it out, or take another algorithm."
            raise invalid(
                f"faults.{name}", f"0 with {algorithm.name}, which needs {need}", getattr(settings, name), hint
            )


def _any(settings: Faults) -> bool:
    return any((settings.dropout, settings.lost, settings.late, settings.stragglers, settings.duplicates))
