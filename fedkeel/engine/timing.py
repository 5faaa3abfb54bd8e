"""Rounds by the virtual clock: who is called, who is heard in time, and how late it is afterwards.

The server calls a cohort of those online, more than it needs if it over-selects, and closes the round when enough have
answered, all have answered or left, or the deadline has come. Whoever is not heard by then is as it was before the
round, and need not be trained here at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedkeel.algorithms.state import State, bytes_down, bytes_up
from fedkeel.engine.behind import Behind
from fedkeel.engine.client import answer_each
from fedkeel.engine.clock import Devices
from fedkeel.engine.exchange import Answers, Call, Fault, Model, Respondents
from fedkeel.engine.names import CLOCK, TIME
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.residents import Residents
from fedkeel.engine.schedule import round_half_up
from fedkeel.engine.server import Server, ServerState
from fedkeel.errors import FedkeelError

SPENT = f"{CLOCK}seconds"
"""What a client's answer took, from the call to its arrival."""


class ClockError(FedkeelError):
    """The virtual clock counted on something that turned out otherwise."""


class Costs:
    """What a call costs a client in virtual seconds."""

    def __init__(self, server: Server, devices: Devices, residents: Residents) -> None:
        self.server = server
        self.devices = devices
        self._residents = residents

    def down(self, call: Call) -> int:
        """Bytes that one client receives."""
        clients = len(call.clients.ids)
        return bytes_down(call.message, clients) // max(clients, 1) + self.server.buffer_bytes(1)

    def up(self, call: Call) -> int:
        """Bytes that one client sends, buffers included; 0 where nobody's line takes time."""
        if not self.devices.weighs_uploads:
            return 0
        if self._weight is None:
            one = replace(call, steps=call.steps.clamp(max=1)).take([0])
            job = self._residents.job(one).on(self._residents.equipment.task.device)
            self._weight = bytes_up(answer_each(job, [[0]])[0].message)
        return self._weight + self.server.buffer_bytes(1)

    _weight: int | None = None

    def check(self, answers: Answers, round: int) -> None:
        """Uploads must weigh what was counted on when it was decided who is in time."""
        weight = answers.upload_bytes
        if self.devices.weighs_uploads and answers.outcome is not None and weight != self._weight:
            raise ClockError(
                f"an upload of round {round + 1} weighs {weight:,} bytes, but {self._weight:,} in a trial; the virtual "
                "clock needs uploads of one size: leave out clock.up, or let the algorithm send the same every round."
            )

    def work(self, samples: int, n: int) -> float:
        """What going through so many samples costs a client that has n, counted in samples of one gradient."""
        algorithm = self.server.algorithm
        return samples * algorithm.gradients_a_step + n * algorithm.passes_a_round


@dataclass(frozen=True)
class Plan:
    """What the clock makes of a round; clients are meant by their row in the call."""

    steps: Tensor
    """Local steps that each client takes [K]."""
    heard: tuple[int, ...]
    """The clients whose uploads count, in the order of the call."""
    sent: int
    """Uploads that travelled, in time or not."""
    faults: tuple[Fault, ...]
    seconds: tuple[float, ...]
    """From the call to its answer, of each client that is heard."""
    end: float
    """When the round is closed."""


class Synchronous:
    """Rounds of a cohort."""

    def __init__(self, server: Server, devices: Devices, residents: Residents) -> None:
        self.server = server
        self.devices = devices
        self.costs = Costs(server, devices, residents)

    def start(self) -> State:
        """The clock before the first round."""
        return State(now=0.0)

    def opened(self, state: ServerState, clock: State, who: Respondents) -> tuple[Call, Respondents]:
        """The call of the next round, and whoever answers it, as far as they make it in time."""
        at = float(clock.now)
        if self.devices.presence is None and not self.devices.clock.over_select:
            call = self.server.open(state)
        else:
            at = self.devices.next_online(at)
            rng = generator(self.server.seed, Purpose.COHORT, state.t)
            call = self.server.open(state, sorted(self.devices.draw(self._called, at, rng)))
        return call, Timed(who, self.costs, self.plan(call, at))

    @cached_property
    def _needed(self) -> int:
        """Answers with which a round is closed."""
        return max(1, round_half_up(self.server.training.participation * self.devices.N))

    @property
    def _called(self) -> int:
        share = 1 + self.devices.clock.over_select
        return min(self.devices.N, math.ceil(self._needed * share - 1e-9))

    def plan(self, call: Call, at: float) -> Plan:
        """Who is heard of a call at a time, when, and what becomes of the others."""
        clock, t = self.devices.clock, call.round.t
        down, up = self.costs.down(call), self.costs.up(call)
        limit = math.inf if clock.deadline is None else clock.deadline
        steps, faults = call.steps.tolist(), dict[int, Fault]()
        answers, ends, sent = dict[int, float](), list[float](), 0
        for row, (client, n) in enumerate(zip(call.clients.ids, call.clients.sizes.tolist(), strict=True)):
            asked = steps[row]
            travels = self.devices.transfer(client, down, up)
            spent = travels + self._compute(client, t, asked, n)
            if spent > limit and clock.late == "partial":
                steps[row] = self._fitting(client, t, asked, n, limit - travels)
                spent = travels + self._compute(client, t, steps[row], n)
                faults[row] = Fault(client, "straggler", f"{steps[row]} of {asked} steps")
            gone = min(self.devices.leaves(client, at) - at, spent * self.devices.fails_after(client, t))
            ends.append(min(gone, spent))
            if gone < min(spent, limit):
                faults[row] = Fault(client, "dropout", f"left after {gone:.4g} s of {spent:.4g} s")
            else:
                answers[row] = spent
                sent += gone >= spent
        in_time = sorted((spent, row) for row, spent in answers.items() if spent <= limit)
        enough = in_time[: self._needed] if clock.over_select else in_time
        waits = max(ends, default=0.0) if not clock.over_select or len(enough) < self._needed else enough[-1][0]
        end = min(waits, limit)
        heard = sorted(row for _, row in enough)
        for row in answers.keys() - set(heard):
            faults[row] = Fault(call.clients.ids[row], "late", f"{answers[row]:.4g} s, the round had {end:.4g} s")
        return Plan(
            torch.tensor(steps, dtype=call.steps.dtype),
            tuple(heard),
            sent,
            tuple(faults[row] for row in sorted(faults)),
            tuple(answers[row] for row in heard),
            at + end,
        )

    def _compute(self, client: int, t: int, steps: int, n: int) -> float:
        return self.devices.compute(client, t, self.costs.work(self.server.training.samples_in(steps, n), n))

    def _fitting(self, client: int, t: int, asked: int, n: int, seconds: float) -> int:
        """The most steps, at least one of those asked for, that a client can take in a time."""
        low, high = min(1, asked), asked
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._compute(client, t, middle, n) <= seconds
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


@dataclass(frozen=True)
class Timed(Behind):
    """Whoever answers, as far as the clock lets them."""

    costs: Costs
    plan: Plan

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        plan = self.plan
        heard = self.who.answers(replace(call, steps=plan.steps).take(plan.heard), exam)
        self.costs.check(heard, call.round.t)
        weight = heard.upload_bytes
        if heard.outcome is None and plan.sent:  # what a late upload weighs shows only when one is made
            weight = self.who.answers(call.take([0])).upload_bytes
        spent = torch.tensor(plan.seconds, dtype=torch.float64)
        return replace(
            heard,
            sent=heard.sent + plan.sent - len(plan.heard),
            upload_bytes=weight,
            faults=(*plan.faults, *heard.faults),
            clock=State(now=plan.end),
            noted={TIME: plan.end, SPENT: spent} if plan.heard else {TIME: plan.end},
        )
