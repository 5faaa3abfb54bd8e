"""A client at a site of its own: bytes come in, bytes go out; samples and memory stay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedkeel.algorithms.state import State
from fedkeel.data.transform import Transform
from fedkeel.engine.client import Equipment, Work, answer
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Call, Outcome, Question
from fedkeel.engine.fitting import EXAMPLES, check_on
from fedkeel.engine.randomness import Moment, part_seeds
from fedkeel.engine.samples import Array, ClientData, prepared
from fedkeel.engine.site_memory import SiteMemory
from fedkeel.engine.soundness import not_finite
from fedkeel.engine.wire import LARGEST, Answer, Refusal, Scored, reply_to_bytes, request_from_bytes
from fedkeel.errors import DataError, FedkeelError, ModelError
from fedkeel.learning.task import Task

BUFFERS = "buffers/own"
"""The name under which a client remembers buffers that it keeps to itself."""


def own_data(task: Task, x: Array, y: Array, transform: Transform, name: str = "this site") -> ClientData:
    """A client's stored samples, prepared for a model, which is compared with plain torch on some of them first."""
    some = prepared(x[:EXAMPLES], y[:EXAMPLES], transform, task.dtype, False, task.device)
    check_on(task, *some, name, int(y.max()) + 1)
    return ClientData(*prepared(x, y, transform, task.dtype, task.channels_last, task.device), transform, task.dtype)


@dataclass(frozen=True)
class Site:
    """One client with its own samples and its own memory."""

    run: str
    client: int
    equipment: Equipment
    data: ClientData
    memory: SiteMemory
    test: tuple[Tensor, Tensor] | None = None
    """Its own test samples, if it has any."""
    common_test: tuple[Tensor, Tensor] | None = None
    """The test set that all have in common, if it is here."""
    largest: int = LARGEST
    """Bytes of the longest request that is read."""

    def reply(self, request: bytes) -> bytes:
        """What this client says to a call or a question; what it cannot answer it refuses, and says why."""
        asked = request_from_bytes(request, self.largest)
        t = asked.t if isinstance(asked, Question) else asked.round.t
        try:
            said = self.scored(asked) if isinstance(asked, Question) else self.answered(asked)
        except FedkeelError as error:
            return reply_to_bytes(Refusal(self.client, t, str(error)))
        except Exception as error:  # whatever it is, the server has to hear of it, and this client to go on
            return reply_to_bytes(Refusal(self.client, t, f"{type(error).__name__}: {error}"))
        return reply_to_bytes(said)

    def answered(self, call: Call) -> Answer:
        """Train as called, and keep the new state until the server's next word."""
        self._require_mine(call.clients.ids)
        task, n = self.equipment.task, len(self.data.y)
        if call.clients.sizes.tolist() != [n]:
            raise DataError(f"client {self.client} has {n} samples, the server counts on {int(call.clients.sizes[0])}.")
        w = call.message.get("w", task.w0)
        kinds = [(v.dtype, v.shape) if isinstance(v, Tensor) else None for v in (w, task.w0, call.b, task.b0)]
        if call.clients.dtype != task.dtype or kinds[::2] != kinds[1::2]:
            raise ModelError(f"client {self.client} has another model than the server: precision or size differs.")
        counted, first = int(call.counted[0]), self.equipment.first_state(call.clients.N, call.common_steps)
        own = self._remembered(counted, first)
        work = Work(
            self.equipment,
            call,
            self,
            {name: [own.get(name, zero)] for name, zero in first.items()},
            own.get(BUFFERS, call.b).unsqueeze(0),
        )
        outcome = answer(work.on(task.device), [0]).on(CPU)
        kept = {name: rows[0] for name, rows in outcome.states.items()}
        if self._keeps_buffers:
            kept[BUFFERS] = outcome.buffers[0]
        if kept:
            self.memory.prepare(self.run, counted, call.round.t + 1, kept)
        return Answer(self.client, call.round.t, int(call.steps[0]), self._public(outcome), self._complaint(outcome))

    def scored(self, question: Question) -> Scored:
        """Score a model; nothing is remembered."""
        self._require_mine(question.ids)
        equipment, task = self.equipment, self.equipment.task
        first = equipment.first_state(question.N, question.common_steps)
        own = self._remembered(int(question.counted[0]), first)
        w = question.w
        if question.server is not None:
            rows = State(**{name: own.get(name, zero).unsqueeze(0) for name, zero in first.items()})
            with equipment.keyed(Moment.PERSONAL, question.t):
                models = equipment.algorithm.personal(question.server, rows)
            w = w if models is None else models[0]
        b = own.get(BUFFERS, question.b) if question.own_buffers else question.b
        seeds = part_seeds(equipment.seed, question.purpose, question.t, self.client)
        score = task.evaluate(w, b, *self._asked(question), seeds)
        return Scored(self.client, question.t, question.purpose, score)

    def data_of(self, client: int) -> ClientData:
        """The samples that are here."""
        self._require_mine((client,))
        return self.data

    def _require_mine(self, ids: tuple[int, ...]) -> None:
        if ids != (self.client,):
            raise DataError(
                f"this is client {self.client}; a message for client {', '.join(map(str, ids))} is not its."
            )

    @property
    def _keeps_buffers(self) -> bool:
        return self.equipment.buffer_rule == "local" and self.equipment.task.b0.numel() > 0

    def _remembered(self, counted: int, first: State) -> dict[str, Tensor]:
        """What the client remembers of the last round that counted; nothing before the first."""
        if not (first or self._keeps_buffers):
            return {}
        found = self.memory.state_after(self.run, counted)
        if counted == 0:
            return found
        expected = dict(first) | ({BUFFERS: self.equipment.task.b0} if self._keeps_buffers else {})
        kinds = [{name: (t.dtype, t.shape) for name, t in part.items()} for part in (expected, found)]
        if kinds[0] != kinds[1]:
            raise DataError(f"{self.memory.path} holds what another algorithm or model remembers; it is not used.")
        return found

    def _public(self, outcome: Outcome) -> Outcome:
        """What of an outcome leaves the site."""
        travel = self.equipment.buffer_rule in ("average", "uniform")
        return replace(outcome, states=State(), buffers=outcome.buffers if travel else outcome.buffers[:, :0])

    def _complaint(self, outcome: Outcome) -> str:
        """What is not finite in what stays here."""
        stays = outcome.buffers[:, :0] if self._public(outcome).buffers.numel() else outcome.buffers
        return not_finite(replace(outcome, message=State(), buffers=stays)).get(0, "")

    def _asked(self, question: Question) -> tuple[Tensor, Tensor]:
        x, y = self.data.x, self.data.y
        if question.on == "train":
            if question.positions is None:
                return x, y
            asked = question.positions[0]
            if len(asked) == 0 or int(asked.min()) < 0 or int(asked.max()) >= len(y):
                raise DataError(f"client {self.client} has {len(y)} samples; it was asked about others.")
            return x[asked.to(y.device)], y[asked.to(y.device)]
        found = self.test if question.on == "own" else self.common_test
        if found is None:
            raise DataError(f"client {self.client} has no test samples here.")
        return found
