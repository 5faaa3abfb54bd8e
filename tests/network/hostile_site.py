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
    called = False
    """Whether the last letter was a call or a question; a greeting is answered as it should be."""

    def reply(self, data: bytes) -> bytes:
        letter = read_letter(data)
        self.called = bool(letter.request)
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
            "huge": lambda: replace(said, outcome=_with(said, y=torch.arange(300_000_000.0).unsqueeze(0))),
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
    send = node._send

    def forged(reply: Any, seconds: float) -> None:
        if half.called and trick == "kind":
            _send_a_record(node, reply)
            return
        if half.called and trick in ("swollen", "repeated"):
            reply.content = _of_one_piece(trick)
        if half.called and trick == "sender":
            reply.metadata.__dict__["_src_node_id"] = node._node.node_id + 1
        send(reply, seconds)

    node._send = forged  # type: ignore[method-assign]
    node.run()


def _of_one_piece(trick: str) -> Any:
    """A few megabytes that say that they are many: an array of equal pieces, or one record under many names."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if trick == "swollen":
        zeros = bytes(100_000_000)
        return RecordDict({"fedkeel-0": ArrayRecord({"letter": Array("uint8", (len(zeros),), "zeros", zeros)})})
    record = ConfigRecord({"letter": bytes(8 << 20)})
    return RecordDict({f"fedkeel-{number}": record for number in range(200)})


def _send_a_record(node: Any, reply: Any) -> None:
    """Send something under the name of a message that is none."""
    from flwr.app import ConfigRecord
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    record = ConfigRecord({"x": 1})
    reply.metadata.__dict__["_message_id"] = record.object_id
    request = PushMessagesRequest(
        node=node._node,
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[get_object_tree(record)],
    )
    told = node._steady.PushMessages(request)
    push = make_push_object_fn_protobuf(node._steady.PushObject, node._node, reply.metadata.run_id, told.session_id)
    push_objects(get_all_nested_objects(record), push, object_ids_to_push=set(told.objects_to_push))


if __name__ == "__main__":
    main()
