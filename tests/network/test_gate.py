"""The one door of the server: what sites need passes, and nothing else, however it is written.

No SuperLink runs behind the gate here: what passes is answered with 503, the rest with the gate's own word.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supernode import fleet_http_client
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fedkeel.network import gate, places
from fedkeel.network.gate import CALLS, FLEET, LARGEST_REQUEST, WINDOW, Allowance
from fedkeel.network.places import ServerPlace
from fedkeel.network.server import free_port

MOST = 20 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ServerPlace:
    folder = tmp_path_factory.mktemp("gate") / "network"
    places.make(folder, 2, ["localhost"], free_port(), free_port(), 1)
    return ServerPlace.at(folder / "server")


def signed(place: ServerPlace, client: int = 0, at: str = "2026-01-31T12:00:00+00:00") -> dict[str, str]:
    """The headers with which a site shows who it is; how old they may be, the SuperLink looks at."""
    folder = place.folder.parent / "sites" / f"client-{client}"
    key = load_ssh_private_key((folder / "site.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    parts = {gate.KEY: public_key_to_bytes(key.public_key()), gate.SIGNATURE: sign_message(key, at.encode())}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()} | {gate.TIME: at}


@pytest.fixture
def client(place: ServerPlace) -> Iterator[TestClient]:
    """A site of the network."""
    with TestClient(gate.app(place, MOST), headers=signed(place)) as found:
        yield found


def test_what_no_key_of_the_network_signed_is_not_read(place: ServerPlace, tmp_path: Path) -> None:
    places.make(tmp_path / "network", 1, ["localhost"], free_port(), free_port(), 1)
    other = ServerPlace.at(tmp_path / "network" / "server")
    mine, stolen = signed(place), signed(place, 1)
    wrong = [
        {},
        signed(other),
        mine | {gate.SIGNATURE: stolen[gate.SIGNATURE]},
        mine | {gate.TIME: "2026-01-31T12:00:01+00:00"},
        mine | {gate.KEY: "nonsense"},
        mine | {gate.SIGNATURE: ""},
    ]
    with TestClient(gate.app(place, MOST)) as anybody:
        for headers in wrong:
            assert anybody.post("/v1/fleet/push-object", content=bytes(100), headers=headers).status_code == 401
        assert anybody.post("/v1/fleet/push-object", content=bytes(100), headers=mine).status_code == 503


def status(place: ServerPlace, path: str, method: str = "POST") -> int:
    """The answer to a path as it stands: clients tidy up what they are asked for before they send it."""
    app, sent = gate.app(place, MOST), list[Any]()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 443),
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("call", sorted(CALLS))
def test_what_sites_need_passes(call: str, client: TestClient) -> None:
    found = client.post(FLEET + call, content=b"")
    assert (found.status_code, found.text) == (503, "the server is starting")


def test_every_call_is_one_that_flower_has() -> None:
    """And of those that it has, nobody registers or unregisters himself here, and no code is handed out."""
    text = Path(fleet_http_client.__file__).read_text(encoding="utf-8")
    known = {part.split('"')[0] for part in text.split(f'path="{FLEET}')[1:]}
    assert known >= CALLS
    assert {"register-node", "unregister-node", "get-fab"} <= known - CALLS


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/health",
        "/metrics",
        "/v1/control/list-nodes",
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/get-login-details",
        "/v1/runtime/acquire-task",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/get-fab",
        "/v1/fleet/..",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/./pull-messages",
        "/v1/fleet//pull-messages",
        "//v1/fleet/pull-messages",
        "/v1//fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages/x",
        "/v1/fleet/pull-messages%2f..%2fregister-node",
        "/v1/fleet/pull-messages?x",
        "/v1/fleet/pull-messages#x",
        "/v1/fleet/pull-messages\\..\\x",
        "/v1/fleet/PULL-MESSAGES",
        "/v1/fleet/pull-messages ",
        "/v1/fleet/pull-messages\n",
        "/v1/fleet/pull-messages\x00",
        "/V1/fleet/pull-messages",
        "/api/v1/fleet/pull-messages",
        "/flwr.proto.Fleet/PullMessages",
        "/flwr.proto.Control/StartRun",
        "https://localhost/v1/control/start-run",
    ],
)
def test_every_other_path_is_not_found(path: str, place: ServerPlace) -> None:
    assert status(place, path) == 404


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "X"]
)
def test_every_other_method_is_refused(method: str, place: ServerPlace) -> None:
    assert status(place, "/v1/fleet/pull-messages", method) == 405
    assert status(place, "/v1/control/start-run", method) == 404


def test_connections_of_another_kind_find_nothing(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/fleet/pull-messages"):
        pass


def test_a_request_that_is_too_long_is_refused(client: TestClient) -> None:
    assert client.post("/v1/fleet/push-object", content=bytes(LARGEST_REQUEST)).status_code == 503
    assert client.post("/v1/fleet/push-object", content=bytes(LARGEST_REQUEST + 1)).status_code == 413


def test_a_request_without_end_is_cut_off(client: TestClient) -> None:
    """Its length is not said beforehand: it is counted, and no more is taken than is allowed."""
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(40):
            taken += 1 << 20
            yield bytes(1 << 20)

    assert client.post("/v1/fleet/push-object", content=endless()).status_code == 413


def test_one_key_that_sends_too_much_leaves_room_for_the_others(place: ServerPlace, client: TestClient) -> None:
    half = bytes(MOST // 2)

    def sent(site: int) -> int:
        return client.post("/v1/fleet/push-object", content=half, headers=signed(place, site)).status_code

    assert [sent(0), sent(0), sent(0), sent(1)] == [503, 503, 413, 503]


# ---------------------------------------------------------------------------------------------------------- allowance


def test_an_allowance_is_for_a_minute() -> None:
    allowance = Allowance(100)
    assert allowance.take("a", 60, 0.0)
    assert not allowance.take("a", 41, 1.0)
    assert allowance.take("a", 40, 2.0)
    assert not allowance.take("a", 1, WINDOW)
    assert allowance.take("a", 60, WINDOW + 0.5)
    assert not allowance.take("a", 1, WINDOW + 1)
    assert allowance.take("a", 40, WINDOW + 2.5)


def test_what_was_refused_is_not_counted() -> None:
    allowance = Allowance(100)
    assert not allowance.take("a", 101, 0.0)
    assert allowance.take("a", 100, 0.0)


# ------------------------------------------------------------------------------------------------------- who speaks


def pushed(node: int, *senders: int) -> bytes:
    messages = [Message(metadata=Metadata(src_node_id=sender)) for sender in senders]
    request = PushMessagesRequest(node=Node(node_id=node), messages_list=messages)
    return bytes(request.SerializeToString())


def test_a_message_must_come_from_its_sender(client: TestClient) -> None:
    def sent(body: bytes) -> int:
        return client.post("/v1/fleet/push-messages", content=body).status_code

    assert sent(pushed(7, 7)) == sent(pushed(7, 7, 7)) == sent(pushed(7)) == 503
    assert sent(pushed(7, 8)) == sent(pushed(7, 7, 8)) == sent(pushed(7, 0)) == 403
    assert sent(b"\xff\xff nonsense") == 403
    truncated = pushed(7, 7, 7)[:-1]
    assert sent(truncated) == 403


def test_a_second_sender_behind_the_first_is_no_way_around() -> None:
    """In protobuf the last of two fields wins, and messages of two requests written one after the other add up."""
    assert gate._speaks_for_itself(pushed(7, 7) + pushed(7, 7))
    assert not gate._speaks_for_itself(pushed(7, 7) + pushed(7, 8))
    assert not gate._speaks_for_itself(pushed(8, 8) + pushed(7, 7))
