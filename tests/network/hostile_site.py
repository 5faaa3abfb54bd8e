"""A site that is registered and then does what it should not: ``hostile_site.py FOLDER EXPERIMENT TRICK``."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedkeel.engine.wire import Answer, reply_from_bytes, reply_to_bytes
from fedkeel.network import flower, site_data
from fedkeel.network.children import end_with_parent
from fedkeel.network.client_half import ClientHalf
from fedkeel.network.letters import Reply, read_letter
from fedkeel.network.places import SitePlace


class Hostile(ClientHalf):
    """Tampers with every answer to a call."""

    trick = ""

    def reply(self, data: bytes) -> bytes:
        letter = read_letter(data)
        honest = super().reply(data)
        if not letter.request:
            return honest
        body = self._site(letter).reply(letter.request)
        said = reply_from_bytes(body)
        if not isinstance(said, Answer):
            return honest
        y = said.outcome.message["y"]
        tricks = {
            "nan": lambda: replace(said, outcome=_with(said, y=torch.full_like(y, torch.nan))),
            "shape": lambda: replace(said, outcome=_with(said, y=y[:, :-1])),
            "client": lambda: replace(said, client=0),
            "round": lambda: replace(said, t=said.t + 5),
            "huge": lambda: replace(said, outcome=_with(said, y=torch.zeros(1, 300_000_000))),
        }
        if self.trick in tricks:
            body = reply_to_bytes(tricks[self.trick]())
        nonce = "0" * 32 if self.trick == "nonce" else letter.nonce
        return Reply(nonce, body=body).to_bytes()


def _with(said: Answer, **values: Any) -> Any:
    return replace(said.outcome, message=said.outcome.message.replace(**values))


def main() -> None:
    end_with_parent()
    folder, experiment, trick = sys.argv[1:]
    place = SitePlace.at(Path(folder))
    flower.prepare(place.folder / "flower")
    from fedkeel.network.flower_node import SuperNode, client_app

    torch.set_num_threads(1)
    client = place.settings.client
    half = Hostile(client, site_data.read(experiment, client), place.memory)
    half.trick = trick
    node = SuperNode(place, client_app(half), print, threading.Event())
    if trick == "sender":
        send = node._send

        def forged(reply: Any, seconds: float) -> None:
            reply.metadata.__dict__["_src_node_id"] = node._node.node_id + 1
            send(reply, seconds)

        node._send = forged  # type: ignore[method-assign]
    node.run()


if __name__ == "__main__":
    main()
