"""What passes between the two halves of a round: calls and questions down, outcomes and scores up.

These are plain values. Neither half sees more of the other than they hold, whether the clients are rows of a table in
this process or machines elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Clients, Round
from fedkeel.algorithms.state import Message, PerClient, State
from fedkeel.engine.randomness import Purpose
from fedkeel.engine.samples import Scored
from fedkeel.learning.task import Score, Seeds

Model = tuple[Tensor, Tensor]
"""Parameters [d] and buffers [m]."""
Kind = Literal["dropout", "lost", "late", "straggler", "duplicate", "silent", "refused", "skipped", "clipped"]


About = Literal["train", "own", "test"]
"""What a question is about: a client's training samples, its own test samples, or the test set that all have."""


@dataclass(frozen=True)
class Fault:
    """Something that went wrong with one client in a round."""

    client: int
    kind: Kind
    detail: str = ""


@dataclass(frozen=True)
class Call:
    """What the server tells the clients of a round."""

    round: Round
    clients: Clients
    message: Message
    """The algorithm's broadcast; per-client values have a row for each of ``clients``."""
    steps: Tensor
    """Local steps asked of each client [K]."""
    b: Tensor
    """The global buffers [m]."""
    common_steps: int
    """Local steps of a client of average size (``Problem.common_steps``)."""
    counted: Tensor
    """The last round, from 1, in which each client's upload counted [K]; 0 if none did yet."""

    def start(self, otherwise: Tensor, row: int | None = None) -> Tensor:
        """The w [d] that the client at ``row`` is sent, or all are, which need not be the server's own (FedACG).

        ``otherwise`` [d] where no whole model is sent, or none that is everybody's.
        """
        w = self.message.get("w")
        if isinstance(w, PerClient):
            w = otherwise if row is None else w.rows[row]
        return w if isinstance(w, Tensor) and w.shape == otherwise.shape else otherwise

    def take(self, rows: Sequence[int]) -> Call:
        """The same call to some of its clients only; what they are told stays as it is."""
        kept = list(rows)
        return replace(
            self,
            clients=self.clients.take(kept),
            message=taken(self.message, kept),
            steps=self.steps[kept],
            counted=self.counted[kept],
        )

    def on(self, device: torch.device) -> Call:
        """The same with everything that clients compute with on a device."""
        return replace(
            self,
            clients=replace(self.clients, sizes=self.clients.sizes.to(device)),
            message=moved_to(device, self.message),
            steps=self.steps.to(device),
            b=self.b.to(device),
        )


@dataclass(frozen=True)
class Question:
    """A model that some clients are asked to score on samples of theirs; nothing is trained, nobody's state changes."""

    t: int
    """Rounds done when it is asked."""
    ids: tuple[int, ...]
    on: About
    w: Tensor
    b: Tensor
    """The global buffers [m], for clients that keep none of their own."""
    counted: Tensor
    """As in a ``Call`` [K]: which of its states a client answers with."""
    N: int
    common_steps: int
    purpose: Purpose = Purpose.CLIENT_SCORES
    """What it is for: part of the key of whatever a model draws while it is evaluated."""
    own_buffers: bool = True
    """Whether clients that keep buffers of their own use these."""
    positions: tuple[Tensor, ...] | None = None
    """Of the training samples of each client, only those at these positions."""
    server: State | None = None
    """If given, a client scores what it would use itself (``Algorithm.personal``) in place of w."""


@dataclass(frozen=True)
class Outcome:
    """What clients return, stacked in client order."""

    message: Message
    states: State
    """What they will remember if their upload counts; empty where they keep that to themselves."""
    buffers: Tensor
    """[K, m]."""
    loss: Tensor
    """Mean objective over each client's steps [K]."""
    norms: list[Tensor]
    """Per client the norms of its gradients before clipping [K_i]; empty without clipping."""
    moved: Tensor
    """How far local training moved each client's model before that was limited [K]; NaN without a limit."""
    scores: tuple[Score, ...] = ()
    """Of the models of an exam."""
    noted: Mapping[str, Tensor] = field(default_factory=dict)
    """What they note with their uploads, by name: a number each [K]. Nothing is computed with it."""

    def on(self, device: torch.device) -> Outcome:
        """The same on a device."""
        return Outcome(
            moved_to(device, self.message),
            moved_to(device, self.states),
            self.buffers.to(device),
            self.loss.to(device),
            [norms.to(device) for norms in self.norms],
            self.moved.to(device),
            self.scores,
            {name: value.to(device) for name, value in self.noted.items()},
        )

    def lend_nothing_to(self, state: State) -> State:
        """The state with copies of whatever lies in the memory of this outcome, which may be overwritten."""
        memory = {value.untyped_storage().data_ptr() for value in [*self.message.values(), *self.states.values()]}
        lent = {
            name: value.clone()
            for name, value in state.items()
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in memory
        }
        return state.replace(**lent) if lent else state

    def take(self, rows: Sequence[int]) -> Outcome:
        """What some of the clients return."""
        kept = list(rows)
        return Outcome(
            _rows(self.message, kept),
            _rows(self.states, kept),
            self.buffers[kept],
            self.loss[kept],
            [self.norms[row] for row in kept],
            self.moved[kept],
            self.scores,
            {name: value[kept] for name, value in self.noted.items()},
        )


@dataclass(frozen=True)
class Answers:
    """What came of a call."""

    ids: tuple[int, ...]
    """The clients that answered in time, each once and in the order of the call."""
    steps: Tensor
    """Local steps that each of them took [K]."""
    outcome: Outcome | None
    """What they returned; None if nobody answered."""
    sent: int
    """Uploads that travelled, whatever became of them."""
    upload_bytes: int
    """What one of them weighs, without buffers."""
    faults: tuple[Fault, ...] = ()
    complaints: Mapping[int, str] = field(default_factory=dict)
    """Clients (by id) that say themselves that what they keep is not finite."""
    scores: tuple[Score, ...] = ()
    """Of the models that were to be evaluated on the side."""
    received: int | None = None
    """Broadcasts that travelled, where these are not one for each called client."""
    discount: Tensor | None = None
    """What each upload counts for [K], where some are of clients that started from an earlier model; None: all whole.

    Such uploads are given as if their clients had started from the model of the call.
    """
    clock: State | None = None
    """The virtual clock after the round, where there is one."""
    noted: Mapping[str, Tensor | float] = field(default_factory=dict)
    """What the clock noted: of the round, or of each client that answered [K]."""

    def of(self, cohort: tuple[int, ...]) -> Outcome | None:
        """What some of those that answered returned; None if nobody did."""
        if self.outcome is None or cohort == self.ids:
            return self.outcome
        rows = {client: row for row, client in enumerate(self.ids)}
        return self.outcome.take([rows[client] for client in cohort])


class Respondents(Protocol):
    """Whoever answers for the clients: this process, its workers, a cluster, or sites in a network."""

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        """Let the called clients train. The models of ``exam`` are evaluated on the test set in the meantime.

        The outcome may lie in memory that the next call overwrites.
        """

    def scores(self, question: Question) -> Mapping[int, Score]:
        """Ask clients for the score of a model. Those that do not answer are not in the result."""

    def evaluate(self, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None) -> Score:
        """A model (w [d], b [m]) on samples that the server itself holds: the test set, or those held out.

        ``seeds`` as in ``Task.evaluate``.
        """

    @property
    def hold_test(self) -> bool:
        """Whether ``evaluate`` has a test set; if not, clients are asked for the score on samples of their own."""

    @property
    def hold_validation(self) -> bool:
        """Whether ``evaluate`` has samples for validation; if not, clients are asked for the score."""

    @property
    def shares(self) -> bool:
        """Whether an exam beside a round uses time in which somebody would idle."""

    @property
    def have_tests(self) -> bool:
        """Whether clients have test samples of their own."""

    @property
    def have_common_test(self) -> bool:
        """Whether clients have the whole test set, so that they can score models of their own on it."""


def taken(message: Message, rows: list[int] | slice) -> Message:
    """A message as some of its receivers get it."""
    return State(**{k: PerClient(v.rows[rows]) if isinstance(v, PerClient) else v for k, v in message.items()})


def moved_to(device: torch.device, values: State) -> State:
    """Named values on a device."""
    moved = {
        name: PerClient(value.rows.to(device))
        if isinstance(value, PerClient)
        else (value.to(device) if isinstance(value, Tensor) else value)
        for name, value in values.items()
    }
    return State(**moved)


def gather(outcomes: list[Outcome], rows: Sequence[int] | None = None) -> Outcome:
    """Several outcomes as one, in their order; or, if ``rows`` says which client each row is, in client order."""
    together = Outcome(
        _concatenated([outcome.message for outcome in outcomes]),
        _concatenated([outcome.states for outcome in outcomes]),
        torch.cat([outcome.buffers for outcome in outcomes]),
        torch.cat([outcome.loss for outcome in outcomes]),
        [norms for outcome in outcomes for norms in outcome.norms],
        torch.cat([outcome.moved for outcome in outcomes]),
        noted={name: torch.cat([outcome.noted[name] for outcome in outcomes]) for name in outcomes[0].noted},
    )
    if rows is None or list(rows) == list(range(len(rows))):
        return together
    return together.take(sorted(range(len(rows)), key=lambda place: rows[place]))


def _rows(values: State, rows: list[int]) -> State:
    return State(**{name: value[rows] for name, value in values.items()})


def _concatenated(parts: list[State]) -> State:
    return State(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})
