"""A site at work: letters in, replies out. It trains with the code installed here, never with any that arrives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from fedkeel.engine.description import Description
from fedkeel.engine.exchange import Question
from fedkeel.engine.samples import prepared
from fedkeel.engine.site import Site, own_data
from fedkeel.engine.site_memory import SiteMemory
from fedkeel.engine.wire import LARGEST, Refusal, reply_to_bytes, request_from_bytes
from fedkeel.errors import DataError, FedkeelError
from fedkeel.learning.losses import Loss
from fedkeel.network.letters import Letter, Reply, read_letter
from fedkeel.network.site_data import SiteData


@dataclass
class ClientHalf:
    """One client of a network: its data, its memory, and the run that it takes part in."""

    client: int
    data: SiteData
    memory: Path
    """The folder in which it remembers; one file for all runs."""
    module: nn.Module | None = None
    """The model of runs whose description names none."""
    loss: Loss | None = None
    allow_plugins: bool = False
    """Whether a run may name an algorithm that is no part of fedkeel (``module:Class``), installed here."""
    largest: int = LARGEST
    _made: tuple[str, Site] | None = field(default=None, repr=False)
    """The run that was described last, and what it takes to answer."""

    def reply(self, data: bytes) -> bytes:
        """What this site says to a letter."""
        letter = read_letter(data, self.largest)
        if not letter.request:
            return Reply(letter.nonce, self.data.facts(self.client)).to_bytes()
        try:
            body = self._site(letter).reply(letter.request)
        except FedkeelError as error:
            body = self._refused(letter, str(error))
        except Exception as error:  # whatever it is, the server has to hear of it, and this client to go on
            body = self._refused(letter, f"{type(error).__name__}: {error}")
        return Reply(letter.nonce, body=body).to_bytes()

    def _refused(self, letter: Letter, reason: str) -> bytes:
        asked = request_from_bytes(letter.request, self.largest)
        t = asked.t if isinstance(asked, Question) else asked.round.t
        return reply_to_bytes(Refusal(self.client, t, reason))

    def _site(self, letter: Letter) -> Site:
        if letter.data != self.data.digest:
            raise DataError(
                f"client {self.client} holds other data than the run counts on; put the old data back, or start a new "
                "run."
            )
        if self._made is None or self._made[0] != letter.description:
            self._made = (letter.description, self._equipped(letter.description))
        return self._made[1]

    def _equipped(self, text: str) -> Site:
        description = Description.read(text)
        equipment = description.equipment(self.module, self.loss, self.allow_plugins)
        task, data = equipment.task, self.data
        samples = own_data(task, data.train.x, data.train.y, data.transform, data.name)
        tests = [
            None
            if split is None
            else prepared(split.x, split.y, data.transform, task.dtype, task.channels_last, task.device)
            for split in (data.test, data.common)
        ]
        memory = SiteMemory(self.memory, self.client)
        return Site(description.run, self.client, equipment, samples, memory, tests[0], tests[1], self.largest)
