"""Buffered asynchronous rounds (FedBuff: Nguyen et al., AISTATS 2022), by the virtual clock.

So many clients train at all times. Whoever answers is replaced at once by another, who gets the model as it is then.
The server steps when K uploads are there:

    w ← aggregate of  w + s(τ_i)·Δ_i,   Δ_i = y_i − w_{t − τ_i},   s(τ) = (1 + τ)^−a

where τ_i is the number of server steps since client i was given its model. FedAvg with equal weights makes FedBuff of
it, FedAvgM and FedAdam make FedBuff with another server rule.

A client is trained here when its upload arrives, from the model that it was given; so of every earlier model that
somebody still has, one copy is kept, and nothing of clients that never answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Round
from fedkeel.algorithms.state import State
from fedkeel.engine.behind import Behind
from fedkeel.engine.clock import Devices
from fedkeel.engine.exchange import Answers, Call, Fault, Model, Outcome, Respondents, gather
from fedkeel.engine.names import CLOCK, TIME
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.residents import Residents
from fedkeel.engine.schedule import round_half_up
from fedkeel.engine.server import Server, ServerState
from fedkeel.engine.timing import SPENT, ClockError, Costs
from fedkeel.errors import InputError, invalid
from fedkeel.state.rows import Rows

STALENESS = f"{CLOCK}staleness"
"""Server steps that were taken while a client trained."""
IN_VAIN = 10_000
"""Clients that may leave one after the other without a single answer before the run gives up."""
GIVEN = "given_"
"""How the names of earlier broadcasts begin in the state of the clock."""
FLOWN = ("due", "number", "client", "given", "called", "lost")


class Flown(NamedTuple):
    """A client at work. They are heard in this order: by the time of the answer, then by that of the call."""

    due: float
    """When it answers, or leaves."""
    number: int
    """Calls before this one."""
    client: int
    given: int
    """Server steps behind the model that it has."""
    called: float
    lost: bool
    """Whether it leaves without an answer."""


class Buffered:
    """Server steps of the uploads that come first."""

    def __init__(self, server: Server, devices: Devices, residents: Residents) -> None:
        self.server = server
        self.devices = devices
        self.costs = Costs(server, devices, residents)
        self.at_work = max(1, round_half_up(server.training.participation * devices.N))
        assert devices.clock.buffer is not None
        self.wanted = devices.clock.buffer
        if self.wanted > self.at_work:
            hint = "Take a smaller buffer, or let more clients train at a time (training.participation)."
            allowed = f"at most the {self.at_work} clients that train at a time"
            raise invalid("clock.buffer", allowed, self.wanted, hint)

    def start(self) -> State:
        """The clock before the first step: nobody is at work yet."""
        empty = {name: torch.zeros(0, dtype=torch.float64) for name in FLOWN}
        names = [f"{GIVEN}{name}" for name in (*self.broadcast(self.server.start(), (0,)).message, "b")]
        return State(now=0.0, calls=0, **empty, **{name: Rows() for name in names})

    def opened(self, state: ServerState, clock: State, who: Respondents) -> tuple[Call, Respondents]:
        """The call whose clients are those that are heard next, and whoever answers for them."""
        flight = Flight(self, state, clock)
        heard = sorted(flight.heard(), key=lambda one: one.client)
        call = self.broadcast(state, tuple(one.client for one in heard))
        return call, Stale(who, self, clock, flight, tuple(heard))

    def broadcast(self, state: ServerState, ids: Sequence[int]) -> Call:
        """What clients are told that are called after a server step."""
        call = self.server.open(state, ids)
        odd = [name for name, value in call.message.items() if not isinstance(value, Tensor)]
        own_steps = self.server.algorithm.local_steps(call.message, call.clients, self.server.problem) is not None
        if odd or own_steps or "w" not in call.message or call.clients.ids != tuple(ids):
            raise InputError(
                f"{self.server.algorithm.title} must not say any_staleness = True: for that, an algorithm broadcasts "
                "tensors alone, w among them, to whoever is there, and leaves the number of steps to the settings."
            )
        return call


class Flight:
    """The clients at work between two server steps."""

    def __init__(self, rules: Buffered, state: ServerState, clock: State) -> None:
        self.rules = rules
        self.state = state
        self.now = float(clock.now)
        self.calls = int(clock.calls)
        columns = [clock[name].tolist() for name in FLOWN]
        rows = zip(*columns, strict=True)
        self.flown = [Flown(due, int(i), int(c), int(g), at, bool(lost)) for due, i, c, g, at, lost in rows]
        heapq.heapify(self.flown)
        self.called_now = 0
        self.faults: list[Fault] = []
        self._busy = {one.client for one in self.flown}
        """At work, or heard and waiting for the server's step."""

    def heard(self) -> list[Flown]:
        """The next K answers. Places are filled as they become free, but the last one only after the server's step."""
        found: list[Flown] = []
        in_vain = 0
        self._fill()
        while len(found) < self.rules.wanted:
            one = heapq.heappop(self.flown)
            self.now = one.due
            if one.lost:
                in_vain += 1
                self._busy.remove(one.client)
                self.faults.append(Fault(one.client, "dropout", f"left after {one.due - one.called:.4g} s"))
            else:
                in_vain = 0
                found.append(one)
            if in_vain > IN_VAIN:
                raise ClockError(
                    f"{IN_VAIN:,} clients left one after the other before they had answered; let them be online for "
                    "longer (clock.availability, clock.period), fail less (clock.failure), or do less (training)."
                )
            if len(found) < self.rules.wanted:
                self._fill()
        return found

    def _fill(self) -> None:
        """Call clients that are online until all places are taken; if nobody is at work, wait for the first of them."""
        rules, devices = self.rules, self.rules.devices
        while (free := rules.at_work - len(self.flown)) > 0:
            rng = generator(rules.server.seed, Purpose.COHORT, self.calls, part=1)
            for client in devices.draw(min(free, devices.N - len(self._busy)), self.now, rng, self._busy):
                heapq.heappush(self.flown, self._called(client))
                self._busy.add(client)
            if self.flown:
                return
            self.now = devices.next_online(self.now, self._busy)

    @cached_property
    def _bytes(self) -> tuple[int, int]:
        """What a client receives now, and what it sends."""
        call = self.rules.broadcast(self.state, (0,))
        return self.rules.costs.down(call), self.rules.costs.up(call)

    def _called(self, client: int) -> Flown:
        rules, t = self.rules, self.state.t
        n = int(rules.server.problem.sizes[client])
        samples = rules.server.training.samples_in(rules.server.training.local_steps(n), n)
        spent = rules.devices.transfer(client, *self._bytes)
        spent += rules.devices.compute(client, t, rules.costs.work(samples, n))
        leaves = rules.devices.leaves(client, self.now) - self.now
        gone = min(leaves, spent * rules.devices.fails_after(client, self.calls))
        number, self.calls, self.called_now = self.calls, self.calls + 1, self.called_now + 1
        return Flown(self.now + min(gone, spent), number, client, t, self.now, gone < spent)

    def after(self, before: State, call: Call) -> State:
        """The clock after the server's step: who is at work, and the earlier models that they have."""
        kept = {one.given for one in self.flown}
        rows: dict[str, Rows] = {}
        for name, value in {**call.message, "b": call.b}.items():
            table: Rows = before[f"{GIVEN}{name}"]
            table = table.drop([given for given in table if given not in kept])
            rows[f"{GIVEN}{name}"] = table.put([self.state.t], [value]) if self.state.t in kept else table
        columns = zip(*self.flown, strict=True) if self.flown else [()] * len(FLOWN)
        flown = {name: torch.tensor(one, dtype=torch.float64) for name, one in zip(FLOWN, columns, strict=True)}
        return State(now=self.now, calls=self.calls, **flown, **rows)


@dataclass(frozen=True)
class Stale(Behind):
    """Whoever answers for clients that were given models of several server steps."""

    rules: Buffered
    clock: State
    flight: Flight
    heard: tuple[Flown, ...]
    """In the order of the call."""

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        given = torch.tensor([one.given for one in self.heard])
        parts: list[Outcome] = []
        rows: list[int] = []
        heard: list[Answers] = []
        for step in sorted(set(given.tolist())):
            mine = (given == step).nonzero().flatten().tolist()
            as_given = self._as_given(call, step)
            got = self.who.answers(as_given.take(mine), () if heard else exam)
            self.rules.costs.check(got, call.round.t)
            if got.outcome is None or len(got.ids) != len(mine):
                raise ClockError("a client that was heard gave no answer: faults and a clock cannot both decide.")
            parts.append(_moved(got.outcome, call.message.w - as_given.message.w))
            rows += mine
            heard.append(got)
        staleness = call.round.t - given
        rate = -self.rules.devices.clock.staleness
        return Answers(
            call.clients.ids,
            call.steps,
            gather(parts, rows),
            sum(got.sent for got in heard),
            heard[0].upload_bytes,
            (*self.flight.faults, *(fault for got in heard for fault in got.faults)),
            scores=heard[0].scores,
            received=self.flight.called_now,
            discount=(1 + staleness.double()) ** rate,
            clock=self.flight.after(self.clock, call),
            noted={
                TIME: self.flight.now,
                SPENT: torch.tensor([one.due - one.called for one in self.heard], dtype=torch.float64),
                STALENESS: staleness.double(),
            },
        )

    def _as_given(self, call: Call, step: int) -> Call:
        """The call as clients had it that were called after so many server steps."""
        if step == call.round.t:
            return call
        message = State(**{name: self.clock[f"{GIVEN}{name}"][step] for name in call.message})
        schedule = self.rules.server.schedule
        round = Round(step, schedule.lr(step), schedule.lr(0))
        return replace(call, round=round, message=message, b=self.clock[f"{GIVEN}b"][step])


def _moved(outcome: Outcome, by: Tensor) -> Outcome:
    """An outcome in memory of its own, its models [K, d] as if they had started elsewhere."""
    copied = outcome.take(range(len(outcome.loss)))
    moved = {name: value + by if name == "y" else value for name, value in copied.message.items()}
    return replace(copied, message=State(**moved))
